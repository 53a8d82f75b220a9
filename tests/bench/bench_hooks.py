#!/usr/bin/env python3
"""What hoist's hooks take of the host for each streamed group of an eager module.

bench_hooks.py --bin DIR [--beside PACKAGES]... [--rounds N] [--passes N]
               [--blocks N] [--width W] [--rows R]

A module of N blocks of seven linear layers has a budget for half of its weights,
by leaf and by block, on an emulated device. Each row is a process with a hoistd of
its own; rows run in turns: other versions of the Python package, in these folders;
this one in Python alone; this one with its extension. Prints, for each streamed group,
in the fastest of all passes: the CPU's time in hoist's hooks, with a call of libhoist
to stage and one to end (which counts twice, as a stage may wait); that beside the first
row's; the part of the two calls; and hoist's frames.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from common import MIB, hoistd, table

TOML = """
[device]
backend = "emulated"
pool = {pool}
[host]
pool = {pool}
"""
OWN = str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python")
LAYERS = 7  # Of a block.
WARM_UPS = 5


def make(blocks: int, width: int) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for at in range(LAYERS):
                setattr(self, f"linear{at}", nn.Linear(width, width, bias=False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.children():
                x = layer(x)
            return x

    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks))).eval()


def measure(arguments: argparse.Namespace) -> None:
    """A row: prints its figures as JSON."""
    import hoist
    import torch
    from hook_time import HookTime, frames

    torch.set_num_threads(1)
    module = make(arguments.blocks, arguments.width)
    total = sum(value.nbytes for value in module.parameters())
    hoist.attach(module, total // 2, groups=arguments.measure)
    x = torch.ones(arguments.rows, arguments.width)
    found = collections.defaultdict(list)
    with torch.no_grad():
        for _ in range(WARM_UPS):
            module(x)
        before = hoist.stats(module).stages
        called = frames(lambda: module(x))
        streamed = hoist.stats(module).stages - before
        hooks = HookTime(time.thread_time)
        for _ in range(arguments.passes):
            with hooks:
                module(x)
            for book in ("group", "done"):
                found[book].append(hooks.seconds(book) / streamed * 1e6)
    print(json.dumps({"streamed": streamed, "frames": called / streamed, **{
        book: min(us) for book, us in found.items()}}))


def row(arguments: argparse.Namespace, packages: str, pure: str,
        groups: str) -> Any:
    pool = 4 * arguments.blocks * LAYERS * arguments.width ** 2 * 4 + 512 * MIB
    with hoistd(arguments.bin, TOML.format(pool=pool)) as node:
        ran = subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--measure", groups],
            env={**os.environ, "HOIST_SOCKET": node.socket,
                 "PYTHONPATH": packages, "HOIST_PURE_PYTHON": pure}, check=True, stdout=subprocess.PIPE)
    return json.loads(ran.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--beside", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments)
        return 0
    packages = [*((path, path, "") for path in arguments.beside),
                ("in Python", OWN, "1"), ("with hoist._fast", OWN, "")]
    kinds = [(groups, *one) for groups in ("leaf", "block") for one in packages]
    found: dict[Any, list[Any]] = {kind: [] for kind in kinds}
    for _ in range(arguments.rounds):
        for groups, name, path, pure in kinds:
            found[groups, name, path, pure].append(
                row(arguments, path, pure, groups))
    rows = [("groups", "package", "streamed", "us", "x", "calls, us", "frames")]
    first: dict[str, float] = {}
    for (groups, name, *_), figures in found.items():
        hooks, done, frames = (min(one[book] for one in figures)
                               for book in ("group", "done", "frames"))
        us = hooks + 2 * done
        rows.append((groups, name, str(figures[0]["streamed"]), f"{us:.1f}",
                     f"{us / first.setdefault(groups, us):.2f}",
                     f"{2 * done:.1f}", f"{frames:.0f}"))
    table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
