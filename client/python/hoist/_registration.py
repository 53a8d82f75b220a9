"""Files for registration in hoistd, and the tensors to make from them."""

from __future__ import annotations

import ctypes as c
import dataclasses
import os
from typing import Any, Literal, Mapping, Sequence, Union

from . import _c
from ._errors import InvalidArgument
from ._library import READERS, choice, sized, text

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
        self.options = options = sized(_c.RegisterOptions)
        options.name = text(name)
        options.path = text(path)
        options.readers = choice(READERS, "readers", readers)
        if isinstance(groups, str):
            options.grouping = choice(_RULES, "groups", groups)
        else:
            self._group(groups)
        options.joined = _joined_tensors(joined)
        options.joined_count = len(joined)

    def _group(self, groups: Mapping[str, Sequence[str]]) -> None:
        groups = {name: [one] if isinstance(one, str) else one
                  for name, one in groups.items()}
        if not groups:
            raise InvalidArgument("groups is empty")
        self.options.grouping = _c.GROUPS_EXPLICIT
        specs = (_c.GroupSpec * len(groups))()
        for spec, (group, tensors) in zip(specs, groups.items()):
            spec.name = text(group)
            spec.tensors = (c.c_char_p * len(tensors))(
                *[text(tensor) for tensor in tensors])
            spec.tensor_count = len(tensors)
        self.options.groups = specs
        self.options.group_count = len(groups)


def _joined_tensors(joined: Mapping[str, Joined]) -> Any:
    records = (_c.JoinedTensor * len(joined))()
    for record, (name, one) in zip(records, joined.items()):
        wanted = [one.parts] if isinstance(one.parts, str) else one.parts
        parts = (_c.JoinedPart * len(wanted))()
        for part, given in zip(parts, wanted):
            tensor, offset, size = (given, 0, 0) if isinstance(
                given, str) else given
            count, stride = (given.times, given.stride) if isinstance(
                given, Runs) else (0, 0)
            if min(offset, size, count, stride) < 0:
                raise InvalidArgument(
                    f'joined tensor "{name}": part {given!r} has a negative '
                    "offset or size")
            part.tensor = text(tensor)
            part.offset_bytes = offset
            part.size_bytes = size
            part.count = count
            part.stride_bytes = stride
        record.name = text(name)
        record.rank = len(one.shape)
        record.shape = (c.c_int64 * len(one.shape))(*one.shape)
        record.parts = parts
        record.part_count = len(parts)
    return records
