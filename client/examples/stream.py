#!/usr/bin/env python3
"""Streams a model that is larger than the GPU memory it may use.

stream.py [--blocks N] [--hidden H] [--budget FRACTION] [--passes N] [--graph]
          [--socket PATH] [--device N]

Publishes a stack of feed-forward blocks with random weights to hoistd, plans a
pass over them in a fraction of their bytes, and computes with PyTorch, block
after block. The result must be what the same weights give when each block is
copied to the device by hand, bit for bit, in every pass; with --graph also when
the whole pass is one CUDA graph. Exit status: 0 if so, else 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Callable

import surroundings

surroundings.need("torch")
surroundings.find_hoist()
surroundings.keep_others_quiet()

import hoist  # noqa: E402
import torch  # noqa: E402

Weights = dict[str, torch.Tensor]


def block(x: torch.Tensor, up: torch.Tensor,
          down: torch.Tensor) -> torch.Tensor:
    return x + torch.nn.functional.gelu(x @ up) @ down


def make_weights(blocks: int, hidden: int) -> list[Weights]:
    torch.manual_seed(0)
    scale = hidden ** -0.5
    return [{"up": (torch.randn(hidden, 4 * hidden) * scale).bfloat16(),
             "down": (torch.randn(4 * hidden, hidden) * scale / 2).bfloat16()}
            for _ in range(blocks)]


def by_hand(x: torch.Tensor, weights: list[Weights]) -> torch.Tensor:
    for one in weights:
        x = block(x, one["up"].to(x.device), one["down"].to(x.device))
    return x


class Streamed:
    """The same blocks, their weights in hoistd."""

    def __init__(self, plan: hoist.Plan, model: hoist.Model) -> None:
        self.plan = plan
        # Made once: a group has one address for as long as the plan stands.
        self.views: list[tuple[hoist.Group, torch.Tensor, torch.Tensor]] = []
        for group in model.groups:
            tensors = plan.tensors(group)
            self.views.append((group, tensors["up"].torch(),
                               tensors["down"].torch()))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        stream = torch.cuda.current_stream(x.device) if x.is_cuda else None
        for group, up, down in self.views:
            self.plan.stage(group, stream=stream)
            x = block(x, up, down)
            self.plan.done(group, stream=stream)
        return x


def timed(run: Callable[[], torch.Tensor],
          device: torch.device) -> tuple[torch.Tensor, float]:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    result = run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result, time.perf_counter() - started


def captured(streamed: Streamed, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = streamed(x)

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def run(options: argparse.Namespace) -> int:
    weights = make_weights(options.blocks, options.hidden)
    session = hoist.connect(options.socket, name="stream.py")
    for number, one in enumerate(weights):
        model = session.publish("feed-forward", f"block.{number}", one)
    total = model.image_bytes
    plan = session.set_plan(model, order=model.groups, device=options.device,
                            budget=int(total * options.budget))
    info = plan.info
    print(f"{total / 1e9:.2f} GB in {options.blocks} blocks: "
          f"{info.resident_bytes / 1e9:.2f} GB resident, "
          f"{info.ring_bytes / 1e9:.2f} GB of ring, "
          f"{info.streamed_bytes / 1e9:.2f} GB streamed a pass")
    streamed = Streamed(plan, model)
    device = streamed.views[0][1].device
    x = torch.randn(16, options.hidden).bfloat16().to(device)
    expected = by_hand(x, weights)
    wrong = 0

    def check(what: str, once: Callable[[], torch.Tensor]) -> None:
        nonlocal wrong
        result, seconds = timed(once, device)
        plan.check()
        equal = torch.equal(result, expected)
        wrong += not equal
        print(f"{what}: {seconds * 1e3:.1f} ms, "
              f"{info.streamed_bytes / seconds / 1e9:.1f} GB/s, "
              f"{'equal' if equal else 'NOT EQUAL'}")

    for _ in range(options.passes):
        check("pass", lambda: streamed(x))
    if options.graph:
        replay = captured(streamed, x)
        for _ in range(options.passes):
            check("graph", replay)
        check("pass after graphs", lambda: streamed(x))
    print(plan.stats)
    return 1 if wrong else 0


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--budget", type=float, default=0.25, metavar="FRACTION",
                        help="of the model's bytes (default: 0.25)")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--graph", action="store_true",
                        help="also as one CUDA graph")
    parser.add_argument("--socket")
    parser.add_argument("--device", type=int, default=0)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
