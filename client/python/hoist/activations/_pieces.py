"""Saved bytes: on the device, in flight, or on the host.

A Piece holds the saved bytes of one storage at one version, once, for all saved
tensors over it. Each of those has a Handle, which autograd keeps
instead of the tensor. Handles own pieces, and pieces own their memory on the
device and on the host; so all of it ends with the graph, with or without a
backward, and without a call.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ._copying import Copier, Mark
from ._counts import Counts
from ._layouts import Layout, aligned, bytes_of, padded
from ._memory import HostBlock


class Piece:
    """A range of a storage's bytes.

    It is in one of these places; each call names those that it may be made in:

        here      the storage that it was saved in; nothing was copied
        leaving   the same, with a copy to the host in flight
        away      on the host alone
        back      on the host, and in device memory of its own, once `came`

    Threads: one at a time, except its finalizer, which takes no lock.
    """

    def __init__(self, storage: torch.UntypedStorage, span: tuple[int, int],
                 copier: Copier, counts: Counts) -> None:
        """span: the range of its bytes that is saved."""
        self._copier = copier
        self._counts = counts
        self.here: torch.UntypedStorage | None = storage
        # A reference keeps the storage's address from being reused.
        self._known_by = StorageWeakRef(self.here)
        self.begin = aligned(span[0])
        self.end = span[1]
        self._host: tuple[HostBlock, int] | None = None
        self._left: Mark = None
        self._stream: Any = None  # The storage may be reused there.
        self._back: torch.Tensor | None = None
        self._came: Mark = None
        counts.change_live(self.nbytes)

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def is_whole(self) -> bool:
        """Here, with all its bytes: `resize_` may have freed them, to compute
        them again before the backward."""
        return self.here is not None and self.here.nbytes() >= self.end

    @property
    def is_leaving(self) -> bool:
        return self.here is not None and self._host is not None

    @property
    def is_away(self) -> bool:
        return self.here is None and self._back is None

    @property
    def block(self) -> HostBlock | None:
        """Its place on the host."""
        return None if self._host is None else self._host[0]

    def covers(self, span: tuple[int, int]) -> bool:
        return self.begin <= span[0] and span[1] <= self.end

    def widen(self, span: tuple[int, int]) -> bool:
        """Makes it cover the span too; False: it is copied already."""
        if self._host is not None:
            return False
        before = self.nbytes
        self.begin = min(self.begin, aligned(span[0]))
        self.end = max(self.end, span[1])
        self._counts.change_live(self.nbytes - before)
        return True

    def leave(self, block: HostBlock, at: int
              ) -> tuple[torch.Tensor, torch.Tensor]:
        """From here; returns source and destination. left() follows."""
        assert self.here is not None
        self._host = block, at
        return (bytes_of(self.here, self.begin, self.end), self._host_bytes())

    def left(self, mark: Mark, stream: Any) -> None:
        """mark: the end of the copy; stream: the one on which the storage may
        be reused."""
        self._left, self._stream = mark, stream

    def stay(self) -> None:
        """Leaving -> here: it was not copied, and no copy is in flight."""
        self._host = self._left = self._stream = None

    def release(self) -> None:
        """Leaving -> away; the host waits for nothing."""
        if not self.is_leaving:
            return
        self._wait_left()
        self.here = None
        self._counts.change_live(-self.nbytes)

    def fetch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """From away; returns source and destination. came() follows."""
        assert self.is_away and self._host is not None
        self._host[0].last_stream = self._copier.in_stream()
        self._back = torch.empty(self.nbytes, dtype=torch.uint8,
                                 device=self._copier.device)
        self._counts.change_live(self.nbytes)
        return self._host_bytes(), self._back

    def did_not_come(self) -> None:
        """Coming -> away, and no copy is in flight."""
        if self._back is not None:
            self._back = None
            self._counts.change_live(-self.nbytes)

    def came(self, mark: Mark, stream: Any) -> None:
        """mark: the end of the copy; stream: the one that owns the memory."""
        self._came, self._stream = mark, stream

    def set_aside(self) -> None:
        """Back -> away."""
        if self._back is None:
            return
        self._copier.wait(self._came, self._stream)
        self._back = self._came = None
        self._counts.change_live(-self.nbytes)

    def tensor(self, layout: Layout) -> torch.Tensor:
        """From any place but away: for the current stream."""
        if self.here is not None:
            return layout.over(self.here, 0)
        assert self._back is not None
        self._copier.wait(self._came)
        return layout.over(self._back.untyped_storage(), self.begin)

    def _host_bytes(self) -> torch.Tensor:
        assert self._host is not None
        block, at = self._host
        return block.bytes()[at:at + self.nbytes]

    def _wait_left(self) -> None:
        if not self._copier.is_done(self._left):
            self._copier.wait(self._left, self._stream)

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        # Copies in flight use memory that is free from here on.
        if self.is_leaving:
            self._wait_left()
        if self._back is not None and not self._copier.is_done(self._came):
            self._copier.wait(self._came, self._stream)
        if self.here is not None or self._back is not None:
            self._counts.change_live(-self.nbytes)


def room_for(pieces: list[Piece]) -> int:
    """The size of a block for them."""
    return sum(padded(piece.nbytes) for piece in pieces)


class Saver(Protocol):
    """The layer that saved a tensor."""

    def reached(self) -> None:
        """Its backward needs the tensor."""


class Handle:
    """autograd's stand-in for a tensor over a piece."""

    __slots__ = ("piece", "layout", "run")

    def __init__(self, piece: Piece, layout: Layout, run: Saver) -> None:
        self.piece = piece
        self.layout = layout
        self.run = run


class WrapperHandle:
    """autograd's stand-in for a tensor that is made of others."""

    __slots__ = ("kind", "names", "context", "size", "stride", "parts")

    def __init__(self, tensor: torch.Tensor, names: list[str], context: Any,
                 parts: list[Any]) -> None:
        """parts: its parts, by `names`: handles, and tensors that stay."""
        self.kind: Any = type(tensor)
        self.names = names
        self.context = context
        self.size, self.stride = tensor.size(), tensor.stride()
        self.parts = parts

    def put_together(self, unpack: Callable[[Any], torch.Tensor]
                     ) -> torch.Tensor:
        inner = {name: unpack(part)
                 for name, part in zip(self.names, self.parts)}
        made: torch.Tensor = self.kind.__tensor_unflatten__(
            inner, self.context, self.size, self.stride)
        return made
