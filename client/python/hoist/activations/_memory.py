"""Host memory for what is offloaded: leased from hoistd, and from nowhere else.

What is leased is an arena (hoist._arena), of which blocks are taken and given
back without a message. Everything is owned by whoever refers to it: a block
goes back with its last reference, and an arena, once it is not wanted any more,
with its last block.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any, Callable, Protocol

import torch

from .._errors import HoistError
from ._copying import Copier
from ._parking import Parked, Parking


class ArenaBlock(Protocol):
    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class ArenaStats(Protocol):
    @property
    def bytes(self) -> int: ...

    @property
    def pinned_bytes(self) -> int: ...

    @property
    def blocks(self) -> int: ...


class ArenaLike(Protocol):
    """What is used of hoist._arena.Arena."""

    @property
    def stats(self) -> ArenaStats: ...

    def take(self, nbytes: int, stream: int = 0) -> Any: ...

    def give(self, block: Any, stream: int = 0) -> None: ...

    def close(self) -> None: ...


class _Lease:
    """An arena, closed with its last reference."""

    def __init__(self, arena: ArenaLike, copier: Copier) -> None:
        self.arena = arena
        self._copier = copier

    def __del__(self) -> None:
        if not sys.is_finalizing():  # Else the process gives it back.
            self._copier.synchronize()
            self.arena.close()


class HostBlock:
    """A layer's bytes on the host; given back with the last reference, for
    whoever comes after what was copied from and to it by then."""

    def __init__(self, lease: _Lease, block: ArenaBlock, nbytes: int,
                 stream: int) -> None:
        """stream: what it is copied to on; see `last_stream`."""
        self._lease: _Lease | None = lease
        self._block = block
        self.last_stream = stream  # What its last copy was put on.
        memory = (ctypes.c_uint8 * nbytes).from_address(block.address)
        self._bytes: torch.Tensor | None = torch.frombuffer(
            memory, dtype=torch.uint8)
        self.parked: Parked | None = None
        self._process = os.getpid()

    def bytes(self) -> torch.Tensor:
        """Of one that is parked, until drop(): waits until they are read."""
        if self.parked is not None:
            return self.parked.load()
        assert self._bytes is not None
        return self._bytes

    def drop(self) -> None:
        """What bytes() gave is not read any more."""
        if self.parked is not None:
            self.parked.drop()

    def park(self, parking: Parking) -> None:
        """Its copies have been made, and none is under way. It stays where it
        is if that raises."""
        self.parked = parking.put(self.bytes())
        self._give()

    def _give(self) -> None:
        lease, self._lease, self._bytes = self._lease, None, None
        if lease is not None:
            lease.arena.give(self._block, self.last_stream)

    def __del__(self) -> None:
        # In the child of a fork the block is its parent's.
        if not sys.is_finalizing() and os.getpid() == self._process:
            self._give()


class HostMemory:
    """Arenas, and blocks of them.

    Threads: any; a lease is asked for under the lock, a block is not given back
    under it.
    Bounds: with `fixed`, that many bytes; else what hoistd grants.
    """

    def __init__(self, lease: Callable[[int], ArenaLike], copier: Copier,
                 fixed: int | None) -> None:
        """lease: of so many bytes; ResourceExhausted and Unavailable are
        hoistd's. fixed: bytes, leased at once."""
        self._lease_arena = lease
        self._copier = copier
        self._fixed = fixed
        self._lock = threading.Lock()
        self._leases: list[_Lease] = []
        self.refusal = ""  # Why there was no room, last; "": there was.
        if fixed is not None:
            self._lease(fixed)

    def take(self, nbytes: int, expected: int) -> HostBlock | None:
        """A block that copies to the host may fill; None: no room, `refusal`
        says why.

        expected: bytes that are likely to be taken beside it, this block
            included, if there is a new lease.
        """
        stream = self._copier.out_stream()
        with self._lock:
            for lease in self._leases:
                try:
                    block = lease.arena.take(nbytes, stream)
                except HoistError as full:
                    if self._fixed is not None:
                        self.refusal = str(full)
                    continue
                return HostBlock(lease, block, nbytes, stream)
            if self._fixed is not None or self.refusal:
                return None
            for wanted in dict.fromkeys((max(expected, nbytes), nbytes)):
                try:
                    lease = self._lease(wanted)
                except HoistError as refusal:
                    self.refusal = str(refusal)
                    continue
                self.refusal = ""
                block = lease.arena.take(nbytes, stream)
                return HostBlock(lease, block, nbytes, stream)
            return None

    def ask_again(self) -> None:
        """After a refusal hoistd is asked no more until this is called."""
        self.refusal = ""

    def shrink(self) -> None:
        """Gives arenas back that no block is in."""
        if self._fixed is not None:
            return
        with self._lock:
            empty = [lease for lease in self._leases
                     if lease.arena.stats.blocks == 0]
            self._leases = [lease for lease in self._leases
                            if lease not in empty]
        del empty

    @property
    def leased_bytes(self) -> int:
        return sum(lease.arena.stats.bytes for lease in self._leases)

    @property
    def pinned_bytes(self) -> int:
        """Of those, what the device copies from and to at the link's rate."""
        return sum(lease.arena.stats.pinned_bytes for lease in self._leases)

    def close(self) -> None:
        """Blocks that are still taken keep their arena."""
        with self._lock:
            leases, self._leases = self._leases, []
            self._fixed = 0  # No more of them.
        del leases

    def _lease(self, nbytes: int) -> _Lease:
        lease = _Lease(self._lease_arena(nbytes), self._copier)
        self._leases.append(lease)
        return lease
