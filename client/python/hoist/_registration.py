"""Files for registration in hoistd, and the tensors to make from them."""

from __future__ import annotations

import ctypes as c
import dataclasses
import itertools
import os
import struct
from typing import (Any, Iterable, Iterator, Literal, Mapping, NoReturn,
                    Sequence, Union)

from . import _c
from ._errors import InvalidArgument
from ._library import READERS, Texts, choice, sized, text

Groups = Union[Literal["block", "module", "whole"],
               Mapping[str, Sequence[str]]]

_RULES = {"block": _c.GROUPS_BLOCK, "module": _c.GROUPS_MODULE,
          "whole": _c.GROUPS_WHOLE}


class Runs(tuple[str, int, int]):
    """A part of a Joined: `times` runs of a file's tensor, each of `size`
    bytes, `stride` bytes apart from start to start; the first is at `offset`.
    One worker's columns of a sharded matrix, for example.
    """

    times: int
    stride: int

    def __new__(cls, tensor: str, offset: int, size: int, times: int,
                stride: int) -> Runs:
        made = super().__new__(cls, (tensor, offset, size))
        made.times, made.stride = times, stride
        return made

    def __repr__(self) -> str:
        return f"Runs{(*self, self.times, self.stride)!r}"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclasses.dataclass(frozen=True)
class Joined:
    """A tensor that the files hold in parts: the parts' bytes, end to end, and
    the parts' type.

    shape: in elements of that type.
    parts: each a file's tensor, or (tensor, offset, size) in bytes, where size
        0 means up to the tensor's end, or Runs. A name alone is the one part.
    """

    shape: tuple[int, ...]
    parts: Union[str, Sequence[Union[str, tuple[str, int, int]]]]


class Registration:
    """The C options; keeps the referenced memory alive."""

    def __init__(self, path: str | os.PathLike[str], name: str, groups: Groups,
                 joined: Mapping[str, Joined], readers: str | None) -> None:
        self._kept: list[Any] = []
        self.options = options = sized(_c.RegisterOptions)
        options.name = text(name)
        options.path = text(path)
        options.readers = choice(READERS, "readers", readers)
        if isinstance(groups, str):
            options.grouping = choice(_RULES, "groups", groups)
        else:
            self._group(groups)
        self._join(joined)

    def _group(self, groups: Mapping[str, Sequence[str]]) -> None:
        lists = [[one] if isinstance(one, str) else one
                 for one in groups.values()]
        if not lists:
            raise InvalidArgument("groups is empty")
        tensors = self._texts([tensor for one in lists for tensor in one])
        self.options.grouping = _c.GROUPS_EXPLICIT
        self.options.groups = _packed(_c.GroupSpec, zip(
            self._texts(list(groups)).addresses,
            _starts(tensors.pointers, lists), map(len, lists)))
        self.options.group_count = len(lists)

    def _join(self, joined: Mapping[str, Joined]) -> None:
        lists = [[one.parts] if isinstance(one.parts, str) else one.parts
                 for one in joined.values()]
        numbers = [_numbers(part) for one in lists for part in one]
        if _beyond(64, itertools.chain.from_iterable(numbers)):
            _complain_of_parts(joined, lists)
        tensors = self._texts([part if isinstance(part, str) else part[0]
                               for one in lists for part in one])
        parts = _packed(_c.JoinedPart, [
            (tensor, *of) for tensor, of in zip(tensors.addresses, numbers)])
        shapes = [one.shape for one in joined.values()]
        sizes = [size for shape in shapes for size in shape]
        if _beyond(63, sizes):  # Of which ctypes would take the lowest bits.
            name, shape = next((name, shape) for name, shape in zip(
                joined, shapes) if _beyond(63, shape))
            raise InvalidArgument(
                f'joined tensor "{name}": the shape {shape} has negative '
                "sizes, or ones of more than 63 bits")
        laid_out = (c.c_int64 * len(sizes))(*sizes)
        self._kept += [parts, laid_out]
        self.options.joined = _packed(_c.JoinedTensor, zip(
            self._texts(list(joined)).addresses, map(len, shapes),
            _starts(laid_out, shapes), _starts(parts, lists), map(len, lists)))
        self.options.joined_count = len(lists)

    def _texts(self, values: Sequence[str]) -> Texts:
        made = Texts(values)
        self._kept.append(made)
        return made


def _numbers(part: str | tuple[str, int, int]) -> tuple[int, int, int, int]:
    """As in JoinedPart."""
    if isinstance(part, str):
        return 0, 0, 0, 0
    if isinstance(part, Runs):
        return part[1], part[2], part.times, part.stride
    return part[1], part[2], 0, 0


def _beyond(bits: int, values: Iterable[int]) -> bool:
    """Whether some are negative, or have more bits."""
    every = list(values)
    return bool(every) and (min(every) < 0 or max(every) >> bits > 0)


def _complain_of_parts(joined: Iterable[str], lists: Iterable[Sequence[
        str | tuple[str, int, int]]]) -> NoReturn:
    name, part, field = next(
        (name, part, field)
        for name, parts in zip(joined, lists) for part in parts
        for field, value in zip(("offset", "size", "times", "stride"),
                                _numbers(part)) if _beyond(64, [value]))
    raise InvalidArgument(f'joined tensor "{name}": the {field} of part '
                          f"{part!r} is negative, or has more than 64 bits")


def _packed(kind: type[Any], rows: Iterable[tuple[Any, ...]]) -> Any:
    """An array of these records, with pointers as addresses. A model may have
    ten thousand, and ctypes makes objects for each that Python's collector
    visits."""
    codes = (getattr(field, "_type_", "") for _, field in kind._fields_)
    layout = "".join(code if code in ("i", "L") else "P" for code in codes)
    values = list(itertools.chain.from_iterable(rows))
    count = len(values) // len(layout)
    packed = struct.pack(layout * count, *values)
    return (kind * count).from_buffer_copy(packed)


def _starts(elements: Any, lists: Iterable[Sequence[Any]]) -> Iterator[int]:
    """The address of each list's first element; they lie end to end."""
    size = c.sizeof(elements._type_)
    return itertools.accumulate((len(one) * size for one in lists),
                                initial=c.addressof(elements))
