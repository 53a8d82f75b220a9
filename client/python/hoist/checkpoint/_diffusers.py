"""Modules of diffusers with quantised checkpoints, made by its quantiser.

As in _quantised: the library's own quantiser replaces the layers, and makes
their weights from the files' tensors, which are mapped and not read.
"""

from __future__ import annotations

import copy
import importlib
import json
import pathlib
from typing import Any, Iterable, Mapping, Sequence

import torch
from torch import nn

from .._errors import NotFound, Unimplemented
from ._meaning import INSTEAD, config_of
from ._quantised import Packed, _Mapped
from ._recipes import refuse_incomplete
from ._safetensors import Bytes, FileTensor, Paths
from ._single_file import is_diffusers
from ._transformers import Load

# Quantisers whose modules compute with the files' tensors unchanged, by test.
_PACKED = ("bitsandbytes", "torchao")


def pack_diffusers(module: Any, path: Paths, files: Sequence[pathlib.Path],
                   headers: Mapping[str, FileTensor],
                   dtype: torch.dtype | None) -> Packed | None:
    """Has diffusers' quantiser make the module its own, if the module's
    configuration or the folder's says so. The bytes of the weights are the
    files', mapped privately, until they are unreferenced.

    dtype: of the other weights; None: the quantiser's choice.

    None: nothing is said, or the module is none of diffusers'. NotFound: the
    files lack a tensor that one of the weights is made of. Unimplemented: the
    quantiser is not known, cannot be used here, or makes other bytes.
    """
    if not is_diffusers(module):
        return None
    said = module.config.get("quantization_config") or config_of(path).get(
        "quantization_config")
    if not said:
        return None
    method = str(dict(said).get("quant_method"))
    if method not in _PACKED:
        raise _refusal(method, "is not known to hoist.load, which knows "
                       f"{', '.join(_PACKED)}")
    mapped = _Mapped(files, headers)
    packed = Packed(mapped)
    try:
        _pack(module, _quantizer(copy.deepcopy(said)), method, files, headers,
              dtype, mapped, packed)
    except NotFound:
        raise
    except Exception as error:  # Any error of the library's.
        raise _refusal(method, f"does not load it ({type(error).__name__}: "
                       f"{error})") from error
    if mapped.written():
        raise _refusal(method, "writes to the weights as it loads them")
    return packed


def _quantizer(said: Any) -> Any:
    quantizers: Any = importlib.import_module("diffusers.quantizers")
    made = quantizers.DiffusersAutoQuantizer.from_config(
        said, pre_quantized=True)
    made.validate_environment(device_map=None)
    return made


def _pack(module: Any, quantizer: Any, method: str,
          files: Sequence[pathlib.Path], headers: Mapping[str, FileTensor],
          dtype: torch.dtype | None, mapped: _Mapped, packed: Packed) -> None:
    """As the library's from_pretrained."""
    packed.dtype = quantizer.update_torch_dtype(dtype)
    quantizer.maybe_update_loaded_keys([*headers], [str(one) for one in files])
    quantizer.preprocess_model(
        model=module, device_map=None, keep_in_fp32_modules=[
            *(getattr(module, "_keep_in_fp32_modules", None) or ())])
    loads = {name: _load(module, name, headers)
             for name in _quantised(module, quantizer)}
    refuse_incomplete(quantizer, method, loads, headers, Bytes(files).read)
    state = quantizer.maybe_update_state_dict(
        {name: mapped.tensor(name) for name in headers})
    for name, load in loads.items():
        value = state[name]
        if value.is_floating_point():
            value = value.to(packed.dtype)
        if not quantizer.check_if_quantized_param(
                module, value, name, state, param_device="cpu"):
            raise ValueError(f"{name} is not to be quantised")
        quantizer.create_quantized_param(
            module, value, name, torch.device("cpu"), state,
            unexpected_keys=None, dtype=packed.dtype)
        names = tuple(one for one, _ in load.inputs)
        packed.targets.add(name)
        packed._beside |= dict.fromkeys(names, names)
    quantizer.postprocess_model(module)
    module.hf_quantizer = quantizer


def _quantised(module: nn.Module, quantizer: Any) -> Iterable[str]:
    """The weights that are no plain tensors."""
    said = getattr(quantizer, "metadata", None)
    if said:  # torchao's, which names the parts of each.
        return [name for name in json.loads(said["tensor_names"])
                if "_tensor_data_names" in json.loads(said[name])]
    return [name for name, value in module.named_parameters()
            if type(value) is not nn.Parameter]


def _load(module: nn.Module, name: str,
          headers: Mapping[str, FileTensor]) -> Load:
    owner = name.rpartition(".")[0]
    return Load(module, name, None, [
        (one, one) for one in headers
        if one.startswith(f"{owner}.") and one != f"{owner}.bias"])


def _refusal(method: str, why: str) -> Unimplemented:
    return Unimplemented(f"quantization_config: {method}: diffusers' quantiser "
                         f"{why}; {INSTEAD}")
