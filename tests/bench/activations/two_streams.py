"""An offloader as one would write it by hand for blocks in a row: pinned
buffers that are made in the first step and used in each, a stream a direction,
events, and no waits of the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

MIN_BYTES = 256 << 10


@dataclasses.dataclass
class Saved:
    """A tensor of a block: where it is."""

    block: int
    number: int
    here: torch.Tensor | None
    back: torch.Tensor | None = None


class TwoStreams:
    """The first blocks are offloaded, all but `keep_last`. It knows that blocks
    run in a row, once each, and that each step is like the first."""

    def __init__(self, model: nn.Module, keep_last: int,
                 device: torch.device) -> None:
        self._weights = {one.untyped_storage().data_ptr()
                         for one in model.parameters()}
        self._cuda = device.type == "cuda"
        self._offloaded = len(model.layers) - keep_last
        self._buffers: dict[tuple[int, int], torch.Tensor] = {}
        self._saved: list[list[Saved]] = [[] for _ in model.layers]
        self._known: dict[int, Saved] = {}
        self._out_done: dict[int, Any] = {}
        self._in_done: dict[int, Any] = {}
        if self._cuda:
            self._out = torch.cuda.Stream(device)
            self._in = torch.cuda.Stream(device)
        for index, layer in enumerate(model.layers):
            layer.register_forward_pre_hook(self._before(index))
            layer.register_forward_hook(self._after(index))

    @property
    def pinned_bytes(self) -> int:
        return sum(one.nbytes for one in self._buffers.values())

    def _before(self, index: int) -> Any:
        def before(module: nn.Module, args: Any) -> None:
            self._release(index - 2)
            self._saved[index] = []
            self._known = {}
            hooks = saved_tensors_hooks(
                lambda tensor: self._pack(index, tensor), self._unpack)
            module._hooks = hooks
            hooks.__enter__()
        return before

    def _after(self, index: int) -> Any:
        def after(module: nn.Module, args: Any, output: Any) -> None:
            module._hooks.__exit__()
            if index < self._offloaded:
                self._send(index)
            elif index == len(self._saved) - 1:
                self._release(index - 1)
                self._release(index)
        return after

    def _pack(self, index: int, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if (storage.nbytes() < MIN_BYTES
                or storage.data_ptr() in self._weights):
            return tensor.detach()
        known = self._known.get(storage.data_ptr())
        if known is None:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            flat.set_(storage, 0, (storage.nbytes(),), (1,))
            known = Saved(index, len(self._saved[index]), flat)
            self._known[storage.data_ptr()] = known
            self._saved[index].append(known)
        return (known, tensor.dtype, tensor.shape, tensor.stride(),
                tensor.storage_offset())

    def _unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        saved, dtype, shape, stride, offset = packed
        for index in (saved.block, saved.block - 1):
            self._fetch(index)
        if saved.here is None and saved.block in self._in_done:
            torch.cuda.current_stream().wait_event(self._in_done[saved.block])
        flat = saved.here if saved.here is not None else saved.back
        made = torch.empty(0, dtype=dtype, device=flat.device)
        return made.set_(flat.untyped_storage(), offset, shape, stride)

    def _send(self, index: int) -> None:
        if self._cuda:
            self._out.wait_stream(torch.cuda.current_stream())
        for one in self._saved[index]:
            key = index, one.number
            if key not in self._buffers:
                self._buffers[key] = torch.empty(
                    one.here.nbytes, dtype=torch.uint8, pin_memory=self._cuda)
            self._copy(self._buffers[key], one.here, "_out")
        if self._cuda:
            self._out_done[index] = self._out.record_event()

    def _release(self, index: int) -> None:
        if not 0 <= index < self._offloaded:
            return
        if self._cuda:
            torch.cuda.current_stream().wait_event(self._out_done[index])
        for one in self._saved[index]:
            one.here = None
        self._in_done.pop(index, None)

    def _fetch(self, index: int) -> None:
        if not 0 <= index < self._offloaded:
            return
        away = [one for one in self._saved[index]
                if one.here is None and one.back is None]
        if not away:
            return
        for one in away:
            one.back = torch.empty(self._buffers[index, one.number].nbytes,
                                   dtype=torch.uint8,
                                   device="cuda" if self._cuda else "cpu")
        if self._cuda:
            self._in.wait_stream(torch.cuda.current_stream())
        for one in reversed(away):
            self._copy(one.back, self._buffers[index, one.number], "_in")
        if self._cuda:
            self._in_done[index] = self._in.record_event()
        # Autograd has what it needs of the blocks behind.
        for later in self._saved[index + 2:]:
            later.clear()

    def _copy(self, target: torch.Tensor, source: torch.Tensor,
              stream: str) -> None:
        if not self._cuda:
            target.copy_(source)
            return
        with torch.cuda.stream(getattr(self, stream)):
            target.copy_(source, non_blocking=True)
