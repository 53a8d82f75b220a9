"""Traces which elements of the files an engine's loading code puts where.

The code runs with meta tensors for the files' ones. torch itself makes their
views, with storage, offset and strides. So a copy from one view to another
tells each element's source, without a byte. Results other than copies
(arithmetic, another type) are not the files' values, and neither are copies of
those.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Iterator, Mapping, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _dtypes
from .._eager import eager
from ..checkpoint import FileTensor
from ._meta import storage_id
from ._ranges import (Copy, FileRange, Gaps, Overlap, TooMany, lay_end_to_end,
                      ranges_of_copy, ranges_within)

_aten = torch.ops.aten
_SAME_ELEMENTS = (_aten.clone.default, _aten._to_copy.default,
                  _aten.lift_fresh_copy.default)
_FILLS = (_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default)


class Untraceable(Exception):
    """A tensor's values are no copy of the files' elements; says why."""


@dataclasses.dataclass
class _Storage:
    """The sources of one storage's elements."""

    keep: torch.UntypedStorage  # Its number is reused once it is gone.
    dtype: torch.dtype
    file: str | None = None  # It is this tensor of the files, contiguous.
    why: str | None = None   # Its elements are computed.
    copies: list[Copy] = dataclasses.field(default_factory=list)  # In order.


class Trace(TorchDispatchMode):
    """For a `with` block in which the loading code runs.

    Threads: the one that entered it. If the code reads values, which are not
    there, its exception leaves the block.
    """

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, _Storage] = {}

    def file_tensor(self, name: str, tensor: FileTensor) -> torch.Tensor:
        """One of the files' tensors, for the loading code."""
        dtype = _dtypes.torch_dtype(tensor.dtype)
        if tensor.dtype in _dtypes.SUB_BYTE:
            raise Untraceable(f'"{name}" has elements of less than a byte')
        made = torch.empty(tensor.shape, dtype=dtype, device="meta")
        self._known(made).file = name
        return made

    def was_written(self, tensor: torch.Tensor) -> bool:
        """Whether the code put anything into its storage, or in its place."""
        return storage_id(tensor) in self._storages

    @property
    def written(self) -> frozenset[int]:
        """Storages that the code has written to, and the files'; their numbers
        are unique while this lives."""
        return frozenset(self._storages)

    def ranges_of(self, tensor: torch.Tensor) -> list[FileRange]:
        """Of its elements, row-major. Untraceable: there are no such ranges."""
        if not tensor.is_contiguous():
            raise Untraceable(f"it has the strides {tuple(tensor.stride())}")
        first = int(tensor.storage_offset())
        known = self._storages.get(storage_id(tensor))
        if known is not None and known.dtype != tensor.dtype:
            raise Untraceable(f"it has the bytes of {known.dtype} as "
                              f"{tensor.dtype}")
        try:
            return self._ranges(storage_id(tensor), first,
                                first + tensor.numel())
        except Gaps as gaps:
            raise Untraceable(
                f"{gaps.elements} of its {tensor.numel()} elements come from "
                "no file") from None
        except Overlap:
            raise Untraceable("its elements are written more than once"
                              ) from None
        except TooMany as error:
            raise Untraceable(str(error)) from None

    def _ranges(self, number: int, begin: int, end: int,
                copies: int | None = None) -> list[FileRange]:
        """Of the storage after so many copies; None: after all."""
        known = self._storages.get(number)
        if known is None:
            raise Gaps(end - begin)
        if known.why is not None:
            raise Untraceable(known.why)
        if known.file is not None:
            return [FileRange(known.file, begin, end - begin)] * (end > begin)
        written = known.copies[:copies]
        missing = end - begin - sum(math.prod(one.shape) for one in written)
        if missing > 0:  # Known without a list of ranges, which may be long.
            raise Gaps(missing)
        found: list[tuple[int, FileRange]] = []
        for copy in written:
            source = self._storages[copy.source]
            if source.why is not None:
                raise Untraceable(source.why)
            for at, one in ranges_of_copy(copy, source.file or ""):
                if source.file is not None:
                    found.append((at, one))
                    continue
                for run in one.runs():
                    for part in self._ranges(copy.source, run.start,
                                             run.start + run.count,
                                             copy.source_copies):
                        found.append((at, part))
                        at += part.elements
        return ranges_within(lay_end_to_end(found), begin, end)

    def _known(self, tensor: torch.Tensor) -> _Storage:
        number = storage_id(tensor)
        if number not in self._storages:
            self._storages[number] = _Storage(tensor.untyped_storage(),
                                              tensor.dtype)
        return self._storages[number]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch imports its compiler at the first operator, only to keep this
        from being compiled. That takes longer than all else; @eager does it."""
        return False

    @eager
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.copy_.default:
            return self._copied(args[0], args[1])
        if not any(map(self._is_ours, _tensors((args, kwargs)))):
            made = func(*args, **kwargs)
            for one in _tensors(made):
                if one.is_meta and not _is_empty(func):
                    self._known(one)  # As torch.zeros makes it.
            return made
        if func in _FILLS:
            return self._filled(args[0])
        if func is _aten._local_scalar_dense.default:
            raise Untraceable("its loading code looks at values")
        if func is _aten._to_copy.default:  # Its device does not matter.
            kwargs = {**kwargs, "device": torch.device("meta")}
            kwargs.pop("pin_memory", None)
        made = func(*args, **kwargs)
        self._note(func, args, kwargs, made)
        return made

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        return tensor.is_meta or storage_id(tensor) in self._storages

    def _copied(self, to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if not self._is_ours(source):
            if not self._is_ours(to):
                made: torch.Tensor = _aten.copy_.default(to, source)
                return made
            if to.numel():
                self._spoil(to, "it is given values that are not the files'")
            return to
        self._note_copy(to, source.expand(to.shape))
        return to

    def _note_copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        known = self._known(to)
        if not to.numel():
            return
        had = self._known(source)
        if known.file is not None:
            known.why = "its loading code writes to the files' tensors"
        elif not to.dtype == source.dtype == known.dtype == had.dtype:
            known.why = f"the files have {had.dtype}, and it is {to.dtype}"
        else:
            known.copies.append(Copy(
                int(to.storage_offset()), tuple(to.shape), tuple(to.stride()),
                storage_id(source), len(had.copies),
                int(source.storage_offset()), tuple(source.stride())))

    def _filled(self, to: torch.Tensor) -> torch.Tensor:
        known = self._known(to)
        if to.numel() and (known.copies or known.file):
            known.why = "some of its elements are filled with a number"
        return to

    def _spoil(self, tensor: torch.Tensor, why: str) -> None:
        self._known(tensor).why = why

    def _note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Notes the outputs of an operator, and its writes."""
        before = {storage_id(one) for one in _tensors((args, kwargs))}
        for one in _written_by(func, args, kwargs):
            self._spoil(one, f"{func} computes it")
        for one in _tensors(made):
            if storage_id(one) in before:
                continue  # A view, or an argument that was written to.
            if func in _SAME_ELEMENTS and one.shape == args[0].shape:
                self._note_copy(one, args[0])
            elif func in (_aten.cat.default, _aten.stack.default):
                self._note_joined(func, one, args)
            elif not _is_empty(func):
                self._spoil(one, f"{func} computes it")

    def _note_joined(self, func: Any, made: torch.Tensor, args: Any) -> None:
        dim, at = (args[1] if len(args) > 1 else 0), 0
        for one in args[0]:
            if func is _aten.stack.default:
                one = one.unsqueeze(dim)
            size = one.shape[dim]
            self._note_copy(made.narrow(dim, at, size), one)
            at += size


@functools.cache  # There are few operators, and schemas are slow to read.
def _is_empty(func: Any) -> bool:
    """Whether the operator's outputs have no values."""
    return str(func._schema.name).startswith(("aten::empty", "aten::new_empty"))


def _written_by(func: Any, args: Sequence[Any],
                kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The arguments that an operator writes to, by its schema."""
    for at, name in _places_written_by(func):
        yield from _tensors(args[at] if at < len(args) else kwargs.get(name))


@functools.cache
def _places_written_by(func: Any) -> list[tuple[int, str]]:
    return [(at, one.name) for at, one in enumerate(func._schema.arguments)
            if one.alias_info is not None and one.alias_info.is_write]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Operators' arguments and results have tensors in tuples, lists and
    dictionaries alone; torch's own walk over trees takes far longer."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for one in tree:
            yield from _tensors(one)
    elif isinstance(tree, dict):
        yield from _tensors(tuple(tree.values()))
