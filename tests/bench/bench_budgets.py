#!/usr/bin/env python3
"""A pass at each budget, beside the time of the bytes beyond it.

bench_budgets.py --bin DIR [--blocks 24] [--width 4096] [--budgets 0.1,0.3,...]
                 [--passes 5] [--device cuda|emulated]

A row of blocks with Llama's weights (four of attention, three of its MLP), in
bf16, run for 16 tokens: with whole blocks, with the default groups, and by leaf.
The floor is (model - budget) / link; the link is the rate of pinned copies of
64 MiB, measured before each row. Prints medians, and compares all outputs with
the resident model's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import hoist
import torch
from torch import nn

from common import MIB, hoistd, table

TOML = """
[device]
backend = "{device}"
pool = "{pool}MiB"
[host]
pool = "{host}MiB"
"""
TOKENS = 16
COPIES = 32


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * 7 // 2
        made = lambda rows, columns: nn.Linear(columns, rows, bias=False,
                                               dtype=torch.bfloat16)
        self.q, self.k = made(width, width), made(width // 4, width)
        self.v, self.o = made(width // 4, width), made(width, width)
        self.gate, self.up = made(inner, width), made(inner, width)
        self.down = made(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.q(x) * (self.k(x) + self.v(x)).repeat(1, 4)
        x = x + self.o(nn.functional.normalize(mixed, dim=-1))
        y = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return nn.functional.normalize(x + y, dim=-1)


class Stack(nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def build(blocks: int, width: int) -> Stack:
    """Equal blocks but for one value each: random ones would take minutes."""
    with torch.device("meta"):
        model = Stack(blocks, width)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    first = {name: torch.randn(one.shape, dtype=one.dtype) / width ** 0.5
             for name, one in model.blocks[0].named_parameters()}
    with torch.no_grad():
        for at, block in enumerate(model.blocks):
            for name, one in block.named_parameters():
                one.copy_(first[name])
                one[0, 0] = at
    return model.eval()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def link_rate(device: torch.device) -> float:
    """Bytes a second."""
    cuda = device.type == "cuda"
    source = torch.empty(64 * MIB, dtype=torch.uint8, pin_memory=cuda)
    there = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    for _ in range(2):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(COPIES):
            there.copy_(source, non_blocking=True)
        synchronize(device)
        took = time.perf_counter() - begin
    return COPIES * source.numel() / took


def run(arguments: argparse.Namespace, device: torch.device) -> None:
    model = build(arguments.blocks, arguments.width)
    total = sum(one.numel() * 2 for one in model.parameters())
    x = torch.randn(TOKENS, arguments.width, dtype=torch.bfloat16).to(device)
    whole = {f"block {at}": [f"blocks.{at}"]
             for at in range(arguments.blocks)}
    rows = [("budget", "groups=", "groups", "ms", "slowest", "of the floor",
             "GB streamed", "link GB/s", "equal")]
    expected = None
    for name, groups in (("whole blocks", whole), ("block", "block"),
                         ("leaf", "leaf")):
        # A budget gives large blocks parts.
        hoist.attach(model, arguments.budgets[0], groups=groups, deadline=120)
        for budget in [1.0, *arguments.budgets]:
            rate = link_rate(device)
            hoist.set_budget(model, budget)
            output, times = passes(model, x, arguments.passes, device)
            expected = output if expected is None else expected
            stats = hoist.stats(model)
            took = statistics.median(times)
            floor = max(0.0, 1 - budget) * total / rate
            rows.append((
                f"{budget}", name, f"{stats.groups}",
                f"{took * 1e3:.1f}", f"{max(times) * 1e3:.1f}",
                f"{took / floor:.3f}" if floor else "-",
                f"{stats.streamed_bytes / 1e9:.2f}", f"{rate / 1e9:.1f}",
                "yes" if torch.equal(output, expected) else "NO"))
            print("  ".join(rows[-1]), flush=True)
        hoist.detach(model)
    print(f"{arguments.blocks} blocks, {total / 1e9:.2f} GB")
    table(rows)


@torch.inference_mode()
def passes(model: nn.Module, x: torch.Tensor, count: int, device: torch.device
           ) -> tuple[torch.Tensor, list[float]]:
    """The last output, and the seconds of each after three."""
    times = []
    for _ in range(3 + count):
        synchronize(device)
        begin = time.perf_counter()
        output = model(x)
        synchronize(device)
        times.append(time.perf_counter() - begin)
    return output.cpu(), times[3:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--budgets", default="0.1,0.3,0.5,0.7,0.9")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--device", choices=["cuda", "emulated"],
                        default="cuda")
    arguments = parser.parse_args()
    arguments.budgets = [float(one) for one in arguments.budgets.split(",")]
    mib = arguments.blocks * arguments.width ** 2 * 26 // MIB
    toml = TOML.format(device=arguments.device, pool=mib + 2048,
                       host=2 * mib + 2048)
    device = torch.device("cuda" if arguments.device == "cuda" else "cpu")
    with hoistd(arguments.bin, toml) as daemon:
        os.environ["HOIST_SOCKET"] = daemon.socket
        run(arguments, device)


if __name__ == "__main__":
    main()
