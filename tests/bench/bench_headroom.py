#!/usr/bin/env python3
"""A model that runs while another user of the GPU takes memory in steps.

bench_headroom.py --bin DIR [--model-mib 16384] [--layer-mib 128]
                  [--headroom-mib 4096] [--steps 4] [--passes 20]

Attaches a model with the default budget to a hoistd whose pool is "auto". Each
step allocates all free memory but a quarter of the headroom, and runs passes;
at last all is freed. Prints for each step the time until the headroom is free
again, the budget then, the slowest and the median pass, and wrong outputs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import hoist
import torch

from bench_turns import BATCH, build, shape_of
from common import MIB, hoistd, table

TOML = """
[device]
backend = "cuda"
pool = "auto"
headroom = "{headroom}MiB"
[host]
pool = "{host}MiB"
"""
DEADLINE = 60.0


def free() -> int:
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def serve(arguments: argparse.Namespace) -> None:
    _, width = shape_of(arguments)
    torch.manual_seed(1)
    x = torch.randn(BATCH, width, dtype=torch.bfloat16, device="cuda")
    model = build(arguments, 0)
    hoist.attach(model, deadline=120)
    first = None
    wrong = 0

    def one_pass() -> float:
        nonlocal first, wrong
        begin = time.perf_counter()
        output = model(x)
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        first = output.clone() if first is None else first
        wrong += not torch.equal(output, first)
        return took

    def settle(what: str, done) -> None:
        """Passes until it is done, and then as many as were asked for."""
        begin, times = time.perf_counter(), []
        took = None
        while took is None and time.perf_counter() - begin < DEADLINE:
            times.append(one_pass())
            if done():
                took = time.perf_counter() - begin
        after = [one_pass() for _ in range(arguments.passes)]
        rows.append((
            what, "-" if took is None else f"{took:.2f}",
            f"{hoist.stats(model).budget_bytes / MIB:,.0f}",
            f"{hoist.stats(model).streamed_bytes / MIB:,.0f}",
            f"{max(times) * 1e3:.1f}",
            f"{statistics.median(after) * 1e3:.1f}"))

    headroom = arguments.headroom_mib * MIB
    rows = [("step", "s", "budget MiB", "streamed MiB", "slowest pass ms",
             "median pass ms")]
    taken = []
    with torch.inference_mode():
        for _ in range(3):
            one_pass()
        settle("alone", lambda: True)
        for _ in range(arguments.steps):
            more = free() - headroom // 4
            if more <= 0:
                break  # hoistd has given nothing back; the table shows it.
            taken.append(torch.empty(more, dtype=torch.uint8, device="cuda"))
            settle(f"{sum(map(len, taken)) / MIB:,.0f} MiB taken",
                   lambda: free() >= headroom * 7 // 8)
        taken.clear()
        torch.cuda.empty_cache()
        settle("freed", lambda: not hoist.stats(model).streamed_bytes)
    table(rows)
    print(f"\n{wrong} wrong outputs")
    hoist.detach(model)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model-mib", type=int, default=16384)
    parser.add_argument("--layer-mib", type=int, default=128)
    parser.add_argument("--headroom-mib", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--passes", type=int, default=20)
    arguments = parser.parse_args()
    toml = TOML.format(headroom=arguments.headroom_mib,
                       host=arguments.model_mib * 9 // 8)
    with hoistd(arguments.bin, toml, keeper=True) as node:
        node.wait_whole()
        os.environ["HOIST_SOCKET"] = node.socket
        serve(arguments)


if __name__ == "__main__":
    main()
