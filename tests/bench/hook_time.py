"""What hoist's hooks take of a pass."""

from __future__ import annotations

import collections
import gc
import os
import sys
import time
from typing import Any, Callable

import hoist
from hoist import _hot
from hoist._plan import Plan
from hoist.nn._run import hooks

HERE = os.path.dirname(hoist.__file__)
CALLS = 1000  # Of nothing, to learn what a timer takes.


class HookTime:
    """Seconds in hoist's hooks of groups, but for what calls into libhoist take;
    those; and in the hooks of a pass: without the timers' own."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # Versions before have no fronts.
        fronts = [getattr(_hot.fast(), name) for name in ("Entry", "Exit")
                  if hasattr(_hot.fast(), name)]
        self._books = [*((one, "__call__", "group")
                         for one in (hooks.Begin, hooks.End, *fronts)),
                       (hooks.BeginPass, "__call__", "pass"),
                       (hooks.EndPass, "__call__", "pass"),
                       *((plan, name, name[1:]) for plan in gc.get_objects()
                         if type(plan) is Plan for name in ("_stage", "_done"))]
        self._within = ""  # The book of the hook that runs.
        self._alone = self._nested = 0.0  # A timer's own, in the books.
        self._begin()
        inner = self._timed("inner", lambda *_: 0)
        self._timed("outer", lambda: [inner(1, 2, 3) for _ in range(CALLS)])()
        self._alone = self._seconds["inner"] / CALLS
        self._nested = self._seconds["outer"] / CALLS

    def _begin(self) -> None:
        self._seconds: dict[str, float] = collections.defaultdict(float)

    def seconds(self, book: str) -> float:
        """Of "group" or "pass": hooks; of "stage" or "done": libhoist's calls."""
        return self._seconds[book]

    def __enter__(self) -> HookTime:
        self._begin()
        self._before = [(of, name, getattr(of, name))
                        for of, name, _ in self._books]
        for of, name, book in self._books:
            setattr(of, name, self._timed(book, getattr(of, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for of, name, call in self._before:
            setattr(of, name, call)

    def _timed(self, book: str, call: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            around, self._within = self._within, book
            begin = self._clock()
            try:
                return call(*args, **kwargs)
            finally:
                took = self._clock() - begin
                self._within = around
                self._seconds[book] += took - self._alone
                if around:
                    self._seconds[around] -= took + self._nested

        return timed


def frames(work: Callable[[], object]) -> int:
    """hoist's Python functions that the work calls."""
    found = 0

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal found
        found += event == "call" and frame.f_code.co_filename.startswith(HERE)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found
