"""All on the device; and two slots filled in turn, written by hand."""

from __future__ import annotations

import time

import torch
from safetensors import safe_open
from torch import nn

from .casting import cast_as_stored
from .job import Job, LeftOut, Ready, ready
from .models import blocks_of, bytes_of, load_weights

ALIGNMENT = 256  # Of a tensor in a slot, in bytes.


def resident(job: Job, device: torch.device) -> Ready:
    begin = time.perf_counter()
    module = job.spec.build()
    # A mixture may be too large to be in memory twice.
    first = device if job.spec.kind == "moe" else torch.device("cpu")
    if first.type == "cuda":
        _check_room(module, device)
    load_weights(module, job.path, first)
    loaded = time.perf_counter() - begin
    if job.options.get("storage") == "fp8":
        cast_as_stored(module)
    if device.type == "cuda" and first.type != "cuda":
        _check_room(module, device)
    module.to(device)
    return ready(job, module, loaded, 0)


def _check_room(module: nn.Module, device: torch.device) -> None:
    free, _ = torch.cuda.mem_get_info(device)
    if bytes_of(module) > free:
        raise LeftOut(f"{bytes_of(module)} bytes do not fit the device's "
                      f"{free} free ones")


class TwoSlots:
    """The best that can be written by hand for blocks in a row: each block's
    weights flat in pinned memory, two flat slots on the device, one copy a
    block in a stream of its own, events and no waits of the host.

    What is beside the blocks stays on the device.
    """

    def __init__(self, module: nn.Module, job: Job,
                 device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.blocks = blocks_of(module)
        sizes = [sum(map(_padded, block.parameters()))
                 for block in self.blocks]
        self.slots = [torch.empty(max(sizes), dtype=torch.uint8, device=device)
                      for _ in range(2)]
        self.streamed_bytes = sum(map(bytes_of, self.blocks))
        self.host: list[torch.Tensor] = []
        self._take_weights(module, job, sizes, device)
        if self.cuda:
            self.stream = torch.cuda.Stream(device)
            self.ready = [torch.cuda.Event() for _ in range(2)]
            self.done = [torch.cuda.Event() for _ in range(2)]
        count = len(self.blocks)
        for i, block in enumerate(self.blocks):
            following = next(j % count for j in range(i + 1, i + 2 + count)
                             if j % count % 2 == i % 2)
            block.register_forward_pre_hook(self._before(i))
            block.register_forward_hook(self._after(i, following))
        for i in range(min(2, count)):
            self._copy(i)

    def _take_weights(self, module: nn.Module, job: Job, sizes: list[int],
                      device: torch.device) -> None:
        places = {id(p): (owner, name) for owner in module.modules()
                  for name, p in owner.named_parameters(recurse=False)}
        files = {id(p): name for name, p in module.named_parameters()}

        def put(meta: nn.Parameter, value: torch.Tensor) -> None:
            owner, name = places.pop(id(meta))
            setattr(owner, name, nn.Parameter(value, requires_grad=False))

        # One allocation: torch pins powers of two.
        pinned = torch.empty(sum(sizes), dtype=torch.uint8,
                             pin_memory=self.cuda)
        with safe_open(job.path, "pt") as file:
            for i, (block, flat) in enumerate(zip(self.blocks,
                                                  pinned.split(sizes))):
                at = 0
                for meta in list(block.parameters()):
                    value = file.get_tensor(files[id(meta)])
                    _view(flat, at, value).copy_(value)
                    put(meta, _view(self.slots[i % 2], at, value))
                    at += _padded(value)
                self.host.append(flat)
            for meta in list(module.parameters()):
                if id(meta) in places:
                    put(meta, file.get_tensor(files[id(meta)]).to(device,
                                                                  copy=True))

    def _copy(self, i: int) -> None:
        slot, flat = i % 2, self.host[i]
        if not self.cuda:
            self.slots[slot][:len(flat)].copy_(flat)
            return
        self.done[slot].record()
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(self.done[slot])
            self.slots[slot][:len(flat)].copy_(flat, non_blocking=True)
            self.ready[slot].record(self.stream)

    def _before(self, i: int):
        def before(module: nn.Module, args: object) -> None:
            if self.cuda:
                torch.cuda.current_stream().wait_event(self.ready[i % 2])
        return before

    def _after(self, i: int, following: int):
        def after(module: nn.Module, args: object, output: object) -> None:
            self._copy(following)
        return after


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _view(flat: torch.Tensor, at: int, like: torch.Tensor) -> torch.Tensor:
    return flat[at:at + like.nbytes].view(like.dtype).view(like.shape)


def two_slot(job: Job, device: torch.device) -> Ready:
    module = job.spec.build()
    slots = TwoSlots(module, job, device)
    return Ready(module, 0.0, slots.streamed_bytes, module)
