#!/usr/bin/env python3
"""What a fork in a CUDA graph costs the graph's kernels, without hoist.

fork_probe.py

Replays graphs of 8 layers of 48 short kernels, which depend on each other. In some
graphs 3 kernels of another stream run beside a layer's. All graphs are captured, then
replayed in turns. Prints each graph's shortest time, and how much longer it takes than
without a fork: a layer, and a kernel. Then two of the graphs, each alone in a process:
the driver runs a process's first graphs faster than those of one that has many.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Callable

import torch

LAYERS, KERNELS, TIMES, ROUNDS = 8, 48, 100, 7
STRAIGHT, FORKED = "straight", "a fork in each layer"


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def took(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of a replay."""
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(TIMES):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / TIMES * 1e6


def works() -> dict[str, Callable[[], None]]:
    """What each graph has, by its label."""
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

    return {STRAIGHT: linear,
            FORKED: each(0, KERNELS // 2),
            "the same, of a higher priority": each(-1, KERNELS // 2),
            "the same, joined after 2 kernels": each(0, 2),
            "the same, joined at once": each(0, 0),
            "in every second layer": each(0, KERNELS // 2, 2),
            "in every fourth layer": each(0, KERNELS // 2, 4),
            "once, joined after a layer": once(0),
            "once, joined at the end": once(LAYERS - 1)}


def show(label: str, us: float, base: float) -> None:
    more = (us - base) / LAYERS
    print(f"{label:34s} {us:6.1f} us {more:+6.2f} us a layer "
          f"{1e3 * more / KERNELS:+7.1f} ns a kernel", flush=True)


def main() -> None:
    if len(sys.argv) > 1:  # One graph, alone in its process.
        graph = captured(works()[sys.argv[1]])
        print(min(took(graph) for _ in range(ROUNDS)))
        return
    print(torch.cuda.get_device_name(), torch.__version__)
    graphs = {label: captured(work) for label, work in works().items()}
    runs = [{label: took(graph) for label, graph in graphs.items()}
            for _ in range(ROUNDS)]
    base = min(run[STRAIGHT] for run in runs)
    for label in graphs:
        show(label, min(run[label] for run in runs), base)
    for label in STRAIGHT, FORKED:
        alone = subprocess.run([sys.executable, __file__, label], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        show(f"{label}, alone", float(alone), base)


if __name__ == "__main__":
    main()
