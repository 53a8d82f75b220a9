"""Saving a tensor's bytes, sending them to the host, fetching them back.

It decides nothing of when: that is a Pass's, or the caller's of hoist.compat.te.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._eager import eager
from .._saved_tensors import PASS, Pair, is_plain, push
from ._copying import Copier
from ._counts import Counts
from ._keep import is_marked
from ._layouts import Layout, padded
from ._memory import HostBlock, HostMemory
from ._parking import Parked, Parking
from ._pieces import Handle, Piece, WrapperHandle, room_for
from ._runs import LayerRun

# TransformerEngine's own modules mark what they want kept by this attribute.
_TE_MARK = "_TE_do_not_offload"


class Engine:
    """Of one Offload: what is saved, and where it is.

    Threads: any. The lock is held over calls of the driver and, where a lease
    of host memory is asked for or a block is parked, of hoistd; never over a
    wait for the GPU.
    """

    def __init__(self, copier: Copier, memory: HostMemory, parking: Parking,
                 min_bytes: int) -> None:
        self.copier = copier
        self.memory = memory
        self.parking = parking
        self.counts = Counts()
        self.lock = threading.RLock()
        self.weights: set[int] = set()  # Storages' addresses.
        self._min_bytes = min_bytes
        # By storage and version: what somebody's handle refers to.
        self._pieces: weakref.WeakValueDictionary[tuple[int, int], Piece] = (
            weakref.WeakValueDictionary())

    # What autograd calls, by way of Saving.

    def pack(self, run: LayerRun, tensor: torch.Tensor) -> Any:
        """A handle, or PASS: it is not this engine's to keep."""
        with self.lock:
            if is_traceable_wrapper_subclass(tensor):
                return self._pack_wrapper(run, tensor)
            reason = self._why_not(tensor)
            if reason:
                self.counts.keep(reason, _bytes_of(tensor))
                return PASS
            layout = Layout.of(tensor)
            return Handle(self._piece(run, tensor, layout.span()), layout, run)

    def unpack(self, packed: Any) -> torch.Tensor:
        """The tensor that was packed, for the current stream."""
        if isinstance(packed, torch.Tensor):
            return packed
        if isinstance(packed, WrapperHandle):
            return packed.put_together(self.unpack)
        piece: Piece = packed.piece
        with self.lock:
            packed.run.reached()
            if piece.is_away:
                self._fetch([piece])
            return piece.tensor(packed.layout)

    # What a schedule calls.

    def send(self, run: LayerRun, expected: int) -> bool:
        """Copies what the run has saved to the host, after what is on the
        current stream by now. False: there is no room; it stays.

        expected: layers' bytes that are likely to come with it, as a multiple
            of this one's.
        """
        with self.lock:
            self.counts.fold()
            pieces = [piece for piece in run.own()
                      if piece.is_whole and not piece.is_leaving]
            if not pieces:
                return True
            self.copier.check()
            nbytes = room_for(pieces)
            block = self.memory.take(nbytes, nbytes * max(1, expected))
            if block is None:
                self.counts.keep("arena", nbytes)
                return False
            try:
                at, copies = 0, []
                for piece in pieces:
                    copies.append(piece.leave(block, at))
                    at += padded(piece.nbytes)
                mark = self.copier.copy_out(copies)
                stream = self.copier.current()
                for piece in pieces:
                    piece.left(mark, stream)
            except BaseException:
                self.copier.synchronize()  # Some may be under way.
                for piece in pieces:
                    piece.stay()
                raise
            self.counts.moved_out += sum(piece.nbytes for piece in pieces)
            self.counts.offloaded_layers += 1
            return True

    def let_go(self, run: LayerRun) -> None:
        """Its memory on the device is free for what comes after its copy."""
        with self.lock:
            for piece in run.own():
                piece.let_go()
            self.counts.fold()

    def fetch(self, run: LayerRun) -> None:
        """Brings back what is on the host alone; what was saved last is needed
        first."""
        with self.lock:
            self._fetch([piece for piece in reversed(run.needed())
                         if piece.is_away])

    def set_aside(self, run: LayerRun) -> None:
        """Gives back the memory of what was fetched; it can be fetched again,
        as a graph that is retained needs it."""
        with self.lock:
            for piece in run.own():
                piece.set_aside()

    def park(self, run: LayerRun) -> list[Parked]:
        """Puts on hoistd's disk what the run has on the host alone; its copies
        have been made."""
        parked = []
        with self.lock:
            pieces: dict[HostBlock, list[Piece]] = {}
            for piece in run.own():
                if piece.block is not None and piece.block.parked is None:
                    pieces.setdefault(piece.block, []).append(piece)
            for block, its in pieces.items():
                if all(piece.is_away for piece in its):
                    block.park(self.parking)
                    assert block.parked is not None
                    parked.append(block.parked)
        return parked

    # Within.

    def _why_not(self, tensor: torch.Tensor) -> str:
        """Why it stays, as Counts has it; "": it may go."""
        if isinstance(tensor, nn.Parameter):
            return "weight"
        if not is_plain(tensor) or tensor.is_inference():
            return "opaque"
        if tensor.device != self.copier.device:
            return "elsewhere"
        begin, end = Layout.of(tensor).span()
        if end - begin < max(1, self._min_bytes):
            return "small"
        storage = tensor.untyped_storage()._cdata
        if storage in self.weights or isinstance(tensor._base, nn.Parameter):
            return "weight"
        marked = is_marked(storage) or hasattr(tensor, _TE_MARK)
        return "mark" if marked else ""

    def _pack_wrapper(self, run: LayerRun, tensor: torch.Tensor) -> Any:
        kind: Any = type(tensor)
        if isinstance(tensor, nn.Parameter):
            self.counts.keep("weight", _bytes_of(tensor))
            return PASS
        names, context = kind.__tensor_flatten__(tensor)
        parts = []
        for name in names:
            part = getattr(tensor, name)
            # Which object has its rows' lengths is a nested tensor's shape.
            stays = tensor.is_nested and name != "_values"
            packed = part if stays else self.pack(run, part)
            parts.append(part.detach() if packed is PASS else packed)
        if all(isinstance(part, torch.Tensor) for part in parts):
            return PASS
        return WrapperHandle(tensor, names, context, parts)

    def _piece(self, run: LayerRun, tensor: torch.Tensor,
               span: tuple[int, int]) -> Piece:
        storage = tensor.untyped_storage()
        key = storage._cdata, tensor._version
        piece = self._pieces.get(key)
        if piece is not None and (piece.covers(span) or piece.widen(span)):
            run.need(piece)
            return piece
        piece = Piece(storage, span, self.copier, self.counts)
        self._pieces[key] = piece
        run.add(piece)
        return piece

    def _fetch(self, pieces: list[Piece]) -> None:
        if not pieces:
            return
        stream = self.copier.current()
        try:
            marks = self.copier.copy_in([piece.fetch() for piece in pieces])
            for piece, mark in zip(pieces, marks):
                piece.came(mark, stream)
        except BaseException:
            self.copier.synchronize()  # Some may be under way.
            for piece in pieces:
                piece.did_not_come()
            raise
        self.counts.moved_in += sum(piece.nbytes for piece in pieces)
        # A copy of memory that is not pinned has read it by now.
        for block in {piece.block for piece in pieces}:
            if block is not None:
                block.drop()
        self.counts.fold()


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


class Saving:
    """While it is entered, what the thread saves is a run's."""

    def __init__(self, engine: Engine,
                 run_of: Callable[[], LayerRun | None]) -> None:
        """run_of: the run, asked for with each tensor; None: it is left to the
        pair around."""
        self._engine = engine
        self._run_of = run_of
        self._pair: Pair | None = None

    def enter(self) -> None:
        """FailedPrecondition: a CUDA graph is captured."""
        self._engine.copier.check()
        self._pair = push(self)

    def leave(self) -> None:
        pair, self._pair = self._pair, None  # They would keep each other.
        if pair is not None:
            pair.remove()

    @eager
    def pack(self, tensor: torch.Tensor) -> Any:
        run = self._run_of()
        return PASS if run is None else self._engine.pack(run, tensor)

    @eager
    def unpack(self, packed: Any) -> torch.Tensor:
        return self._engine.unpack(packed)
