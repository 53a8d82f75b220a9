"""Modules over a GGUF file: of diffusers, made by its quantiser, or of
transformers.

diffusers' own layers unpack the file's blocks in each forward. No block type and
no arithmetic is here.
"""

from __future__ import annotations

import importlib
import pathlib
import sys
from typing import Any, Mapping

import torch
from torch import nn

from .._errors import Unimplemented
from ._gguf_unpacked import unpack_gguf
from ._pieces import Piece, Source, whole
from ._quantised import Packed
from ._safetensors import FileTensor
from ._single_file import (LIBRARY_ERRORS, OnMeta, is_diffusers, is_of, named,
                           put_packed, quantizer_of)

_INSTEAD = ("have diffusers' from_single_file(..., quantization_config="
            "GGUFQuantizationConfig(...)) make the module, and hoist.attach "
            "takes it")
_UNPACKED = ("F32", "F16")  # As diffusers' load_gguf_checkpoint.


def pack_gguf(module: Any, file: pathlib.Path,
              headers: Mapping[str, FileTensor],
              dtype: torch.dtype | None) -> Packed:
    """Has diffusers' quantiser make the module its own. Its packed weights are
    GGUFParameters on the meta device, of the file's blocks. transformers'
    modules keep their layers: see unpack_gguf.

    dtype: what diffusers' layers compute in; None: float32, as
        GGUFQuantizationConfig.

    Unimplemented: the module is of neither, or diffusers makes a weight of more
    than runs of the file's blocks, or knows no such blocks; unpack_gguf's.
    """
    if is_of(module, "transformers.modeling_utils", "PreTrainedModel"):
        return unpack_gguf(module, file, headers, dtype)
    if not is_diffusers(module):
        raise Unimplemented(
            "hoist.load takes GGUF files into modules of diffusers and "
            "transformers alone; Session.register has the tensors themselves")
    packed = Packed(dtype=dtype or torch.float32)
    try:
        library: Any = importlib.import_module("diffusers.quantizers.gguf.utils")
        quantizer = quantizer_of(sys.modules["diffusers"].GGUFQuantizationConfig(
            compute_dtype=packed.dtype))
        known = library.SUPPORTED_GGUF_QUANT_TYPES
        types = importlib.import_module("gguf").GGMLQuantizationType
        sources = named(module, {name: _as_bytes(name, header)
                                 for name, header in headers.items()})
    except (*LIBRARY_ERRORS, Unimplemented) as error:
        raise _refusal(f"diffusers does not load a {type(module).__name__} of "
                       f"it ({type(error).__name__}: {error})") from error
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
    put_packed(module, quantizer, state, packed, _INSTEAD)
    packed._files = OnMeta(module, {name: _as_filed(sources[name], headers)
                                    for name in packed.targets})
    return packed


def _as_bytes(name: str, header: FileTensor) -> Source:
    """As the library sees it: packed, even if hoistd has a type for it."""
    source = whole(name, header)
    if header.dtype in (*_UNPACKED, "U8"):
        return source
    return _resized(source, "U8", 1, _size(header.dtype))


def _as_filed(source: Source, headers: Mapping[str, FileTensor]) -> Source:
    """As hoistd sees it."""
    if not source.pieces:
        return source
    dtype = headers[source.pieces[0].tensor].dtype
    return source if dtype == "U8" else _resized(source, dtype, _size(dtype), 1)


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


def _refusal(why: str) -> Unimplemented:
    return Unimplemented(f"GGUF: {why}; {_INSTEAD}")
