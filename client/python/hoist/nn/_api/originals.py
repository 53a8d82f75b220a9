"""The module's own tensors from before attach, which are released once attach
has succeeded."""

from __future__ import annotations

import dataclasses
from typing import Sequence

from ..._hot import Swap
from .._tree.inventory import Stored, Weight
from .._tree.layout import GroupSpec
from .._tree.pieces import InPlaceWeight


@dataclasses.dataclass
class _Kept:
    """Of one group, or of one weight that is read in place."""

    swaps: list[Swap]  # holder[key] is the caller's own.
    stored: list[Stored]  # The stored tensors in that memory.

    def release(self) -> None:
        self.swaps = []
        for one in self.stored:
            one.tensor = None


class Originals:
    """Keeps the objects themselves, so a restore needs neither hoistd nor a
    copy.

    Threads: one at a time.
    """

    def __init__(self, specs: Sequence[GroupSpec],
                 placed: Sequence[InPlaceWeight]) -> None:
        self._groups = {spec.name: _Kept(_swaps(spec.weights), spec.stored)
                        for spec in specs}
        self._placed = [
            _Kept(_swaps([one.weight]), [one.stored]) for one in placed]

    def holds(self, group: str) -> bool:
        return group in self._groups

    @property
    def holds_placed(self) -> bool:
        """Weights that are read in place are kept, if there are any."""
        return bool(self._placed)

    def release_group(self, group: str) -> None:
        """hoistd has the group. Tensors on the meta device stay: they cost
        nothing, and hoistd has no bytes to make them of."""
        kept = self._groups[group]
        if any(not one.meta_at_first for one in kept.stored):
            del self._groups[group]
            kept.release()

    def release_placed(self) -> None:
        while self._placed:
            self._placed.pop().release()

    def release(self) -> None:
        """Releases all."""
        while self._groups:
            self._groups.popitem()[1].release()
        self.release_placed()

    def put_back(self) -> None:
        """Puts all kept tensors back into the module."""
        for kept in (*self._groups.values(), *self._placed):
            for holder, key, value in kept.swaps:
                holder[key] = value


def _swaps(weights: Sequence[Weight]) -> list[Swap]:
    return [(holder, key, holder[key]) for weight in weights
            for holder, key, _ in weight.swaps(weight.value)]
