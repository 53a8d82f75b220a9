"""Modules of diffusers over a GGUF file, made by its quantiser.

diffusers' own functions give the file's tensors the module's names, and its own
layers unpack their weights in each forward. The functions run on tensors that
know the places of their bytes in the file instead of their values (_Traced). So
a weight is the library's result, and no byte of it is read here. No name, no
block type and no arithmetic is here.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any, Mapping

import torch
from torch import nn

from .._errors import InvalidArgument, Unimplemented
from ._pieces import Piece, Source, whole
from ._quantised import Packed
from ._safetensors import FileTensor
from ._transformers import _Traced

_INSTEAD = ("have diffusers' from_single_file(..., quantization_config="
            "GGUFQuantizationConfig(...)) make the module, and hoist.attach "
            "takes it")
_UNPACKED = ("F32", "F16")  # As diffusers' load_gguf_checkpoint.


def pack_gguf(module: Any, headers: Mapping[str, FileTensor],
              dtype: torch.dtype) -> Packed:
    """Has diffusers' quantiser make the module its own. Its packed weights are
    GGUFParameters on the meta device, of the file's blocks.

    dtype: what the layers compute in.

    Unimplemented: the module is none of diffusers', or the library makes a
    weight of more than runs of the file's blocks, or knows no such blocks.
    """
    if not _is_of(module, "diffusers.models.modeling_utils", "ModelMixin"):
        raise Unimplemented(_others(module))
    try:
        single: Any = importlib.import_module(
            "diffusers.loaders.single_file_model")
        quantisers: Any = importlib.import_module("diffusers.quantizers")
        library: Any = importlib.import_module("diffusers.quantizers.gguf.utils")
        quantizer = quantisers.DiffusersAutoQuantizer.from_config(
            sys.modules["diffusers"].GGUFQuantizationConfig(compute_dtype=dtype))
        quantizer.validate_environment()
        known = library.SUPPORTED_GGUF_QUANT_TYPES
        types = importlib.import_module("gguf").GGMLQuantizationType
        sources = _mapped(single, module, headers)
    except (AttributeError, ImportError, LookupError, TypeError,
            ValueError) as error:
        raise _refusal(f"diffusers does not load a {type(module).__name__} of "
                       f"it ({type(error).__name__}: {error})") from error
    packed = Packed()
    state: dict[str, torch.Tensor] = {}
    for name, source in sources.items():
        kind = _block_type(name, source, headers)
        made = torch.empty(source.shape, dtype=torch.uint8, device="meta")
        if not kind:
            packed.plain[name] = source
        elif types[kind] not in known:
            raise _refusal(f"{name} is packed as {kind}, which diffusers does "
                           "not unpack")
        else:
            made = library.GGUFParameter(made, quant_type=types[kind])
            packed.targets.add(name)
        state[name] = made
    _put_packed(module, quantizer, state, packed.targets)
    places = {name: sources[name] for name in packed.targets}
    packed._files = _OnMeta(module, places, headers)
    return packed


def _mapped(single: Any, module: Any, headers: Mapping[str, FileTensor]
            ) -> dict[str, Source]:
    """By the module's names, as from_single_file names them."""
    kind = single._get_single_file_loadable_mapping_class(type(module))
    if kind is None:
        raise ValueError("it has no from_single_file")
    checkpoint = {name: _Traced(_as_bytes(name, header))
                  for name, header in headers.items()}
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


def _as_bytes(name: str, header: FileTensor) -> Source:
    """As the library sees it: packed, even if hoistd has a type for it."""
    source = whole(name, header)
    if header.dtype in (*_UNPACKED, "U8"):
        return source
    return _resized(source, "U8", 1, _size(header.dtype))


def _resized(source: Source, dtype: str, before: int, after: int) -> Source:
    """The same bytes in elements of another size."""
    shape = (*source.shape[:-1], source.shape[-1] * after // before)
    pieces = tuple(Piece(one.tensor, one.start * after // before,
                         one.count * after // before)
                   for one in source.pieces)
    return Source(dtype, shape, pieces, source.file_tensor)


def _size(dtype: str) -> int:
    return int(dtype.lstrip("BFI")) // 8


def _block_type(name: str, source: Source,
                headers: Mapping[str, FileTensor]) -> str:
    """Empty: the library does not take it for packed."""
    found = {header.block_type or header.dtype for header in
             (headers[piece.tensor] for piece in source.pieces)}
    if len(found) > 1:
        raise _refusal(f"{name} is joined of {' and '.join(sorted(found))}, "
                       "and no tensor has two types of blocks")
    kind = found.pop() if found else "F32"
    return "" if kind in _UNPACKED else kind


def _put_packed(module: nn.Module, quantizer: Any,
                state: Mapping[str, torch.Tensor], packed: set[str]) -> None:
    """As from_single_file does."""
    keeps = getattr(module, "_keep_in_fp32_modules", None) or []
    keeps = keeps if isinstance(keeps, list) else [keeps]
    own = module.state_dict()
    quantizer.preprocess_model(model=module, device_map=None, state_dict=state,
                               keep_in_fp32_modules=keeps)
    for name in packed:
        if not set(quantizer.modules_to_not_convert).isdisjoint(name.split(".")):
            raise _refusal(f"diffusers keeps {name} in float32, and unpacks it "
                           "as it loads it")
        try:
            quantizer.check_quantized_param_shape(name, own[name], state[name])
        except ValueError as error:
            raise InvalidArgument(f"the file is another module's: {error}"
                                  ) from error
        quantizer.create_quantized_param(module, state[name], name,
                                         torch.device("meta"), dict(state))
    quantizer.postprocess_model(module)
    module.hf_quantizer = quantizer


@dataclasses.dataclass
class _OnMeta:
    """The places of weights that have no bytes yet, by their storages."""

    module: nn.Module
    places: Mapping[str, Source]
    headers: Mapping[str, FileTensor]

    def __post_init__(self) -> None:
        own: dict[str, torch.Tensor] = {
            **dict(self.module.named_parameters(remove_duplicate=False)),
            **dict(self.module.named_buffers(remove_duplicate=False))}
        self._known = {own[name].untyped_storage()._cdata: (own[name], source)
                       for name, source in self.places.items()}

    def find(self, tensor: torch.Tensor) -> Source | None:
        _, source = self._known.get(tensor.untyped_storage()._cdata,
                                    (None, None))
        if source is None or not source.pieces:
            return source
        dtype = self.headers[source.pieces[0].tensor].dtype
        if dtype == "U8":
            return source
        return _resized(source, dtype, _size(dtype), 1)


def _is_of(module: nn.Module, package: str, base: str) -> bool:
    kind = getattr(sys.modules.get(package), base, None)
    return kind is not None and isinstance(module, kind)


def _others(module: nn.Module) -> str:
    if _is_of(module, "transformers.modeling_utils", "PreTrainedModel"):
        return ("transformers unpacks a GGUF file as it loads it, so that "
                "hoistd cannot read the weights from it; "
                "from_pretrained(folder, gguf_file=...) makes the module, and "
                "hoist.attach takes it; or save_pretrained writes it as "
                "safetensors once, and hoist.load takes that folder")
    return ("hoist.load has layers for GGUF's packed weights in diffusers' "
            "models alone; Session.register has the tensors themselves")


def _refusal(why: str) -> Unimplemented:
    return Unimplemented(f"GGUF: {why}; {_INSTEAD}")
