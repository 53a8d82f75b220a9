"""One forward's layers, and when each is sent, let go of and fetched.

A forward makes a Pass, each layer in it a LayerRun. Which backward is whose is
told by what is unpacked, so that passes may come back in any order, twice, or
never.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from ._pieces import Piece

_AT_ONCE = 8  # Layers that memory is leased for, where nobody knows how many.


class Schedule(Protocol):
    """Who is told that a backward has come to a run."""

    def reached(self, run: LayerRun) -> None: ...


class LayerRun:
    """What one call of a layer has saved. Handles own it; it owns nothing but
    its place in its schedule."""

    def __init__(self, schedule: Schedule, position: int) -> None:
        self._schedule = schedule
        self.position = position  # Of those of its pass.
        self._own: list[weakref.ref[Piece]] = []
        self._others: list[weakref.ref[Piece]] = []

    def add(self, piece: Piece) -> None:
        """Saved in it first; it is this run that sends it."""
        self._own.append(weakref.ref(piece))

    def need(self, piece: Piece) -> None:
        """Saved in it, but not first."""
        self._others.append(weakref.ref(piece))

    def own(self) -> list[Piece]:
        """Those that somebody needs yet, in the order they were saved in."""
        return _alive(self._own)

    def needed(self) -> list[Piece]:
        """Those of its own, and other runs'."""
        return _alive(self._others + self._own)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.own())

    def reached(self) -> None:
        """Its backward has begun, or goes on."""
        self._schedule.reached(self)


def _alive(refs: list[weakref.ref[Piece]]) -> list[Piece]:
    """Each once."""
    found = dict.fromkeys(ref() for ref in refs)
    return [piece for piece in found if piece is not None]


class Sender(Protocol):
    """What a pass uses of an Engine."""

    def send(self, run: LayerRun, expected: int) -> bool: ...

    def let_go(self, run: LayerRun) -> None: ...

    def fetch(self, run: LayerRun) -> None: ...

    def set_aside(self, run: LayerRun) -> None: ...


class Pass:
    """A forward of layers in a row, of which `window` are on the device at once.

    The run at position p is let go of when p + window begins, and fetched when
    the backward of p + window - 1 does: so a copy has window - 1 layers' time,
    both ways, and the link may be as much slower than one layer as fewer layers
    are offloaded.
    """

    def __init__(self, engine: Sender, layers: int | None, kept: int) -> None:
        """layers: that are likely to come, if that is known; kept: the last of
        them, which are not offloaded."""
        self._engine = engine
        self._layers = layers
        self._kept = kept
        self._window = max(2, kept)
        self._runs: list[weakref.ref[LayerRun]] = []
        self._let_go = 0  # Positions below it are.
        self._reached: int | None = None  # By the backward, last.
        self.sizes: list[int] = []  # Of those that have ended; bytes.

    @property
    def count(self) -> int:
        """Layers that have begun."""
        return len(self._runs)

    @property
    def has_come_back(self) -> bool:
        """A backward of it has begun."""
        return self._reached is not None

    @property
    def is_live(self) -> bool:
        """Something that it has saved may be needed yet."""
        return any(run() is not None for run in self._runs)

    def begin(self) -> LayerRun:
        run = LayerRun(self, self.count)
        self._runs.append(weakref.ref(run))
        self._let_go_below(run.position - self._window + 1)
        return run

    def is_offloaded(self, position: int) -> bool:
        return self._layers is None or position < self._layers - self._kept

    def end(self, run: LayerRun) -> bool:
        """Of a layer that has ended; False: the arena has no room for it."""
        self.sizes.append(run.nbytes)
        if not self.is_offloaded(run.position):
            return True
        left = _AT_ONCE if self._layers is None else (
            self._layers - self._kept - run.position)
        return self._engine.send(run, left)

    def runs(self) -> list[LayerRun]:
        """Those of which somebody needs something yet."""
        found = [run() for run in self._runs]
        return [run for run in found if run is not None]

    def finish(self) -> None:
        """No layer is added any more: all that is sent is let go of."""
        self._let_go_below(self.count)

    def reached(self, run: LayerRun) -> None:
        if self._reached == run.position:
            return
        self._reached = run.position
        first = max(0, run.position - self._window + 1)
        # What a graph that is retained has fetched before.
        for other in (*range(first), *range(run.position + 2, self.count)):
            self._on(other, self._engine.set_aside)
        self._let_go_below(first)
        for other in range(run.position, first - 1, -1):
            self._on(other, self._engine.fetch)

    def _let_go_below(self, position: int) -> None:
        while self._let_go < min(position, self.count):
            self._on(self._let_go, self._engine.let_go)
            self._let_go += 1

    def _on(self, position: int, do: Any) -> None:
        run = self._runs[position]()
        if run is not None:
            do(run)
