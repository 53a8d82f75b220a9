"""Modules of diffusers over 8-bit floats with scales, made by its quantiser.

A weight's value is its bytes times a scale: one of the tensor, or one of each
row. Image models' files have it beside the weight. diffusers splits and joins
their fused tensors by rows, and so are the scales here. Its own layers have one
scale a row, and multiply. No arithmetic is here.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import pathlib
import sys
from typing import Any, Mapping, Sequence

import torch
from torch import nn

from .. import _dtypes
from .._errors import InvalidArgument, Unimplemented
from ._meaning import config_of
from ._pieces import Source, whole
from ._quantised import Packed
from ._safetensors import Bytes, FileTensor, Paths, read_metadata
from ._single_file import (LIBRARY_ERRORS, OnMeta, is_diffusers, named,
                           put_packed, quantizer_of)

_INSTEAD = ("write a file of the weights times their scales, and hoist.load "
            "takes that")
_SCALES = (".scale_weight", ".weight_scale")
# Of activations; diffusers' layers find these scales by themselves.
_OF_INPUTS = (".scale_input", ".input_scale")
_FORMAT = ".comfy_quant"  # A weight's format, in JSON.
_FORMATS = "_quantization_metadata"  # The same of all, in the file's metadata.
_MARK = "scaled_fp8"  # The last part of a mark's name.
# Another key of a format may change the values.
_KNOWN_KEYS = {"format", "full_precision_matrix_mult"}


def pack_scaled(module: Any, path: Paths, files: Sequence[pathlib.Path],
                headers: Mapping[str, FileTensor],
                dtype: torch.dtype | None) -> Packed | None:
    """Has diffusers' quantiser make the module its own. Its scaled weights are
    on the meta device. Their scales, four bytes a row, are read here: they are
    the module's own buffers.

    dtype: what the layers compute in; None: bfloat16, as
        BFLQuantizationConfig.

    None: no weight of the module has a scale, or it is none of diffusers'.
    Unimplemented: a used weight is no matrix of 8-bit floats with one scale, or
    one a row; or diffusers has no layer for it.
    """
    scaled = Scaled(files, headers)
    if not scaled.beside or not is_diffusers(module) or (
            config_of(path).get("quantization_config")):
        return None
    try:
        sources = named(module, scaled.weights())
        if not any(map(scaled.has, sources.values())):
            return None
        library: Any = importlib.import_module("diffusers.quantizers.bfl.utils")
        quantizer = quantizer_of(
            sys.modules["diffusers"].BFLQuantizationConfig(compute_dtype=dtype))
    except (*LIBRARY_ERRORS, Unimplemented) as error:
        raise _refusal(f"diffusers does not load a {type(module).__name__} of "
                       f"it ({type(error).__name__}: {error})") from error
    packed = Packed(dtype=quantizer.compute_dtype, _beside=scaled.beside)
    state: dict[str, torch.Tensor] = {}
    rows: dict[str, torch.Tensor] = {}
    for name, source in sources.items():
        state[name] = torch.empty(
            source.shape, dtype=_dtypes.torch_dtype(source.dtype),
            device="meta")
        if not scaled.has(source):
            packed.plain[name] = source
            continue
        _check_place(module, name, source)
        rows[name] = scaled.rows(name, source)
        state[name] = library.BFLQuantizedParameter(state[name], "fp8r",
                                                    rows[name])
        packed.targets.add(name)
    put_packed(module, quantizer, state, packed, _INSTEAD)
    for name, scale in rows.items():
        module.get_submodule(name.rpartition(".")[0]).weight_scale = scale
    packed._files = OnMeta(module, {name: sources[name] for name in rows})
    return packed


class Scaled:
    """The files' weights with scales, by their names in the files.

    beside: what a weight's value depends on, itself first. aside: all of that
        but the weights.
    """

    def __init__(self, files: Sequence[pathlib.Path],
                 headers: Mapping[str, FileTensor]) -> None:
        self._files = files
        self._headers = headers
        self._scales = {weight: name for name in headers for end in _SCALES
                        if name.endswith(end)
                        for weight in [f"{name.removesuffix(end)}.weight"]
                        if weight in headers}
        marks = [name for name in headers
                 if name.rpartition(".")[2] == _MARK]
        self.beside = {weight: tuple(one for one in (
            weight, scale, *(weight.removesuffix(".weight") + end
                             for end in (*_OF_INPUTS, _FORMAT)), *marks)
            if one in headers) for weight, scale in self._scales.items()}
        self.aside = {one for names in self.beside.values()
                      for one in names[1:]}

    def weights(self) -> dict[str, Source]:
        """All tensors of the files but those beside a weight."""
        return {name: whole(name, header) for name, header in
                self._headers.items() if name not in self.aside}

    def has(self, source: Source) -> bool:
        return any(one.tensor in self._scales for one in source.pieces)

    def rows(self, name: str, source: Source) -> torch.Tensor:
        """The scale of each of its rows. Unimplemented: pack_scaled's."""
        columns = source.shape[1]
        found = []
        for piece in source.pieces:
            if piece.tensor not in self._scales:
                raise _refusal(f"{name} is joined of weights with and without "
                               "scales")
            if piece.start % columns or piece.count % columns or (
                    math.prod(self._headers[piece.tensor].shape[1:])
                    != columns):
                raise _refusal(f"{name} has parts of {piece.tensor}'s rows")
            beside = self.checked_scale(piece.tensor)
            scale = torch.frombuffer(
                self._bytes.read(beside), dtype=_dtypes.torch_dtype(
                    self._headers[beside].dtype)).to(torch.float32)
            count = piece.count // columns
            first = piece.start // columns if scale.numel() > 1 else 0
            found.append(scale.expand(count) if scale.numel() == 1 else
                         scale[first:first + count])
        return torch.cat(found)

    def checked_scale(self, weight: str) -> str:
        """The name of a weight's: one float, or one a row. Unimplemented: there
        is more to it."""
        header, name = self._headers[weight], self._scales[weight]
        said = self._said_format(weight)
        shape = self._headers[name].shape
        dtype = _dtypes.torch_dtype(self._headers[name].dtype)
        if header.dtype != "F8_E4M3" or said not in (None, "float8_e4m3fn"):
            raise _refusal(f"{weight} is {said or header.dtype}, and hoist.load "
                           "knows scales of float8_e4m3fn")
        if math.prod(shape) not in (1, *header.shape[:1]) or (
                not dtype.is_floating_point):
            raise _refusal(f"{name} is {self._headers[name].dtype} {shape}: "
                           f"neither one float nor {header.shape[0]}, one a "
                           f"row of {weight}")
        return name

    @functools.cached_property
    def _bytes(self) -> Bytes:
        return Bytes(self._files)

    @functools.cached_property
    def _formats(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in self._files:
            said = json.loads(read_metadata(file).get(_FORMATS, "{}"))
            found |= said.get("layers", {})
        return found

    def _said_format(self, weight: str) -> str | None:
        """None: the files do not say."""
        layer = weight.removesuffix(".weight")
        try:
            said = (json.loads(self._bytes.read(layer + _FORMAT))
                    if layer + _FORMAT in self._headers else
                    self._formats.get(layer))
        except (AttributeError, TypeError, ValueError) as error:
            raise _refusal(f"{weight}'s format is no JSON: {error}") from error
        if said is None or isinstance(said, str):
            return said
        if not isinstance(said, dict) or not _KNOWN_KEYS.issuperset(said):
            raise _refusal(f"{weight}'s format is {said}, which hoist.load does "
                           "not know")
        return str(said.get("format"))


def _check_place(module: nn.Module, name: str, source: Source) -> None:
    owner, _, key = name.rpartition(".")
    layer = module.get_submodule(owner)
    if key != "weight" or type(layer) is not nn.Linear:
        raise _refusal(f"{name} has a scale, and is no linear layer's")
    if source.shape != tuple(layer.weight.shape):
        raise InvalidArgument(
            f"the file is another module's: {name} is "
            f"{tuple(layer.weight.shape)} here, {source.shape} in the file")


def _refusal(why: str) -> Unimplemented:
    return Unimplemented(f"weights with scales: {why}; {_INSTEAD}")
