#!/usr/bin/env python3
"""What a fetch of experts ahead relies on: how copies share the link with kernels
that read in place, and that renamed experts compute the same bits.

fetch_probe.py    (needs a GPU, torch and transformers, and nothing of hoist)

share: GB/s of copies of 3 MiB, and of grouped products over experts of 9 MiB in
pinned memory, each alone and beside the other.
names: a mixture's experts by transformers' own functions, and again with some of
them copied to places behind the last one and called by those numbers.
"""

from __future__ import annotations

import types
from typing import Any, Callable

import torch
from torch.nn import functional
from transformers.integrations import moe

MIB = 1 << 20
EXPERTS, CHOSEN, PLACES = 128, 8, 4
WIDTH, INNER = 2048, 768  # Qwen3-30B-A3B's.


class Pinned:
    """Pinned memory for kernels, at its own address."""

    def __init__(self, *shape: int) -> None:
        self.host = torch.zeros(shape, dtype=torch.bfloat16).pin_memory()
        self.__cuda_array_interface__ = {
            "shape": (self.host.numel(),), "typestr": "<i2", "version": 3,
            "data": (self.host.data_ptr(), False)}

    def seen(self) -> torch.Tensor:
        flat = torch.as_tensor(self, device="cuda")
        assert flat.data_ptr() == self.host.data_ptr()
        return flat.view(torch.bfloat16).view(self.host.shape)


def rate(nbytes: int, work: Callable[[], Any],
         beside: Callable[[], Any] | None) -> float:
    """GB/s of 40 calls on one stream, with 400 of the other's on another."""
    mine, other = torch.cuda.Stream(), torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(20_000_000)  # Until all is launched.
        started = torch.cuda.Event()
        started.record()
        for _ in range(400 if beside else 0):
            beside()  # type: ignore[misc]
    mine.wait_event(started)
    with torch.cuda.stream(mine):
        begin.record()
        for _ in range(40):
            work()
        end.record()
    end.synchronize()
    assert beside is None or not other.query(), "too little beside"
    torch.cuda.synchronize()
    return 40 * nbytes / begin.elapsed_time(end) / 1e6


def share() -> None:
    pinned = Pinned(CHOSEN, 9 * MIB // 2 // WIDTH, WIDTH)
    weights = pinned.seen().transpose(-2, -1)
    x = torch.zeros(CHOSEN, WIDTH, dtype=torch.bfloat16, device="cuda")
    offsets = torch.arange(1, CHOSEN + 1, dtype=torch.int32, device="cuda")
    source = torch.zeros(3 * MIB, dtype=torch.uint8).pin_memory()
    place = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")

    def copies() -> None:
        for _ in range(3 * CHOSEN):
            place.copy_(source, non_blocking=True)

    def reads() -> None:
        torch._grouped_mm(x, weights, offs=offsets)

    nbytes = 9 * MIB * CHOSEN
    reads()
    print("GB/s    alone  beside the other")
    for name, work, other in (("copies", copies, reads),
                              ("reads", reads, copies)):
        print(f"{name:7} {rate(nbytes, work, None):5.1f}  "
              f"{rate(nbytes, work, other):5.1f}")


def gate(both: torch.Tensor) -> torch.Tensor:
    first, second = both.chunk(2, dim=-1)
    return functional.silu(first) * second


def names(device: str) -> None:
    random = torch.Generator(device).manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, device=device,
                           dtype=torch.bfloat16)

    up = drawn(EXPERTS + PLACES, 2 * INNER, WIDTH) / WIDTH ** 0.5
    down = drawn(EXPERTS + PLACES, WIDTH, INNER) / INNER ** 0.5
    for tokens in (1, 4, 64, 1024):
        x = drawn(tokens, WIDTH)
        odds = drawn(tokens, EXPERTS).float()
        factors, chosen = torch.topk(odds.softmax(-1), CHOSEN)
        fetched = chosen[0, ::2]  # Of each second one the copy is read.
        renamed = chosen.clone()
        for place, expert in enumerate(fetched.tolist()):
            for weight in (up, down):
                weight[EXPERTS + place] = weight[expert]
            renamed[chosen == expert] = EXPERTS + place
        for name in ("grouped_mm", "batched_mm"):
            if name == "batched_mm" and tokens > 64:
                continue  # It gathers a matrix a token and expert.
            forward = getattr(moe, f"{name}_experts_forward")

            def run(experts: int, ids: torch.Tensor) -> torch.Tensor:
                module = types.SimpleNamespace(
                    num_experts=experts, has_gate=True, has_bias=False,
                    is_transposed=False, has_post_expert_norm=False,
                    _is_expert_parallel=False, _apply_gate=gate,
                    gate_up_proj=up[:experts], down_proj=down[:experts])
                return forward(module, x, ids, factors.bfloat16())

            same = torch.equal(run(EXPERTS, chosen),
                               run(EXPERTS + PLACES, renamed))
            print(f"{name}, {tokens} tokens: {'equal' if same else 'DIFFERS'}")


if __name__ == "__main__":
    if torch.cuda.is_available():
        share()
    names("cuda" if torch.cuda.is_available() else "cpu")
