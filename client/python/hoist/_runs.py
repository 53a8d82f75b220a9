"""Neighbours, in runs of about equal bytes."""

from __future__ import annotations

from typing import Callable, Sequence, TypeVar

_T = TypeVar("_T")


def runs_of(items: Sequence[_T], nbytes: Callable[[_T], int], most: int
            ) -> list[list[_T]]:
    """At most so many runs, in order. Each has 1 / most of the bytes or more."""
    least = sum(map(nbytes, items)) // most
    runs: list[list[_T]] = []
    size = least
    for item in items:
        if size >= least:
            runs.append([])
            size = 0
        runs[-1].append(item)
        size += nbytes(item)
    if len(runs) > 1 and size < least:
        runs[-2:] = [runs[-2] + runs[-1]]
    return runs
