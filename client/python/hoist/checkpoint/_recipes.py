"""The files' tensors that one quantised weight is made of.

A weight is a set of tensors with a recipe: its data, and those beside it that
give the data its value. Each format's recipe names the set. Libraries load some
weights without one of them, as other values.
"""

from __future__ import annotations

import importlib
import json
import re
from typing import Any, Callable, Mapping

from .._errors import NotFound
from ._safetensors import FileTensor
from ._transformers import Load

Read = Callable[[str], bytes | bytearray]
# In a module, the names of one weight's tensors and their types.
_Ends = dict[str, str]

_STATE = "weight.quant_state.bitsandbytes__"
_END = re.compile(r"(.*?)\.(weight\..+|[^.]+)")
_PLAIN = ("F16", "BF16", "F32", "F64")


def refuse_incomplete(quantizer: Any, method: str, loads: Mapping[str, Load],
                      headers: Mapping[str, FileTensor], read: Read) -> None:
    """NotFound: the files lack a tensor of a quantised weight.

    loads: those of the quantizer's converters; others take one tensor each.
    read: a file tensor's bytes.
    """
    recipe = _RECIPES[method]
    for load in loads.values():
        for module, ends in _by_module(load, headers).items():
            if [*ends] == ["weight"] and ends["weight"] in _PLAIN:
                continue  # This one is not quantised.
            needed = recipe(quantizer, load, module, ends, read)
            missing = [f"{module}.{one}" for one in sorted(needed - {*ends})]
            if missing:
                raise NotFound(
                    f"{load.target} is quantised ({method}), and tensors that "
                    f"its value depends on are in none of the files: "
                    f"{', '.join(missing)}; the files hold "
                    f"{', '.join(f'{module}.{one}' for one in ends)}; load "
                    "the whole checkpoint")


def _by_module(load: Load, headers: Mapping[str, FileTensor]
               ) -> dict[str, _Ends]:
    """The inputs, by their modules in the files: experts have one each."""
    found: dict[str, _Ends] = {}
    for name, _ in load.inputs:
        parts = _END.fullmatch(name)
        if parts is not None:
            found.setdefault(parts[1], {})[parts[2]] = headers[name].dtype
    return found


def _bitsandbytes(quantizer: Any, load: Load, module: str, ends: _Ends,
                  read: Read) -> set[str]:
    if not quantizer.quantization_config.load_in_4bit:
        return {"weight", "SCB"}
    needed = {"weight", "weight.absmax", "weight.quant_map"}
    states = [one for one in ends if one.startswith(_STATE)]
    if not states:
        kind = quantizer.quantization_config.bnb_4bit_quant_type
        return {*needed, f"{_STATE}{kind}"}
    said = json.loads(bytes(read(f"{module}.{states[0]}")))
    if "nested_offset" in said:  # The scales are quantised, too.
        needed |= {"weight.nested_absmax", "weight.nested_quant_map"}
    return needed


def _compressed_tensors(quantizer: Any, load: Load, module: str, ends: _Ends,
                        read: Read) -> set[str]:
    library = importlib.import_module(
        "transformers.integrations.compressed_tensors")
    compressors = importlib.import_module("compressed_tensors.compressors")
    config = quantizer.compressor.quantization_config
    scheme = next(filter(None, (getattr(one, "scheme", None) for one in
                                load.converter.operations)), None)
    if scheme is None:
        scheme = (library.get_experts_scheme if "experts" in load.target
                  else library.get_dense_scheme)(config)
    compressor = compressors.BaseCompressor.get_value_from_registry(
        scheme.format or config.format)
    # Activations' scales have no part in a weight.
    return {one for one in compressor.compression_param_names(scheme)
            if one.startswith("weight")}


def _fp8(quantizer: Any, load: Load, module: str, ends: _Ends,
         read: Read) -> set[str]:
    return {name for one in ends if "activation" not in one
            for data in [one.removesuffix("_scale_inv")]
            for name in (data, f"{data}_scale_inv")}


def _mxfp4(quantizer: Any, load: Load, module: str, ends: _Ends,
           read: Read) -> set[str]:
    return {*load.converter.source_patterns}


def _torchao(quantizer: Any, load: Load, module: str, ends: _Ends,
             read: Read) -> set[str]:
    said = json.loads(quantizer.metadata[load.target])
    key = load.target.rpartition(".")[2]
    return {f"_{key}_{one}" for one in said["_tensor_data_names"]}


# Each: what the weight of those tensors needs.
_RECIPES: dict[str, Callable[[Any, Load, str, _Ends, Read], set[str]]] = {
    "bitsandbytes": _bitsandbytes, "compressed-tensors": _compressed_tensors,
    "fp8": _fp8, "mxfp4": _mxfp4, "torchao": _torchao}
