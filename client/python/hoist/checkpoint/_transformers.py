"""transformers' conversions of a checkpoint's names and tensors on loading.

Version 5 renames tensors, merges experts, and fuses and splits projections. Its
own functions tell which file tensor goes where. Its operations run unchanged,
on tensors that know the places of their elements in the files instead of their
values (_Traced). So a conversion that is unknown here is either followed or
refused, never wrong.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import logging
import math
import re
import sys
import uuid
from typing import Any, Callable, Collection, Mapping, Sequence

import torch
from torch import nn

from .. import _dtypes
from .._errors import Unimplemented
from ._pieces import Source, concatenate, reshape, split, stack, whole
from ._safetensors import FileTensor

_log = logging.getLogger("hoist.nn")  # As the rest of hoist.load.

_Found = tuple[dict[str, Source], dict[str, str]]

_WIDE = frozenset(("F16", "BF16", "F32", "F64"))
_INSTEAD = "hoist.attach takes the module once transformers has loaded it"


def library_sources(module: nn.Module, headers: Mapping[str, FileTensor],
                    packed: Collection[str] = ()) -> _Found:
    """The sources of the tensors that transformers fills, by their names in the
    module's state_dict; and for those whose conversion is more than joining
    runs of the files' tensors: name -> why, and the remedy.

    A source has the files' type, and its shape may differ from the module's:
    the caller judges both. ({}, {}) if the module is none of transformers'.
    Unimplemented: this version of it does not tell the meaning of the files'
    tensors. Reads no weight; does not import transformers for other
    modules.

    packed: names that are left out.
    """
    library = sys.modules.get("transformers.modeling_utils")
    if library is None or not isinstance(module, library.PreTrainedModel):
        return {}, {}
    version = str(sys.modules["transformers"].__version__)
    if int(version.partition(".")[0]) < 5:
        return _renamed(module, headers), {}
    try:
        return _followed(module, headers, *collect(module, headers), packed)
    except (AttributeError, ImportError, LookupError, TypeError,
            ValueError) as error:
        raise Unimplemented(
            f"transformers {version} does not say how it would load a "
            f"{type(module).__name__} ({type(error).__name__}: {error}); "
            f"{_INSTEAD}, and rename={{}} insists that the files' tensors are "
            "the module's, name for name") from error


def _renamed(module: Any, headers: Mapping[str, FileTensor]
             ) -> dict[str, Source]:
    """As in version 4, which only renames."""
    known = module.state_dict()
    prefix = f"{module.base_model_prefix}."
    fix = getattr(module, "_fix_state_dict_key_on_load", None)
    rules = getattr(module, "_checkpoint_conversion_mapping", None) or {}
    sources: dict[str, Source] = {}
    for name, tensor in headers.items():
        renamed = fix(name)[0] if fix else name
        for pattern, replacement in rules.items():
            renamed, matches = re.subn(pattern, replacement, renamed)
            if matches:
                break
        for one in (renamed, prefix + renamed, renamed.removeprefix(prefix),
                    name):
            if isinstance(known.get(one), torch.Tensor):
                sources.setdefault(one, whole(name, tensor))
                break
    return sources


def library_computations(module: nn.Module,
                         headers: Mapping[str, FileTensor],
                         names: Collection[str]) -> dict[str, Computed]:
    """Computations for those of `names` that library_sources refused, if the
    library's converters need nothing but the files' tensors."""
    return _computed(module, headers, *collect(module, headers), names)


def library_weights(module: nn.Module, headers: Mapping[str, FileTensor]
                    ) -> tuple[dict[str, Source | Computed], dict[str, str]]:
    """Of a module whose quantizer unpacks: library_sources, where those that it
    refuses are library_computations if they can. The library is asked once, as
    some quantizers add their work to its converters each time.

    Its errors are the caller's."""
    loads, quantizer = collect(module, headers)
    sources, refused = _followed(module, headers, loads, quantizer)
    computed = _computed(module, headers, loads, quantizer, refused)
    return {**sources, **computed}, {
        name: why for name, why in refused.items() if name not in computed}


def _computed(module: nn.Module, headers: Mapping[str, FileTensor],
              loads: Mapping[str, Load], quantizer: Any,
              names: Collection[str]) -> dict[str, Computed]:
    found: dict[str, Computed] = {}
    known = _tensors_of(module)
    for load in loads.values():
        if load.converter is None or not set(load.targets) & set(names):
            continue
        inputs = tuple(name for name, _ in load.inputs)
        try:
            makes = load.run({name: torch.empty(
                headers[name].shape, device="meta",
                dtype=_dtypes.torch_dtype(headers[name].dtype))
                for name in inputs})
        except Exception as error:  # Any error of the library's operations.
            _log.info("%s is not computed: %s", load.target, error)
            continue
        if all(isinstance(one, torch.Tensor) for one in makes.values()):
            computed = Computed(inputs, makes, load.values, _recipe(load))
            found |= {name: computed for name in makes.keys() & set(names)
                      if quantizer is None or not _lacks_scales(
                          _dtypes.from_torch(makes[name].dtype), known[name])}
    return found


@dataclasses.dataclass(frozen=True)
class Computed:
    """Tensors that the library computes from the files'.

    inputs: the files' tensors that it takes, by name.
    results: its results, by the module's names: shapes and types, on meta.
    run: computes them from the inputs' values, which it may write to, on
        their device.
    recipe: equal for computations with equal results from equal inputs, in any
        process.
    """

    inputs: tuple[str, ...]
    results: Mapping[str, torch.Tensor]
    run: Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
    recipe: str


@dataclasses.dataclass
class Load:
    """The inputs of one of the module's tensors, or of several that one
    converter makes."""

    module: Any
    target: str
    converter: Any  # None: the file's tensor is the module's.
    inputs: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def targets(self) -> list[str]:
        patterns = self.converter.target_patterns
        return [self.target.replace(patterns[0], one) for one in patterns]

    def run(self, tensors: Mapping[str, Any],
            step: Callable[[Any], Any] = lambda operation: operation
            ) -> dict[str, Any]:
        """The results of the library's converter, by full names."""
        converter = copy.deepcopy(self.converter)
        for name, pattern in self.inputs:
            converter.add_tensor(self.target, name, pattern, tensors[name])
        converter.operations = [step(one) for one in converter.operations]
        made = converter.convert(self.target, model=self.module,
                                 config=self.module.config)
        if isinstance(made, tuple):  # 5.0 returns its errors with it.
            made = made[0]
        return {target: value[0] if isinstance(value, list) else value
                for target, value in made.items()}

    def values(self, tensors: Mapping[str, torch.Tensor]
               ) -> dict[str, torch.Tensor]:
        """The same, of tensors with values. Unimplemented: the library fails.
        OutOfMemoryError: the tensors' device has too little."""
        try:
            return self.run(tensors)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Any error of the library's operations.
            raise Unimplemented(
                f"transformers does not make {self.target} of "
                f"{', '.join(tensors)} ({type(error).__name__}: {error}); "
                f"{_INSTEAD}") from error


def _recipe(load: Load) -> str:
    operations = load.converter.operations
    if any(type(one).__module__.partition(".")[0] != "transformers"
           for one in operations):
        return uuid.uuid4().hex  # Its work is unknown.
    config = load.module.config.to_diff_dict()
    config.pop("_name_or_path", None)
    said = repr((sys.modules["transformers"].__version__,
                 type(load.module).__name__, sorted(config.items(), key=str),
                 load.converter.target_patterns,
                 [(type(one).__name__, vars(one)) for one in operations]))
    return re.sub(r" at 0x[0-9a-f]+", "", said)


def collect(module: Any, headers: Mapping[str, FileTensor]
             ) -> tuple[dict[str, Load], Any]:
    """As version 5 (core_model_loading.convert_and_load_state_dict_in_model):
    it renames tensors in their natural order, and collects them by their new
    names. Also the quantizer that takes part, or None."""
    core = importlib.import_module("transformers.core_model_loading")
    mapping = importlib.import_module("transformers.conversion_mapping")
    quantizer = _quantizer(module)
    rules = mapping.get_model_conversion_mapping(module, None, quantizer)
    renamings = [one for one in rules if isinstance(one, core.WeightRenaming)]
    converters = [one for one in rules if isinstance(one, core.WeightConverter)]
    by_pattern = {pattern: converter for converter in converters
                  for pattern in converter.source_patterns}
    known = _tensors_of(module)
    prefix = module.base_model_prefix
    loads: dict[str, Load] = {}
    for name in sorted(headers, key=core.dot_natural_key):
        target, pattern = core.rename_source_key(name, renamings, converters,
                                                 prefix, known)
        if target not in known and name in known:  # In the module's own form.
            target, pattern = core.rename_source_key(name, [], [], prefix,
                                                     known)
        if target not in known:
            continue
        load = loads.setdefault(target, Load(
            module, target, None if pattern is None else by_pattern[pattern]))
        if load.converter is not None or not load.inputs:
            load.inputs.append((name, pattern or name))
    if quantizer is not None:  # save_pretrained reverts them.
        module._weight_conversions = [
            one for one in rules if one.was_used() and not any(
                hasattr(step, "hf_quantizer")
                for step in getattr(one, "operations", ()))]
    return loads, quantizer


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in module.state_dict().items()
            if isinstance(value, torch.Tensor)}


def _followed(module: nn.Module, headers: Mapping[str, FileTensor],
              loads: Mapping[str, Load], quantizer: Any,
              packed: Collection[str] = ()) -> _Found:
    """As in version 5, which converts the collected tensors."""
    known = _tensors_of(module)
    sources: dict[str, Source] = {}
    refused: dict[str, str] = {}
    for target, load in loads.items():
        if target in packed:
            continue
        if load.converter is None:
            name = load.inputs[0][0]
            sources[target] = whole(name, headers[name])
            continue
        try:
            sources |= _convert(load, headers)
        except _Refused as why:
            refused |= dict.fromkeys(load.targets, str(why))
    if quantizer is not None:
        refused |= _quantised(quantizer, known, sources)
    return ({name: source for name, source in sources.items()
             if name in known and name not in refused},
            {name: why for name, why in refused.items() if name in known})


def _quantizer(module: Any) -> Any:
    """The library's quantizer for the module's checkpoint, or None."""
    made = getattr(module, "hf_quantizer", None)
    config = quantization_config(module)
    if made is not None or config is None:
        return made
    auto = importlib.import_module("transformers.quantizers.auto")
    return auto.AutoHfQuantizer.from_config(config, pre_quantized=True)


def quantization_config(module: Any) -> Any:
    """The model's own, or None."""
    return getattr(module.config, "quantization_config", None) or getattr(
        module.config.get_text_config(decoder=True), "quantization_config",
        None)


def _quantised(quantizer: Any, known: Mapping[str, torch.Tensor],
               sources: Mapping[str, Source]) -> dict[str, str]:
    """Weights whose scales have no place in a module without the quantizer's
    layers: their bytes alone are not their values."""
    return {
        name: f"{source.dtype} in the files, and its scales are elsewhere: "
              f"{type(quantizer).__name__} of transformers converts it; "
              f"{_INSTEAD}"
        for name, source in sources.items()
        if name in known and _lacks_scales(source.dtype, known[name])}


def _lacks_scales(dtype: str, known: torch.Tensor) -> bool:
    """A tensor of that type is to become the module's tensor."""
    return (dtype not in _WIDE and known.is_floating_point()
            and known.itemsize > 1)


def _convert(load: Load, headers: Mapping[str, FileTensor]
             ) -> dict[str, Source]:
    """A converter's results from its collected inputs, by full names."""
    steps: list[_Step] = []

    def step(operation: Any) -> _Step:
        steps.append(_Step(operation))
        return steps[-1]

    try:
        made = load.run({name: _Traced(whole(name, headers[name]))
                         for name, _ in load.inputs}, step)
    except Exception as error:  # Some versions raise another instead.
        for one in steps:
            if one.failed is not None:
                raise _Refused(f"{one.failed}; {_INSTEAD}") from error
        raise
    for target, value in made.items():
        if not isinstance(value, _Traced):
            raise _Refused(f"what transformers makes for {target} is not made "
                           f"of the files' tensors alone; {_INSTEAD}")
    return {target: value.source for target, value in made.items()}


class _Refused(Exception):
    """A converter's work cannot be expressed in pieces."""


class _Step:
    """An operation that records its name and the reason if it fails."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation
        self.failed: str | None = None

    def convert(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._operation.convert(*args, **kwargs)
        except Exception as error:
            name = type(self._operation).__name__
            self.failed = f"transformers' {name}: {error}"
            raise


class _Traced(torch.Tensor):
    """A tensor whose elements are known by their places in the files."""

    source: Source

    @staticmethod
    def __new__(cls: type[_Traced], source: Source) -> _Traced:
        made = torch.Tensor._make_wrapper_subclass(
            cls, source.shape, dtype=_dtypes.torch_dtype(source.dtype),
            device=torch.device("meta"))
        made.source = source
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (),
            kwargs: Any = None) -> Any:
        trace = _TRACES.get(func)
        if trace is None:
            raise Unimplemented(f"{func} makes values that the files do not "
                                "have, or moves single elements")
        made = trace(*map(_untraced, args), **(kwargs or {}))
        return _Traced(made) if isinstance(made, Source) else (
            [_Traced(one) for one in made])


def _untraced(value: Any) -> Any:
    if isinstance(value, _Traced):
        return value.source
    if isinstance(value, torch.Tensor):
        raise Unimplemented("it puts other values among the files'")
    if isinstance(value, (list, tuple)):
        return [_untraced(one) for one in value]
    return value


# aten's operators on pieces; their arguments are aten's.

def _split(source: Source, size: int, dim: int = 0) -> list[Source]:
    length = source.shape[dim]
    return split(source, [min(size, length - start)
                          for start in range(0, length, size)], dim)


def _unbind(source: Source, dim: int = 0) -> list[Source]:
    return [_without(one, dim)
            for one in split(source, [1] * source.shape[dim], dim)]


def _select(source: Source, dim: int, index: int) -> Source:
    return _without(_slice(source, dim, index % source.shape[dim],
                           index % source.shape[dim] + 1), dim)


def _slice(source: Source, dim: int = 0, start: int | None = None,
           end: int | None = None, step: int = 1) -> Source:
    if step != 1:
        raise Unimplemented(f"it takes every {step}. element")
    length = source.shape[dim]
    first, last, _ = slice(start, end).indices(length)
    last = max(first, last)
    return split(source, [first, last - first, length - last], dim)[1]


def _without(source: Source, dim: int) -> Source:
    """Without a dimension, if its size is 1."""
    dim %= len(source.shape)
    if source.shape[dim] != 1:
        return source
    return reshape(source, source.shape[:dim] + source.shape[dim + 1:])


def _unsqueeze(source: Source, dim: int) -> Source:
    dim %= len(source.shape) + 1
    return reshape(source, source.shape[:dim] + (1,) + source.shape[dim:])


def _view(source: Source, shape: Sequence[int]) -> Source:
    rest = math.prod(size for size in shape if size != -1)
    return reshape(source, [source.elements // rest if size == -1 else size
                            for size in shape])


def _permute(source: Source, dims: Sequence[int]) -> Source:
    dims = [dim % len(source.shape) for dim in dims]
    long = [dim for dim in dims if source.shape[dim] != 1]
    if long != sorted(long):
        raise Unimplemented("it moves single elements")
    return reshape(source, [source.shape[dim] for dim in dims])


def _transpose(source: Source, dim0: int, dim1: int) -> Source:
    dims = list(range(len(source.shape)))
    dims[dim0], dims[dim1] = dims[dim1], dims[dim0]
    return _permute(source, dims)


def _same(source: Source, **_: Any) -> Source:
    return source


_aten = torch.ops.aten
_TRACES: dict[Any, Callable[..., Source | list[Source]]] = {
    _aten.alias.default: _same,
    _aten.cat.default: lambda sources, dim=0: concatenate(sources, dim),
    _aten.clone.default: _same,
    _aten.detach.default: _same,
    _aten.permute.default: _permute,
    _aten.select.int: _select,
    _aten.slice.Tensor: _slice,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: lambda source, sizes, dim=0: split(
        source, sizes, dim),
    _aten.squeeze.dim: _without,
    _aten.stack.default: stack,
    _aten.transpose.int: _transpose,
    _aten.unbind.int: _unbind,
    _aten.unsqueeze.default: _unsqueeze,
    _aten.view.default: _view,
}
