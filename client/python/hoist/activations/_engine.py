"""Saves a tensor's bytes, sends them to the host, and fetches them back.

A Pass, or the caller of hoist.compat.te, decides when.
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

# TransformerEngine's modules mark tensors that must stay by this attribute.
_TE_MARK = "_TE_do_not_offload"


class Engine:
    """The saved tensors of one Offload, and their places.

    Threads: any. The lock is held over calls of the driver, and of hoistd for a
    lease of host memory or to park a block; never over a wait for the GPU.
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
        # By storage and version: pieces with a live handle.
        self._pieces: weakref.WeakValueDictionary[tuple[int, int], Piece] = (
            weakref.WeakValueDictionary())

    # For autograd, through Saving.

    def pack(self, run: LayerRun, tensor: torch.Tensor) -> Any:
        """A handle, or PASS: the tensor is not this engine's."""
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

    # For a schedule.

    def send(self, run: LayerRun, expected: int) -> bool:
        """Copies the run's saved tensors to the host, after the work queued on
        the current stream so far. False: there is no room; they stay.

        expected: likely bytes of this and later layers, as a multiple of this
            one's.
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
                self.copier.synchronize()  # Some copies may have begun.
                for piece in pieces:
                    piece.stay()
                raise
            self.counts.moved_out += sum(piece.nbytes for piece in pieces)
            self.counts.offloaded_layers += 1
            return True

    def release(self, run: LayerRun) -> None:
        """Frees its device memory for work after its copy."""
        with self.lock:
            for piece in run.own():
                piece.release()
            self.counts.fold()

    def fetch(self, run: LayerRun) -> None:
        """Brings back tensors that are on the host alone; the last saved are
        needed first."""
        with self.lock:
            self._fetch([piece for piece in reversed(run.needed())
                         if piece.is_away])

    def set_aside(self, run: LayerRun) -> None:
        """Gives the memory of fetched tensors back; a retained graph may fetch
        them again."""
        with self.lock:
            for piece in run.own():
                piece.set_aside()

    def park(self, run: LayerRun) -> list[Parked]:
        """Moves tensors that are on the host alone to hoistd's disk; their
        copies have ended."""
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

    # Internals.

    def _why_not(self, tensor: torch.Tensor) -> str:
        """The reason to stay, as in Counts; "": it may go."""
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
            # A nested tensor's shape is identified by its object of lengths.
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
            self.copier.synchronize()  # Some copies may have begun.
            for piece in pieces:
                piece.did_not_come()
            raise
        self.counts.moved_in += sum(piece.nbytes for piece in pieces)
        # A copy from unpinned memory has read it by now.
        for block in {piece.block for piece in pieces}:
            if block is not None:
                block.drop()
        self.counts.fold()


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


class Saving:
    """While it is entered, a run gets the thread's saved tensors."""

    def __init__(self, engine: Engine,
                 run_of: Callable[[], LayerRun | None]) -> None:
        """run_of: returns the run for each tensor; None: leaves the tensor to
        the outer pair."""
        self._engine = engine
        self._run_of = run_of
        self._pair: Pair | None = None

    def enter(self) -> None:
        """FailedPrecondition: a CUDA graph is being captured."""
        self._engine.copier.check()
        self._pair = push(self)

    def leave(self) -> None:
        pair, self._pair = self._pair, None  # Or they would form a cycle.
        if pair is not None:
            pair.remove()

    @eager
    def pack(self, tensor: torch.Tensor) -> Any:
        run = self._run_of()
        return PASS if run is None else self._engine.pack(run, tensor)

    @eager
    def unpack(self, packed: Any) -> torch.Tensor:
        return self._engine.unpack(packed)
