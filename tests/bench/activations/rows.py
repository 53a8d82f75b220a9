"""The rows there are: ways of keeping activations."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import hoist

from .model import Blocks
from .two_streams import TwoStreams


@dataclasses.dataclass
class Row:
    """step: forward and backward, and the loss. pinned: bytes of host memory
    that it holds and torch's allocator does not."""

    step: Callable[[torch.Tensor], torch.Tensor]
    pinned: Callable[[], int] = lambda: 0
    stats: Callable[[], dict[str, Any]] = dict
    close: Callable[[], None] = lambda: None


def _trained(model: Blocks) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x)
        loss.backward()
        return loss.detach()
    return step


def resident(model: Blocks, device: torch.device) -> Row:
    return Row(_trained(model))


def hoisted(keep_last: int) -> Callable[[Blocks, torch.device], Row]:
    def make(model: Blocks, device: torch.device) -> Row:
        offload = hoist.offload_activations(model, keep_last=keep_last,
                                            device=device)
        return Row(_trained(model), lambda: offload.stats().arena_bytes,
                   lambda: dataclasses.asdict(offload.stats()), offload.close)
    return make


def on_cpu(model: Blocks, device: torch.device) -> Row:
    """torch's save_on_cpu(pin_memory=True), but for weights: it would copy
    those, too."""
    theirs = save_on_cpu(pin_memory=device.type == "cuda")
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}

    def pack(tensor: torch.Tensor) -> Any:
        if tensor.untyped_storage().data_ptr() in weights:
            return tensor.detach()
        return (theirs.pack_hook(tensor),)

    def unpack(packed: Any) -> torch.Tensor:
        return (packed if isinstance(packed, torch.Tensor) else
                theirs.unpack_hook(packed[0]))

    def step(x: torch.Tensor) -> torch.Tensor:
        with saved_tensors_hooks(pack, unpack):
            loss = model(x)
        loss.backward()
        return loss.detach()

    return Row(step)


def two_streams(keep_last: int) -> Callable[[Blocks, torch.device], Row]:
    def make(model: Blocks, device: torch.device) -> Row:
        TwoStreams(model, keep_last, device)
        return Row(_trained(model))
    return make


def rows_of(blocks: int) -> dict[str, Callable[[Blocks, torch.device], Row]]:
    """By name, in the order that they run in. What is slow comes last."""
    return {
        "resident": resident,
        "hoist, half": hoisted(blocks - blocks // 2),
        "hoist, all but 2": hoisted(2),
        "two streams, all but 2": two_streams(2),
        "save_on_cpu": on_cpu,
    }
