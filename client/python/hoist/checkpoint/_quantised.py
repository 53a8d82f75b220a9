"""Modules of transformers with quantised checkpoints, made by its quantiser.

The library's quantiser replaces the factory's modules by its own. Its own
converters then make the weights from the files' tensors, which are mapped and
not read. So a weight is the library's result, and the place of its bytes tells
its file tensors. The quantisation is the library's alone: no format and no
arithmetic is here.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import math
import mmap
import pathlib
import sys
from typing import Any, Iterable, Iterator, Mapping, Protocol, Sequence

import torch
from torch import nn

from .. import _dtypes
from .._errors import NotFound, Unimplemented
from ._meaning import INSTEAD, config_of
from ._pieces import Piece, Source, whole
from ._recipes import refuse_incomplete
from ._safetensors import Bytes, FileTensor, Paths
from ._transformers import (Computed, Load, collect, library_weights,
                            quantization_config)

# Quantisers whose modules compute with the files' tensors unchanged, by test.
_PACKED = ("bitsandbytes", "compressed-tensors", "fp8", "torchao")
# Those whose converters make plain weights, if dequantize=True says so.
_UNPACKED = ("compressed-tensors", "fp8", "mxfp4")
# For one weight: values that a quantiser derives from a configuration.
MAX_OWN_BYTES = 4096


@dataclasses.dataclass
class Packed:
    """The files' tensors that hold the weights of quantised modules."""

    _files: _Places | None = None
    _beside: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict)
    targets: set[str] = dataclasses.field(default_factory=set)
    # Of the module's other weights, if the quantiser's library names them.
    plain: dict[str, Source | Computed] = dataclasses.field(
        default_factory=dict)
    # Theirs, if the caller names none.
    dtype: torch.dtype | None = None
    # What helps if a weight is in no file.
    remedy: str = "load the whole checkpoint, of this module"

    @property
    def unpacks(self) -> bool:
        """All weights are plain ones."""
        return self._files is None

    def find(self, tensor: torch.Tensor | None) -> Source | None:
        """None: its bytes are not a file's."""
        if self._files is None or tensor is None:
            return None
        return self._files.find(tensor)

    def made_of(self, tensors: Iterable[str]) -> tuple[str, ...]:
        """The file tensors of the weight that has these."""
        return tuple(dict.fromkeys(
            one for tensor in tensors
            for one in self._beside.get(tensor, (tensor,))))


class _Places(Protocol):
    def find(self, tensor: torch.Tensor) -> Source | None:
        """Where the tensor's bytes are in the files; None: nowhere."""


def quantise(module: Any, path: Paths, files: Sequence[pathlib.Path],
             dtype: torch.dtype | None) -> Any:
    """Has transformers' quantiser convert the module, if the module's
    configuration or the folder's says so; returns the quantiser, or None. Runs
    in torch's default type, as the module was made in.

    Unimplemented: the quantiser is not known here, lacks a package or a device,
    or its modules do not compute with the files' tensors unchanged.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None or not isinstance(module, library.PreTrainedModel) or (
            getattr(module, "hf_quantizer", None) is not None):
        return None
    if importlib.util.find_spec("transformers.core_model_loading") is None:
        return None  # Version 4, which does not tell a weight's inputs.
    said = quantization_config(module) or config_of(path).get(
        "quantization_config")
    if not said:
        return None
    said = copy.deepcopy(said)  # The library writes to it.
    method = _method(said)
    if method not in (*_PACKED, *_UNPACKED):
        raise Unimplemented(
            f"quantization_config: {method}: hoist.load knows "
            f"{', '.join(_PACKED)}; with dequantize=True {', '.join(_UNPACKED)}"
            f"; {INSTEAD}")
    auto = importlib.import_module("transformers.quantizers.auto")
    with _told(method, "cannot be used here"):
        quantizer = auto.AutoHfQuantizer.from_config(said, pre_quantized=True)
        unpacks = _unpacks(quantizer)
        quantizer.validate_environment(device_map=None, weights_only=True)
    _refuse_unasked(quantizer, method, unpacks)
    with _told(quantizer, "cannot be used here"):
        quantizer.preprocess_model(
            model=module, dtype=dtype or module.dtype, device_map=None,
            checkpoint_files=[str(one) for one in files], use_kernels=False)
    if hasattr(module, "ct_decompress_hook"):
        _keep_compressed(module, quantizer)
    module.hf_quantizer = quantizer
    return quantizer


def pack(module: nn.Module, quantizer: Any, files: Sequence[pathlib.Path],
         headers: Mapping[str, FileTensor]) -> Packed:
    """Makes the weights of a quantised module that are no plain tensors. Their
    bytes are the files', mapped privately, until they are unreferenced. The
    others stay on the meta device.

    A quantiser that unpacks has plain weights, computed by its converters.

    quantizer: quantise()'s. Unimplemented: as in quantise(). NotFound: the
    files lack a tensor that one of the weights is made of.
    """
    loads, _ = collect(module, headers)
    _refuse_incomplete(quantizer, loads, files, headers)
    if _unpacks(quantizer):
        return unpack(module, quantizer, headers)
    mapped = _Mapped(files, headers)
    packed = Packed(mapped)
    for load in loads.values():
        names = tuple(name for name, _ in load.inputs)
        if load.converter is None and _is_of_bits(module, load.target,
                                                  headers[names[0]]):
            # The quantiser gives them their type in its last step.
            _put(module, load.target, mapped.tensor(names[0]))
            packed.targets.add(load.target)
            packed._beside[names[0]] = names
            continue
        if len(names) == 1 or not _is_quantisers(load):
            continue  # transformers' own conversions are the Finder's.
        with _told(quantizer, f"does not make {load.target}"):
            made = load.run({name: mapped.tensor(name) for name in names})
        if not made:
            raise _refusal(quantizer, f"makes {load.target} of other bytes "
                           "than the files'")
        for target, value in made.items():
            _put(module, target, value)
        packed.targets.update(load.targets)
        packed._beside |= dict.fromkeys(names, names)
    with _told(quantizer, "does not finish"):
        quantizer.postprocess_model(module)
    for name, value in module.named_parameters():
        if value.is_meta and type(value) is not nn.Parameter:
            raise _refusal(quantizer, "does not find in the files what "
                           f"{name} is made of")
    if mapped.written():
        raise _refusal(quantizer, "writes to the weights as it loads them")
    return packed


def _unpacks(quantizer: Any) -> bool:
    return bool(getattr(quantizer.quantization_config, "dequantize", False))


def _refuse_unasked(quantizer: Any, method: str, asked: bool) -> None:
    """Packed weights stay packed, unless the caller asks for plain ones."""
    if method in _PACKED and not _unpacks(quantizer):
        return
    if not asked:
        raise _refusal(quantizer, "unpacks or repacks the weights as it loads "
                       "them: it has no kernels here that compute with the "
                       "files' bytes; dequantize=True in quantization_config "
                       "has hoist.load make plain weights, once for all "
                       "workers")
    if "dequantize" not in getattr(quantizer, "get_load_operations", dict)():
        raise _refusal(quantizer, "unpacks the weights by no converter of the "
                       "files' tensors in this version of transformers")


def _refuse_incomplete(quantizer: Any, loads: Mapping[str, Load],
                       files: Sequence[pathlib.Path],
                       headers: Mapping[str, FileTensor]) -> None:
    with _told(quantizer, "does not tell what its weights are made of"):
        refuse_incomplete(
            quantizer, _method(quantizer.quantization_config),
            {name: load for name, load in loads.items()
             if _is_quantisers(load)}, headers, Bytes(files).read)


def unpack(module: nn.Module, quantizer: Any,
           headers: Mapping[str, FileTensor]) -> Packed:
    """Plain weights, computed by the quantizer's converters. Unimplemented:
    they need more than the files' tensors."""
    with _told(quantizer, "does not tell what its weights are made of"):
        plain, refused = library_weights(module, headers)
    for name, why in refused.items():
        raise _refusal(quantizer, f"does not make {name}: {why}")
    with _told(quantizer, "does not finish"):
        quantizer.postprocess_model(module)
    return Packed(plain=plain)


def _keep_compressed(module: nn.Module, quantizer: Any) -> None:
    """compressed-tensors unpacks its modules in the first pass, and takes other
    modules' weights over. It has none where all are transformers' own."""
    if any(hasattr(one, "quantization_scheme") for one in module.modules()):
        raise _refusal(quantizer, "computes with FP8 alone "
                       "(use_optimized_inference, on a GPU), and unpacks other "
                       "weights in the first pass; dequantize=True unpacks "
                       "them at once")
    quantizer.compressor.remove_decompression_hook(module)


def _method(said: Any) -> str:
    method = (said.get("quant_method") if isinstance(said, Mapping) else
              said.quant_method)
    return str(getattr(method, "value", method))


@contextlib.contextmanager
def _told(quantizer: Any, what: str) -> Iterator[None]:
    """Turns all errors of its library into Unimplemented."""
    try:
        yield
    except NotFound:
        raise
    except Exception as error:
        raise _refusal(quantizer, f"{what} ({type(error).__name__}: {error})"
                       ) from error


def _refusal(quantizer: Any, why: str) -> Unimplemented:
    method = quantizer if isinstance(quantizer, str) else _method(
        quantizer.quantization_config)
    return Unimplemented(f"quantization_config: {method}: transformers' "
                         f"quantiser {why}; {INSTEAD}")


def _is_quantisers(load: Load) -> bool:
    return any(getattr(one, "hf_quantizer", None) is not None
               for one in getattr(load.converter, "operations", ()))


def _is_of_bits(module: nn.Module, target: str, header: FileTensor) -> bool:
    """The file has bytes for a float of one byte."""
    owner, _, key = target.rpartition(".")
    weight = getattr(module.get_submodule(owner), key)
    return (header.dtype == "U8" and weight.is_floating_point()
            and weight.itemsize == 1)


def _put(module: nn.Module, target: str, value: Any) -> None:
    """As the library does."""
    owner, _, key = target.rpartition(".")
    if not isinstance(value, nn.Parameter):
        value = nn.Parameter(value, requires_grad=value.is_floating_point())
    setattr(module.get_submodule(owner), key, value)


class _Mapped:
    """The files' bytes as tensors on the CPU: a page is read on access, and a
    write is private to its writer."""

    def __init__(self, files: Sequence[pathlib.Path],
                 headers: Mapping[str, FileTensor]) -> None:
        self._bytes = Bytes(files)
        self._headers = headers
        self._maps: dict[pathlib.Path, mmap.mmap] = {}
        self._given: dict[int, tuple[str, torch.Tensor]] = {}

    def tensor(self, name: str) -> torch.Tensor:
        header = self._headers[name]
        dtype = _dtypes.torch_dtype(header.dtype)
        path, start, end = self._bytes.place(name)
        if start == end:
            return torch.empty(header.shape, dtype=dtype)
        if path not in self._maps:
            with open(path, "rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0,
                                             access=mmap.ACCESS_COPY)
        made = torch.frombuffer(self._maps[path], dtype=dtype, offset=start,
                                count=(end - start) // dtype.itemsize)
        if header.dtype not in _dtypes.SUB_BYTE:
            made = made.reshape(header.shape)
        self._given[made.untyped_storage()._cdata] = name, made
        return made

    def find(self, tensor: torch.Tensor) -> Source | None:
        """For a tensor in a file tensor's memory, with elements of its size."""
        if tensor.is_meta:
            return None
        name, given = self._given.get(tensor.untyped_storage()._cdata,
                                      ("", None))
        if given is None or tensor.itemsize != given.itemsize or (
                not tensor.is_contiguous()):
            return None
        header = self._headers[name]
        if tensor.shape == header.shape:
            return whole(name, header)
        start = int(tensor.storage_offset() - given.storage_offset())
        return Source(header.dtype, tuple(tensor.shape), (Piece(
            name, start, math.prod(tensor.shape)),))

    def written(self) -> bool:
        return any(one._version for _, one in self._given.values())
