"""Modules of transformers over a GGUF file, whose blocks become plain weights.

transformers unpacks the file as it loads it, in one of two ways. For some
architectures it has a quantiser with converters, as of other files. For the
others its map of names, its processor of the architecture and the gguf
package's functions take one tensor at a time. So either computes one weight
here, once for all workers. A tensor that they would not change is read as it
lies. No name, no block type and no arithmetic is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import math
import pathlib
import sys
import uuid
from typing import Any, Iterator, Mapping

import torch
from torch import nn

from .. import _dtypes
from .._errors import NotFound, Unimplemented
from ._pieces import whole
from ._quantised import Packed, unpack
from ._safetensors import FileTensor
from ._single_file import LIBRARY_ERRORS
from ._transformers import Computed, collect

_INSTEAD = ("from_pretrained(folder, gguf_file=...) makes the module, and "
            "hoist.attach takes it")


def unpack_gguf(module: Any, file: pathlib.Path,
                headers: Mapping[str, FileTensor],
                dtype: torch.dtype | None) -> Packed:
    """The module's weights, of the file's tensors.

    dtype: the weights', as from_pretrained's; None: torch's default type.

    Unimplemented: transformers does not load the architecture, or a weight of
    such blocks. NotFound: the file lacks one of a weight's tensors.
    """
    dtype = dtype or torch.get_default_dtype()
    quantizer = _quantizer(module, file, dtype)
    if quantizer is not None:
        return unpack(module, quantizer, headers)
    packed = Packed(dtype=dtype)
    known = {name: value for name, value in module.state_dict().items()
             if isinstance(value, torch.Tensor)}
    with _told(f"transformers does not load a {type(module).__name__} of it"):
        library = _Library(module, file)
        inputs = library.inputs(headers)
        # By the names that it gives the module's weights, once unpacked.
        loads, _ = collect(module, {
            name: FileTensor(_dtypes.from_torch(dtype),
                             tuple(known[name].shape))
            for name in inputs if name in known})
    for target, load in loads.items():
        if load.converter is not None:
            raise _refusal(f"transformers makes {target} of several of its own "
                           "weights")
        own = load.inputs[0][0]
        names = inputs[own]
        if len(names) == 1 and library.keeps(names[0]) and (
                headers[names[0]] == FileTensor(
                    _dtypes.from_torch(dtype),
                    tuple(known[target].shape))):
            packed.plain[target] = whole(names[0], headers[names[0]])
            continue
        unpacks = _Unpacks(
            library, target, own, {name: _type(name, headers[name])
                                   for name in names},
            dtype, _shape(known[target], [headers[name] for name in names]))
        packed.plain[target] = Computed(
            tuple(names), {target: torch.empty(
                unpacks.shape, dtype=dtype, device="meta")},
            unpacks, repr(unpacks))
    return packed


def _quantizer(module: Any, file: pathlib.Path, dtype: torch.dtype) -> Any:
    """transformers' own, which has the module's weights to make; None: for this
    architecture it has none yet."""
    if importlib.util.find_spec("transformers.quantizers.quantizer_gguf"
                                ) is None:
        return None
    transformers: Any = importlib.import_module("transformers")
    quantizers: Any = importlib.import_module(
        "transformers.quantizers.quantizer_gguf")
    with _told("transformers' quantiser cannot be used here"):
        made = quantizers.GgufHfQuantizer(transformers.GgufConfig(
            gguf_file=str(file), dequantize=True))
        made.read_header(str(file))
        if not made.supported:
            return None
        made.update_dtype(dtype)
        made.preprocess_model(model=module, dtype=dtype, device_map=None,
                              checkpoint_files=[str(file)], use_kernels=False)
    module.hf_quantizer = made
    return made


class _Library:
    """transformers' functions for one file and one module. Refers to neither.
    """

    def __init__(self, module: nn.Module, file: pathlib.Path) -> None:
        """LIBRARY_ERRORS, NotImplementedError: it does not load the file's
        architecture."""
        gguf: Any = importlib.import_module("gguf")
        unpacking: Any = importlib.import_module(
            "transformers.modeling_gguf_pytorch_utils")
        name = gguf.GGUFReader(file).fields["general.architecture"].contents()
        config = unpacking.load_gguf_checkpoint(str(file))["config"]
        self.processor = unpacking.TENSOR_PROCESSORS.get(
            name, unpacking.TensorProcessor)(config=config)
        self.names: dict[str, str] = unpacking.get_gguf_hf_weights_map(
            module, self.processor)
        kind = type(self.processor)
        said = (sys.modules["transformers"].__version__,
                importlib.metadata.version("gguf"), kind.__name__,
                sorted(config.items(), key=str))
        self._said = repr(said) if kind.__module__ == unpacking.__name__ else (
            uuid.uuid4().hex)  # Its work is unknown.

    def __repr__(self) -> str:
        """The same for libraries that compute the same, in any process."""
        return self._said

    def inputs(self, headers: Mapping[str, FileTensor]
               ) -> dict[str, list[str]]:
        """The file's tensors of each of the module's weights.

        NotFound: some of a weight's tensors are missing: it would be zeros."""
        found: dict[str, list[str]] = {}
        joined: dict[str, list[str]] = {}
        for name in headers:
            if name in self.names:
                found.setdefault(self.names[name], []).append(name)
            elif name.removesuffix(".weight") in self.names:
                joined.setdefault(self.names[name.removesuffix(".weight")],
                                  []).append(name)
        for own, names in joined.items():
            needed = {f"{name}.weight" for name, made in self.names.items()
                      if made == own}
            missing = sorted(needed - {*names})
            if missing:
                raise NotFound(f"{own} is made of {', '.join(sorted(needed))}, "
                               f"and the file lacks {', '.join(missing)}")
        return {**joined, **found}

    def keeps(self, name: str) -> bool:
        """The processor hands the tensor on, whatever it is."""
        tensor = object()
        try:
            made = self.processor.process(
                weights=tensor, name=name, tensor_key_mapping=self.names,
                parsed_parameters={"tensors": {}})
        except Exception:  # It looked at it.
            return False
        return made.weights is tensor and made.name == name


@dataclasses.dataclass(frozen=True)
class _Unpacks:
    """Computes one weight. repr() is its recipe.

    target: its name in the module. own: the library's name of it, before its
    conversions of a checkpoint. types: ggml's, of its tensors in the file."""

    library: _Library
    target: str
    own: str
    types: Mapping[str, str]
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __call__(self, tensors: Mapping[str, torch.Tensor]
                 ) -> dict[str, torch.Tensor]:
        """On the CPU. Unimplemented: the library fails, or makes another
        weight."""
        made: dict[str, dict[str, torch.Tensor]] = {"tensors": {}}
        try:
            for name, tensor in tensors.items():
                self._add(name, tensor, made)
            value = made["tensors"][self.own].to(self.dtype)
        except Exception as error:  # Any error of the library's functions.
            raise _refusal(
                f"transformers does not make {self.own} of {[*tensors]} "
                f"({type(error).__name__}: {error})") from error
        if value.shape != self.shape:
            raise _refusal(f"transformers makes {tuple(value.shape)} of "
                           f"{self.own}, and the module has {self.shape}")
        return {self.target: value}

    def _add(self, name: str, tensor: torch.Tensor,
             made: dict[str, dict[str, torch.Tensor]]) -> None:
        gguf: Any = importlib.import_module("gguf")
        names = self.library.names
        found = self.library.processor.process(
            weights=gguf.dequantize(
                tensor.cpu().view(torch.uint8).numpy(),
                gguf.GGMLQuantizationType[self.types[name]]),
            name=name, tensor_key_mapping=names, parsed_parameters=made)
        if found.name in names:
            made["tensors"][names[found.name]] = torch.from_numpy(
                found.weights.copy())


def _type(name: str, header: FileTensor) -> str:
    """ggml's type. Unimplemented: the gguf package does not unpack it."""
    gguf: Any = importlib.import_module("gguf")
    kind = header.block_type or header.dtype
    known = gguf.GGMLQuantizationType[kind]
    empty = torch.zeros(1, gguf.GGML_QUANT_SIZES[known][1], dtype=torch.uint8)
    try:
        gguf.dequantize(empty.numpy(), known)
    except NotImplementedError as error:
        raise _refusal(f"{name} is of {kind}, which the gguf package does not "
                       "unpack") from error
    return kind


def _shape(own: torch.Tensor, headers: list[FileTensor]) -> tuple[int, ...]:
    """The module's own, if the tensors have so many elements; else theirs, for
    the caller to refuse."""
    gguf: Any = importlib.import_module("gguf")
    shapes = []
    for header in headers:
        elements, size = (1, 1) if not header.block_type else (
            gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[header.block_type]])
        shapes.append((*header.shape[:-1],
                       header.shape[-1] // size * elements))
    if sum(map(math.prod, shapes)) == own.numel():
        return tuple(own.shape)
    return shapes[0]


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Turns what the library's functions raise into Unimplemented."""
    try:
        yield
    except NotFound:
        raise
    except (*LIBRARY_ERRORS, NotImplementedError) as error:
        raise _refusal(f"{what} ({type(error).__name__}: {error})") from error


def _refusal(why: str) -> Unimplemented:
    return Unimplemented(f"GGUF: {why}; {_INSTEAD}")
