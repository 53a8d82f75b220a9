"""Counts of an Offload, and its statistics."""

from __future__ import annotations

import collections
import dataclasses
from typing import Mapping

from ._memory import HostMemory
from ._parking import Parking

# Reasons why a saved tensor stays on the device.
REASONS = {
    "last": "of the last layers, which keep_last or the budget has there",
    "between": "after the last layer; its backward comes first",
    "small": "below min_bytes",
    "weight": "a parameter or a buffer, or a view of one",
    "keep": "saved under hoist.keep(), or within a module of skip=",
    "mark": "its memory is marked by hoist.mark_keep",
    "elsewhere": "on another device",
    "opaque": "no strided memory, nor a wrapper of tensors that have it",
    "arena": "no room in the arena",
}


@dataclasses.dataclass(frozen=True)
class OffloadStats:
    """Facts and counts of an Offload; bytes unless named otherwise."""

    passes: int  # Forwards with gradients.
    layers: int  # Of the last whole pass.
    offloaded_layers: int  # Of those, since the beginning: sent to the host.
    moved_out_bytes: int  # Copied to the host.
    moved_in_bytes: int  # Copied back.
    live_bytes: int  # Of layers' saved tensors, on the device now.
    peak_bytes: int  # The maximum of live_bytes.
    arena_bytes: int  # Of host memory, leased from hoistd.
    pinned_bytes: int  # Of those: memory that copies at the link's rate by now.
    parked_bytes: int  # On hoistd's disk now; see Offload.park.
    kept_bytes: Mapping[str, int]  # By the reason to stay; see REASONS.
    why_no_room: str  # The last refusal of hoistd, or the arena; "" if none.


class Counts:
    """Sums. Finalizers, which run at any time, add to them, and so take no
    lock: a deque's append is atomic, and readers add it up.

    Threads: any for `change_live`; the rest one at a time.
    """

    def __init__(self) -> None:
        self._changes: collections.deque[int] = collections.deque()
        self._live = self._peak = 0
        self.passes = 0
        self.offloaded_layers = 0
        self.moved_out = self.moved_in = 0
        self.kept: collections.Counter[str] = collections.Counter()

    def change_live(self, nbytes: int) -> None:
        self._changes.append(nbytes)

    def fold(self) -> None:
        while self._changes:
            self._live += self._changes.popleft()
            self._peak = max(self._peak, self._live)

    def keep(self, reason: str, nbytes: int) -> None:
        assert reason in REASONS
        if nbytes:
            self.kept[reason] += nbytes

    def told(self, layers: int, memory: HostMemory, parking: Parking
             ) -> OffloadStats:
        self.fold()
        return OffloadStats(
            passes=self.passes, layers=layers,
            offloaded_layers=self.offloaded_layers,
            moved_out_bytes=self.moved_out, moved_in_bytes=self.moved_in,
            live_bytes=self._live, peak_bytes=self._peak,
            arena_bytes=memory.leased_bytes, pinned_bytes=memory.pinned_bytes,
            parked_bytes=parking.nbytes,
            kept_bytes=dict(self.kept), why_no_room=memory.refusal)
