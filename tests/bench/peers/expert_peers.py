"""A mixture's experts in pinned host memory: read by the GPU where they lie, or
copied to it as whole experts that a cache keeps. Both written by hand."""

from __future__ import annotations

import collections
import contextlib
import mmap
from typing import Any

import torch
from torch import nn

from .job import Job, LeftOut, Ready, ready
from .models import put_weight, stored_weights


class Pinned:
    """Page-locked memory of exact sizes: torch's is of powers of two."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.nbytes = 0

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        memory = mmap.mmap(-1, tensor.nbytes,
                           flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # Only faster.
            memory.madvise(mmap.MADV_HUGEPAGE)
        flat = torch.frombuffer(memory, dtype=tensor.dtype)
        flat.copy_(tensor.reshape(-1))
        if self._cuda:
            code = torch.cuda.cudart().cudaHostRegister(
                flat.data_ptr(), tensor.nbytes, 0)
            torch.cuda.check_error(int(code))
        self.nbytes += tensor.nbytes
        return flat.view(tensor.shape)


class _Interface:
    """Page-locked memory as CUDA's array interface has it. torch asks the
    driver whose it is, and takes it for the GPU's."""

    def __init__(self, host: torch.Tensor) -> None:
        self._host = host
        self.__cuda_array_interface__ = {
            "shape": (host.numel(),), "typestr": "<i2", "version": 3,
            "data": (host.data_ptr(), False)}


def on_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same bytes, for kernels: an address holds on both sides."""
    if device.type != "cuda":
        return host
    seen = torch.as_tensor(_Interface(host), device=device)
    if seen.data_ptr() != host.data_ptr():
        raise LeftOut("torch copies page-locked memory that it is shown")
    return seen.view(host.dtype).view(host.shape)


def _stacked(name: str) -> bool:
    return ".experts." in name


def _load_beside(job: Job, module: nn.Module, device: torch.device) -> None:
    """All but the experts, to the device."""
    get = stored_weights(job.path)
    for name, _ in list(module.named_parameters()):
        if not _stacked(name):
            put_weight(module, name, get(name).to(device, copy=True))
    for name, buffer in list(module.named_buffers()):
        owner, _, key = name.rpartition(".")
        setattr(module.get_submodule(owner), key, buffer.to(device))


def uva(job: Job, device: torch.device) -> Ready:
    module, pinned = job.spec.build(), Pinned(device)
    _load_beside(job, module, device)
    get = stored_weights(job.path)
    for name, _ in list(module.named_parameters()):
        if _stacked(name):
            put_weight(module, name,
                       on_device(pinned.copy_of(get(name)), device))
    made = ready(job, module, 0.0, 0,
                 lambda: {"registered_bytes": pinned.nbytes})

    def counts() -> dict[str, int]:
        units = made.run.done * made.units
        if not job.options.get("prefill"):  # That touches all experts.
            units = units * job.spec.chosen // job.spec.experts
        return {"touched_hot_bytes": 0,
                "touched_cold_bytes": units * pinned.nbytes}

    made.counts = counts
    return made


class Cached(nn.Module):
    """A layer's experts, some of them in slots on the device: those that were
    used last. What is computed, and how, is the original's, over slots."""

    def __init__(self, experts: nn.Module, host: dict[str, torch.Tensor],
                 slots: int, stream: Any) -> None:
        super().__init__()
        self.slotted = experts
        self.host, self.stream, self.slots = host, stream, slots
        self.held: collections.OrderedDict[int, int] = (
            collections.OrderedDict())  # Slots by expert, the eldest first.
        self.hits = self.misses = 0
        experts.num_experts = slots

    def forward(self, hidden: torch.Tensor, index: torch.Tensor,
                weights: torch.Tensor) -> torch.Tensor:
        # Waits for the router, and so for all that has read these slots.
        rows = index.tolist()
        needed = sorted({expert for row in rows for expert in row})
        if len(needed) > self.slots:  # Of many tokens; of one they fit.
            half = len(rows) // 2
            return torch.cat([
                self.forward(hidden[part], index[part], weights[part])
                for part in (slice(half), slice(half, None))])
        self._bring(needed)
        places = torch.tensor([[self.held[expert] for expert in row]
                               for row in rows], device=index.device)
        return self.slotted(hidden, places, weights)

    def _bring(self, needed: list[int]) -> None:
        missing = [expert for expert in needed if expert not in self.held]
        self.hits += len(needed) - len(missing)
        self.misses += len(missing)
        for expert in needed:
            if expert in self.held:
                self.held.move_to_end(expert)
        if not missing:
            return
        if self.stream is None:
            self._copy(missing)
            return
        with torch.cuda.stream(self.stream):
            self._copy(missing)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _copy(self, missing: list[int]) -> None:
        for expert in missing:
            slot = (len(self.held) if len(self.held) < self.slots
                    else self.held.popitem(last=False)[1])
            self.held[expert] = slot
            for name, whole in self.host.items():
                getattr(self.slotted, name)[slot].copy_(whole[expert],
                                                        non_blocking=True)


def lru(job: Job, device: torch.device) -> Ready:
    """job.options: budget, the part of each layer's experts that has slots."""
    spec, pinned = job.spec, Pinned(device)
    module = spec.build()
    _load_beside(job, module, device)
    get = stored_weights(job.path)
    slots = max(spec.chosen, round(float(job.options["budget"]) * spec.experts))
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    layers = []
    for number, layer in enumerate(module.model.layers):
        experts, host = layer.mlp.experts, {}
        for name, weight in list(experts.named_parameters()):
            host[name] = pinned.copy_of(
                get(f"model.layers.{number}.mlp.experts.{name}"))
            put_weight(experts, name, torch.zeros(
                slots, *weight.shape[1:], dtype=weight.dtype, device=device))
        layers.append(Cached(experts, host, slots, stream))
        layer.mlp.experts = layers[-1]
    one = sum(whole[0].nbytes for whole in layers[0].host.values())

    def counts() -> dict[str, int]:
        hits = sum(layer.hits for layer in layers)
        misses = sum(layer.misses for layer in layers)
        return {"hits": hits, "misses": misses, "touched_hot_bytes": hits * one,
                "touched_cold_bytes": misses * one}

    made = ready(job, module, 0.0, 0,
                 lambda: {"registered_bytes": pinned.nbytes, "slots": slots})
    made.counts = counts
    return made
