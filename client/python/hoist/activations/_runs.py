"""One forward's layers, and when each is sent, released and fetched.

A forward makes a Pass, each layer in it a LayerRun. Unpacked tensors tell which
pass a backward is of, so passes may come back in any order, twice, or never.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from ._pieces import Piece

_AT_ONCE = 8  # Layers per lease while their number is unknown.


class Schedule(Protocol):
    """Is told that a backward has reached a run."""

    def reached(self, run: LayerRun) -> None: ...


class LayerRun:
    """The saved tensors of one call of a layer. Handles own it; it owns nothing
    but its place in its schedule."""

    def __init__(self, schedule: Schedule, position: int) -> None:
        self._schedule = schedule
        self.position = position  # Among those of its pass.
        self._own: list[weakref.ref[Piece]] = []
        self._others: list[weakref.ref[Piece]] = []

    def add(self, piece: Piece) -> None:
        """First saved in this run, which sends it."""
        self._own.append(weakref.ref(piece))

    def need(self, piece: Piece) -> None:
        """Saved in this run, but first in another."""
        self._others.append(weakref.ref(piece))

    def own(self) -> list[Piece]:
        """Those that are still needed, in the order of their saving."""
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
    """The part of an Engine that a pass uses."""

    def send(self, run: LayerRun, expected: int) -> bool: ...

    def release(self, run: LayerRun) -> None: ...

    def fetch(self, run: LayerRun) -> None: ...

    def set_aside(self, run: LayerRun) -> None: ...


class Pass:
    """A forward of layers in a row, `window` of them on the device at once.

    The run at position p is released when p + window begins, and fetched when
    the backward of p + window - 1 begins: so a copy has the time of window - 1
    layers, both ways, and the fewer layers are offloaded, the slower the link
    may be.
    """

    def __init__(self, engine: Sender, layers: int | None, kept: int) -> None:
        """layers: their likely number, if it is known; kept: the last of them,
        which are not offloaded."""
        self._engine = engine
        self._layers = layers
        self._kept = kept
        self._window = max(2, kept)
        self._runs: list[weakref.ref[LayerRun]] = []
        self._released = 0  # Lower positions are released.
        self._reached: int | None = None  # The backward's last position.
        self.sizes: list[int] = []  # Of ended layers; bytes.

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
        """A saved tensor may still be needed."""
        return any(run() is not None for run in self._runs)

    def begin(self) -> LayerRun:
        run = LayerRun(self, self.count)
        self._runs.append(weakref.ref(run))
        self._release_below(run.position - self._window + 1)
        return run

    def is_offloaded(self, position: int) -> bool:
        return self._layers is None or position < self._layers - self._kept

    def end(self, run: LayerRun) -> bool:
        """A layer has ended; False: the arena has no room for it."""
        self.sizes.append(run.nbytes)
        if not self.is_offloaded(run.position):
            return True
        left = _AT_ONCE if self._layers is None else (
            self._layers - self._kept - run.position)
        return self._engine.send(run, left)

    def runs(self) -> list[LayerRun]:
        """Those with tensors that are still needed."""
        found = [run() for run in self._runs]
        return [run for run in found if run is not None]

    def finish(self) -> None:
        """No layer follows: releases all that are sent."""
        self._release_below(self.count)

    def reached(self, run: LayerRun) -> None:
        if self._reached == run.position:
            return
        self._reached = run.position
        first = max(0, run.position - self._window + 1)
        # A retained graph's earlier fetches.
        for other in (*range(first), *range(run.position + 2, self.count)):
            self._on(other, self._engine.set_aside)
        self._release_below(first)
        for other in range(run.position, first - 1, -1):
            self._on(other, self._engine.fetch)

    def _release_below(self, position: int) -> None:
        while self._released < min(position, self.count):
            self._on(self._released, self._engine.release)
            self._released += 1

    def _on(self, position: int, do: Any) -> None:
        run = self._runs[position]()
        if run is not None:
            do(run)
