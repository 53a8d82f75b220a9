"""Work on a few items at once, with results in order."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import os
from typing import Callable, Generator, Iterable, TypeVar

_AT_ONCE = max(1, min(4, os.cpu_count() or 1))

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(work: Callable[[_Item], _Result], items: Iterable[_Item]
             ) -> contextlib.closing[Generator[_Result, None, None]]:
    """Results, for a `with` block, after which all work has ended. Other threads
    work; the caller's takes the items, shortly before they are worked on."""
    return contextlib.closing(_results(work, items))


def _results(work: Callable[[_Item], _Result], items: Iterable[_Item]
             ) -> Generator[_Result, None, None]:
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        coming: collections.deque[concurrent.futures.Future[_Result]] = (
            collections.deque())
        try:
            for item in items:
                coming.append(pool.submit(work, item))
                if len(coming) == _AT_ONCE:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for one in coming:
                one.cancel()
