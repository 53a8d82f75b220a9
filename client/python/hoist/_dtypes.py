"""safetensors' element types as NumPy's and PyTorch's."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from . import _c

NUMBERS: dict[str, int] = {name: getattr(_c, name) for name in (
    "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F16", "BF16",
    "F32", "F64", "C64", "C128", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2", "F4")}
NAMES = {number: name for name, number in NUMBERS.items()}
SUB_BYTE = {"F6_E2M3", "F6_E3M2", "F4"}

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16",
    "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64",
    "C64": "complex64", "C128": "complex128",
}
# Name -> (ml_dtypes' name, NumPy's type for the bits without ml_dtypes).
_ML_DTYPES = {
    "BF16": ("bfloat16", "uint16"), "F8_E4M3": ("float8_e4m3fn", "uint8"),
    "F8_E5M2": ("float8_e5m2", "uint8"), "F8_E8M0": ("float8_e8m0fnu", "uint8"),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", "uint8"),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", "uint8"),
}
_TORCH = {
    **_NUMPY, "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


@functools.lru_cache(maxsize=None)
def numpy_dtype(name: str) -> Any:
    """NumPy's type; bits if neither NumPy nor ml_dtypes has the type."""
    import numpy
    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    if name in SUB_BYTE:
        return numpy.dtype("uint8")
    ml_name, bits = _ML_DTYPES[name]
    try:
        return numpy.dtype(getattr(importlib.import_module("ml_dtypes"),
                                   ml_name))
    except (ImportError, AttributeError):
        return numpy.dtype(bits)


@functools.lru_cache(maxsize=None)
def torch_dtype(name: str) -> Any:
    """PyTorch's type; torch.uint8 for types that this torch lacks."""
    import torch
    return getattr(torch, _TORCH.get(name, "uint8"), torch.uint8)


def from_numpy(dtype: Any) -> str:
    """The name of a NumPy (or ml_dtypes) type."""
    for name, known in _NUMPY.items():
        if dtype.name == known:
            return name
    for name, (known, _) in _ML_DTYPES.items():
        if dtype.name == known:
            return name
    raise TypeError(f"hoist has no element type for {dtype}")


def from_torch(dtype: Any) -> str:
    wanted = str(dtype).removeprefix("torch.")
    for name, known in _TORCH.items():
        if wanted == known:
            return name
    raise TypeError(f"hoist has no element type for {dtype}")
