"""Modules of diffusers over a file with the original's names.

diffusers' own functions, those of from_single_file, give the file's tensors the
module's names, and split and join them. They run on tensors that know the
places of their bytes in the file instead of their values (_Traced). So a weight
is the library's result, and no byte of it is read here. No name is here.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Mapping

import torch
from torch import nn

from .._errors import InvalidArgument, NotFound, Unimplemented
from ._pieces import Source, whole
from ._quantised import Packed
from ._safetensors import FileTensor
from ._transformers import _Traced

# What the library's functions raise for a file of another kind.
LIBRARY_ERRORS = (AttributeError, ImportError, LookupError, TypeError,
                  ValueError)


def is_of(module: nn.Module, package: str, base: str) -> bool:
    """Does not import the package."""
    kind = getattr(sys.modules.get(package), base, None)
    return kind is not None and isinstance(module, kind)


def is_diffusers(module: nn.Module) -> bool:
    return is_of(module, "diffusers.models.modeling_utils", "ModelMixin")


def single_file_sources(module: nn.Module, headers: Mapping[str, FileTensor]
                        ) -> dict[str, Source]:
    """By the module's names; empty: the files' names are the module's, or
    diffusers has no from_single_file for it.

    NotFound: the file is no such module's. Unimplemented: diffusers makes a
    weight of more than runs of the file's tensors.
    """
    missing = [name for name, _ in
               module.named_parameters(remove_duplicate=False)
               if name not in headers]
    if not missing or not is_diffusers(module) or not _has_names(module):
        return {}
    said = (f"{len(missing)} parameters are in none of the files "
            f"({', '.join(missing[:3])}), and diffusers does not make a "
            f"{type(module).__name__} of them")
    try:
        return named(module, {name: whole(name, header)
                              for name, header in headers.items()})
    except Unimplemented as error:
        raise Unimplemented(
            f"{said} without computing: {error}; from_single_file makes the "
            "module, and hoist.attach takes it") from error
    except LIBRARY_ERRORS as error:
        raise NotFound(f"{said} ({type(error).__name__}: {error}); "
                       "rename= maps names") from error


def _has_names(module: nn.Module) -> bool:
    single: Any = importlib.import_module("diffusers.loaders.single_file_model")
    return single._get_single_file_loadable_mapping_class(
        type(module)) is not None


def named(module: Any, tensors: Mapping[str, Source]) -> dict[str, Source]:
    """By the module's names, as from_single_file names them. LIBRARY_ERRORS,
    Unimplemented: it does not load the module of these."""
    single: Any = importlib.import_module("diffusers.loaders.single_file_model")
    kind = single._get_single_file_loadable_mapping_class(type(module))
    if kind is None:
        raise ValueError("it has no from_single_file")
    checkpoint = {name: _Traced(source) for name, source in tensors.items()}
    own = module.state_dict()
    if single._should_convert_state_dict_to_diffusers(own, checkpoint):
        convert = single.SINGLE_FILE_LOADABLE_CLASSES[kind][
            "checkpoint_mapping_fn"]
        checkpoint = convert(config=dict(module.config), checkpoint=checkpoint)
    made = {name: value for name, value in checkpoint.items() if name in own}
    for name, value in made.items():
        if not isinstance(value, _Traced):
            raise ValueError(f"{name} is not made of the file's tensors alone")
    return {name: value.source for name, value in made.items()}


def quantizer_of(config: Any) -> Any:
    """diffusers' quantizer for its configuration. LIBRARY_ERRORS: it lacks
    something."""
    quantisers: Any = importlib.import_module("diffusers.quantizers")
    made = quantisers.DiffusersAutoQuantizer.from_config(config)
    made.validate_environment()
    return made


def put_packed(module: Any, quantizer: Any, state: Mapping[str, torch.Tensor],
               packed: Packed, instead: str) -> None:
    """Has the quantizer make the module its own, with the packed.targets of
    `state` on the meta device, as from_single_file does."""
    keeps = getattr(module, "_keep_in_fp32_modules", None) or []
    keeps = keeps if isinstance(keeps, list) else [keeps]
    own = module.state_dict()
    quantizer.preprocess_model(model=module, device_map=None, state_dict=state,
                               keep_in_fp32_modules=keeps)
    for name in packed.targets:
        if not set(keeps).isdisjoint(name.split(".")):
            raise Unimplemented(f"diffusers keeps {name} in float32, and "
                                f"unpacks it as it loads it; {instead}")
        try:
            quantizer.check_quantized_param_shape(name, own[name], state[name])
        except ValueError as error:
            raise InvalidArgument(f"the file is another module's: {error}"
                                  ) from error
        quantizer.create_quantized_param(module, state[name], name,
                                         torch.device("meta"), dict(state))
    quantizer.postprocess_model(module)
    module.hf_quantizer = quantizer


class OnMeta:
    """The places of weights that have no bytes yet, by their storages."""

    def __init__(self, module: nn.Module,
                 places: Mapping[str, Source]) -> None:
        """places: of parameters, by name."""
        own = dict(module.named_parameters(remove_duplicate=False))
        self._known = {own[name].untyped_storage()._cdata: (own[name], source)
                       for name, source in places.items()}

    def find(self, tensor: torch.Tensor) -> Source | None:
        _, source = self._known.get(tensor.untyped_storage()._cdata,
                                    (None, None))
        return source
