"""Host memory for offloaded tensors: leased from hoistd alone.

A lease is an arena (hoist._arena); its blocks are taken and given back without
a message. References own everything: a block goes back with its last reference,
and an unwanted arena with its last block.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Callable

import torch

from .._arena import Arena, Block
from .._errors import HoistError
from ._copying import Copier
from ._parking import Parked, Parking


class _Lease:
    """An arena, closed with its last reference."""

    def __init__(self, arena: Arena, copier: Copier) -> None:
        self.arena = arena
        self._copier = copier

    def __del__(self) -> None:
        if not sys.is_finalizing():  # Else the process gives it back.
            self._copier.synchronize()
            self.arena.close()


class HostBlock:
    """A layer's bytes on the host. Its last reference gives it back, for use
    after the copies from and to it that were queued by then."""

    def __init__(self, lease: _Lease, block: Block, nbytes: int,
                 stream: int) -> None:
        """stream: the stream of copies to it; see `last_stream`."""
        self._lease: _Lease | None = lease
        self._block = block
        self.last_stream = stream  # The stream of its last copy.
        memory = (ctypes.c_uint8 * nbytes).from_address(block.address)
        self._bytes: torch.Tensor | None = torch.frombuffer(
            memory, dtype=torch.uint8)
        self.parked: Parked | None = None
        self._process = os.getpid()

    def bytes(self) -> torch.Tensor:
        """For a parked block, until drop(): waits until they are read."""
        if self.parked is not None:
            return self.parked.load()
        assert self._bytes is not None
        return self._bytes

    def drop(self) -> None:
        """The result of bytes() is no longer read."""
        if self.parked is not None:
            self.parked.drop()

    def park(self, parking: Parking) -> None:
        """All its copies have ended. If this raises, it stays there."""
        self.parked = parking.put(self.bytes())
        self._give()

    def _give(self) -> None:
        lease, self._lease, self._bytes = self._lease, None, None
        if lease is not None:
            lease.arena.give(self._block, self.last_stream)

    def __del__(self) -> None:
        # After a fork the block is the parent's.
        if not sys.is_finalizing() and os.getpid() == self._process:
            self._give()


class HostMemory:
    """Arenas, and blocks of them.

    Threads: any; requests for a lease hold the lock, and returns of blocks do
    not.
    Bounds: with `fixed`, that many bytes; else hoistd's grants.
    """

    def __init__(self, lease: Callable[[int], Arena], copier: Copier,
                 fixed: int | None) -> None:
        """lease: leases so many bytes, with hoistd's ResourceExhausted and
        Unavailable. fixed: bytes, leased at once."""
        self._lease_arena = lease
        self._copier = copier
        self._fixed = fixed
        self._lock = threading.Lock()
        self._leases: list[_Lease] = []
        self.refusal = ""  # The last one's reason; "": there was room.
        if fixed is not None:
            self._lease(fixed)

    def take(self, nbytes: int, expected: int) -> HostBlock | None:
        """A block for copies to the host; None: no room, for the reason in
        `refusal`.

        expected: likely bytes of all blocks, this one included, for the size of
            a new lease.
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
        """After a refusal, hoistd is not asked again until this call."""
        self.refusal = ""

    def shrink(self) -> None:
        """Gives arenas without blocks back."""
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
        """Of those, memory that copies at the link's rate."""
        return sum(lease.arena.stats.pinned_bytes for lease in self._leases)

    def close(self) -> None:
        """Taken blocks keep their arena."""
        with self._lock:
            leases, self._leases = self._leases, []
            self._fixed = 0  # No more leases.
        del leases

    def _lease(self, nbytes: int) -> _Lease:
        lease = _Lease(self._lease_arena(nbytes), self._copier)
        self._leases.append(lease)
        return lease
