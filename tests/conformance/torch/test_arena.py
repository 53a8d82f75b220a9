"""Tensors that are put aside in an arena and come back, in the order of streams.

On a GPU these are copies by its engines, which the arena orders; on an emulated
device the CPU's, which are over when they return.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest
import torch

import hoist
from conftest import KIND, MIB
from hoist._arena import Arena, Block

pytestmark = [pytest.mark.hoistd(in_place=64 * MIB), pytest.mark.real_time]


def view(block: Block, like: torch.Tensor) -> torch.Tensor:
    """The block's bytes, as a tensor of the CPU."""
    nbytes = like.numel() * like.element_size()
    if nbytes == 0:
        return torch.empty(like.shape, dtype=like.dtype)
    memory = (ctypes.c_byte * nbytes).from_address(block.address)
    return torch.frombuffer(memory, dtype=like.dtype).view(like.shape)


class Streams:
    """Two of a GPU's; on the CPU there are none."""

    def __init__(self) -> None:
        self.both = ([torch.cuda.Stream(), torch.cuda.Stream()]
                     if KIND == "cuda" else [None, None])

    def number(self, which: int) -> int:
        stream = self.both[which]
        return 0 if stream is None else int(stream.cuda_stream)

    def on(self, which: int) -> Any:
        return torch.cuda.stream(self.both[which])


def make(elements: int) -> torch.Tensor:
    return torch.randn(elements, device=KIND)


def test_what_is_put_aside_comes_back_whoever_had_the_place_before(
        session: hoist.Session) -> None:
    # A few times what fits: places change hands between streams all the time.
    arena, streams, draw = Arena(session, 8 * MIB), Streams(), random.Random(1)
    aside: list[tuple[Block, torch.Tensor]] = []
    for _ in range(400):
        tensor = make(draw.randrange(1, 200_000))
        if KIND == "cuda":
            streams.both[0].wait_stream(torch.cuda.current_stream())
        while True:
            try:
                block = arena.take(tensor.numel() * 4, streams.number(0))
                break
            except hoist.ResourceExhausted:
                fetch(arena, aside.pop(draw.randrange(len(aside))), streams)
        with streams.on(0):
            view(block, tensor).copy_(tensor, non_blocking=True)
        if KIND == "cuda":
            streams.both[1].wait_stream(streams.both[0])
        aside.append((block, tensor))
    for one in aside:
        fetch(arena, one, streams)
    stats = arena.stats
    assert stats.used_bytes == 0
    assert stats.takes == 400
    assert (stats.waits > 0) == (KIND == "cuda")
    arena.close()


def fetch(arena: Arena, aside: tuple[Block, torch.Tensor],
          streams: Streams) -> None:
    """Copies it back on the second stream, and gives its place."""
    block, tensor = aside
    with streams.on(1):
        back = torch.empty_like(tensor)
        back.copy_(view(block, tensor), non_blocking=True)
        arena.give(block, streams.number(1))
        same = torch.equal(back, tensor)
    assert same


@pytest.mark.only_cuda("on the CPU there is no link")
def test_copies_run_at_the_links_rate_once_it_is_pinned(
        session: hoist.Session) -> None:
    arena = Arena(session, 64 * MIB)
    assert arena.stats.pinned_bytes == arena.stats.bytes
    block = arena.take(32 * MIB)
    tensor = torch.empty(8 * MIB, device="cuda")
    pinned = torch.empty(8 * MIB, pin_memory=True)

    def seconds(host: torch.Tensor) -> float:
        times = []
        for _ in range(10):
            begin, end = (torch.cuda.Event(enable_timing=True)
                          for _ in range(2))
            begin.record()
            host.copy_(tensor, non_blocking=True)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return min(times)

    assert seconds(view(block, tensor)) < 1.25 * seconds(pinned)


@pytest.mark.only_cuda("nothing is captured on the CPU")
def test_a_stream_that_is_being_captured_is_refused(
        session: hoist.Session) -> None:
    arena = Arena(session, 2 * MIB)
    block = arena.take(4096)
    graph = torch.cuda.CUDAGraph()
    tensor = torch.ones(8, device="cuda")
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        for use in (lambda: arena.take(1, stream),
                    lambda: arena.give(block, stream)):
            with pytest.raises(hoist.FailedPrecondition, match="captured"):
                use()
        tensor += 1
    graph.replay()  # The refusals spoiled nothing.
    torch.cuda.synchronize()
    assert tensor.tolist() == [2.0] * 8
    arena.give(block)
