#!/usr/bin/env python3
"""What a fork in a CUDA graph costs the graph's kernels, without hoist.

fork_probe.py

Replays graphs of 8 layers of 48 short kernels, which depend on each other. In some
graphs 3 kernels of another stream run beside a layer's. Prints each graph's time, and
how much longer it takes than without a fork: a layer, and a kernel.
"""

from __future__ import annotations

import time
from typing import Callable

import torch

LAYERS, KERNELS, TIMES = 8, 48, 100


def took(work: Callable[[], None]) -> float:
    """Microseconds of a replay, the fastest of 5 runs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    runs = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(TIMES):
            graph.replay()
        torch.cuda.synchronize()
        runs.append((time.perf_counter() - begin) / TIMES * 1e6)
    return min(runs)


def main() -> None:
    x, y = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    sides = {priority: torch.cuda.Stream(priority=priority)
             for priority in (0, -1)}

    def layer(kernels: int = KERNELS) -> None:
        for _ in range(kernels):
            x.add_(1)

    def fork(side: torch.cuda.Stream) -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                y.add_(1)

    def join(side: torch.cuda.Stream) -> None:
        torch.cuda.current_stream().wait_stream(side)

    def linear() -> None:
        for _ in range(LAYERS):
            layer()

    def each(priority: int, at: int, step: int = 1) -> Callable[[], None]:
        def work() -> None:
            for number in range(LAYERS):
                forked = number % step == 0
                if forked:
                    fork(sides[priority])
                layer(at)
                if forked:
                    join(sides[priority])
                layer(KERNELS - at)
        return work

    def once(joined: int) -> Callable[[], None]:
        def work() -> None:
            fork(sides[0])
            for number in range(LAYERS):
                layer()
                if number == joined:
                    join(sides[0])
        return work

    print(torch.cuda.get_device_name(), torch.__version__)
    base = took(linear)
    for label, work in (
            ("no fork", linear),
            ("a fork in each layer", each(0, KERNELS // 2)),
            ("the same, of a higher priority", each(-1, KERNELS // 2)),
            ("the same, joined after 2 kernels", each(0, 2)),
            ("the same, joined at once", each(0, 0)),
            ("in every second layer", each(0, KERNELS // 2, 2)),
            ("in every fourth layer", each(0, KERNELS // 2, 4)),
            ("once, joined after a layer", once(0)),
            ("once, joined at the end", once(LAYERS - 1))):
        us = took(work)
        more = (us - base) / LAYERS
        print(f"{label:34s} {us:6.1f} us {more:+6.2f} us a layer "
              f"{1e3 * more / KERNELS:+7.1f} ns a kernel")


if __name__ == "__main__":
    main()
