"""Ranges of files' tensors, and their places in the results: pure arithmetic.
All numbers count elements."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Iterable, Iterator

MAX_RANGES = 1_000_000  # Of one tensor.


class Gaps(Exception):
    """Some elements have no source; their number."""

    def __init__(self, elements: int) -> None:
        super().__init__(elements)
        self.elements = elements


class Overlap(Exception):
    """Some elements have two sources."""


class TooMany(Exception):
    """More ranges than a request may have."""


@dataclasses.dataclass(frozen=True)
class FileRange:
    """`times` runs of `count` elements of a file's tensor, from its element
    `start` on, `stride` elements between first elements of runs."""

    tensor: str
    start: int
    count: int
    stride: int = 0  # 0: a single run.
    times: int = 1

    @property
    def elements(self) -> int:
        return self.count * self.times

    def runs(self) -> Iterator[FileRange]:
        for at in range(self.times):
            yield FileRange(self.tensor, self.start + at * self.stride,
                            self.count)


@dataclasses.dataclass(frozen=True)
class Copy:
    """A copy of elements from one storage to another: the same shape in both,
    each with its own offset and strides."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    source: int  # A storage's number.
    source_copies: int  # The copies into it by then.
    source_offset: int
    source_strides: tuple[int, ...]


def ranges_of_copy(copy: Copy, tensor: str) -> list[tuple[int, FileRange]]:
    """Destinations, and ranges of the source's elements; at least one. Elements
    that are adjacent on both sides are one range."""
    dims = _joined(copy)
    if dims and dims[-1][1:] == (1, 1):
        *outer, (run, _, _) = dims
    else:
        outer, run = dims, 1
    stride = times = 0
    # Adjacent in the destination, and apart in the source.
    if outer and outer[-1][1] == run <= outer[-1][2]:
        *outer, (times, _, stride) = outer
    count = 1
    for size, _, _ in outer:
        count *= size
    if count > MAX_RANGES:
        raise TooMany(f"it is made of more than {MAX_RANGES} ranges")
    found = []
    for place in itertools.product(*(range(size) for size, _, _ in outer)):
        to, start = copy.offset, copy.source_offset
        for at, (_, to_stride, from_stride) in zip(place, outer):
            to, start = to + at * to_stride, start + at * from_stride
        found.append((to, FileRange(tensor, start, run, stride, times)
                      if times else FileRange(tensor, start, run)))
    return found


def _joined(copy: Copy) -> list[tuple[int, int, int]]:
    """Size and both strides of each dimension, outermost in the destination
    first; dimensions that can be merged are."""
    dims = sorted(
        (one for one in zip(copy.shape, copy.strides, copy.source_strides)
         if one[0] != 1), key=lambda one: -one[1])
    made: list[tuple[int, int, int]] = []
    for size, to, start in dims:
        if made and made[-1][1] == size * to and made[-1][2] == size * start:
            made[-1] = (made[-1][0] * size, to, start)
        else:
            made.append((size, to, start))
    return made


def lay_end_to_end(found: Iterable[tuple[int, FileRange]]
                   ) -> list[tuple[int, FileRange]]:
    """In the order of their destinations. The last copy to exactly the same
    place wins. Overlap: destinations overlap in another way."""
    by_place: dict[int, FileRange] = {}
    for at, one in found:
        if at in by_place and by_place[at].elements != one.elements:
            raise Overlap
        by_place[at] = one
    ordered = sorted(by_place.items())
    for (at, one), (after, _) in zip(ordered, ordered[1:]):
        if at + one.elements > after:
            raise Overlap
    if len(ordered) > MAX_RANGES:
        raise TooMany(f"it is made of more than {MAX_RANGES} ranges")
    return ordered


def ranges_within(ordered: list[tuple[int, FileRange]], begin: int,
                  end: int) -> list[FileRange]:
    """The sources of [begin, end), end to end, neighbours joined. Gaps: some
    elements have no source."""
    made: list[FileRange] = []
    covered = 0
    for at, one in ordered:
        if at >= begin and at + one.elements <= end:
            covered += one.elements
            _append(made, one)
            continue
        for run in one.runs():
            first, last = max(at, begin), min(at + run.count, end)
            if first < last:
                covered += last - first
                _append(made, FileRange(run.tensor, run.start + first - at,
                                        last - first))
            at += run.count
    if covered != end - begin:
        raise Gaps(end - begin - covered)
    return made


def _append(made: list[FileRange], one: FileRange) -> None:
    last = made[-1] if made else None
    if last is not None and last.times == one.times == 1 and (
            last.tensor == one.tensor
            and last.start + last.count == one.start):
        made[-1] = FileRange(last.tensor, last.start, last.count + one.count)
    else:
        made.append(one)
