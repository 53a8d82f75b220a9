#!/usr/bin/env python3
"""What kernels pay for what they read in place, by where it lies.

bench_in_place.py --bin DIR [--piece-mb MB ...] [--tokens T ...] [--gib N]
                  [--attach PIECES] [--device cuda|emulated]

A tensor of experts, one in a piece each (a piece of less than 2 MiB has several),
of which 8 are read: by a gather (w[ids]), by a product of one vector with each
(bmm of the gathered), and by torch._grouped_mm with T tokens an expert. Prints
microseconds with 0, 1, 2, 4 and 8 of the 8 cold; the rate of what each cold byte adds;
and the same of pinned memory that is read in place (UVA). Then a trace of 200 steps,
each of 8 experts, Zipf-like and uniform, with 40 % hot: the part that was hot, and
microseconds a step beside the floor of the cold bytes. --attach: only how long a second
worker, a process of its own, takes to have a tensor of so many pieces of 2 MiB that the
first one has.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

import hoist
import numpy as np
import torch

from common import GIB, MIB, hoistd, table, write_model
from peers.expert_peers import Pinned, on_device
from peers.measure import link_rate

TOML = """
[device]
backend = "{device}"
pool = "{pool}MiB"
[host]
pool = "1GiB"
in_place = "{in_place}MiB"
[log]
level = "error"
"""
WIDTH = 2048
CHOSEN = 8  # Experts of a token.
COLD = [0, 1, 2, 4, 8]


def timed(work: Callable[[], Any], device: torch.device,
          times: int = 30) -> float:
    """Microseconds of the GPU: the median of calls that were put together."""
    for _ in range(3):
        work()
    if device.type != "cuda":
        begin = time.perf_counter()
        work()
        return 1e6 * (time.perf_counter() - begin)
    torch.cuda.synchronize()
    # So that launches are there before the GPU comes to them.
    torch.cuda._sleep(4_000_000)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(
        a.elapsed_time(b) for a, b in zip(marks, marks[1:]))


class Experts:
    """In place: which of them are hot is told."""

    def __init__(self, session: hoist.Session, model: hoist.Model,
                 unit_bytes: int, device: torch.device) -> None:
        pieces = list(model)
        self.piece_bytes = pieces[0].tensors[0].nbytes
        self.count = len(pieces) * self.piece_bytes // unit_bytes
        self.unit_bytes = unit_bytes
        self.rows = unit_bytes // 2 // WIDTH
        self.device = device
        self._tensors = session.in_place(model, {
            "w": hoist.InPlaceTensor("BF16", (self.count, self.rows, WIDTH),
                                     pieces, units=self.count)},
            deadline=120)
        self.weight = self._tensors["w"].torch()

    def make_hot(self, units: list[int]) -> None:
        """These, and what shares their pieces."""
        for _ in range(10):  # Passes.
            self._tensors.touch("w", dict.fromkeys(units, 100))
        pieces = {unit * self.unit_bytes // self.piece_bytes for unit in units}
        self._tensors.set_budget(len(pieces) * self.piece_bytes)
        self._tensors.advance(wait=True)

    def follow(self, hot_bytes: int) -> None:
        self._tensors.set_budget(hot_bytes)

    def step(self, units: list[int]) -> None:
        self._tensors.touch("w", dict.fromkeys(units, 1))

    def settle(self) -> None:
        self._tensors.advance(wait=True)

    @property
    def stats(self) -> hoist.InPlaceStats:
        return self._tensors.stats


def works(weight: torch.Tensor, ids: torch.Tensor, tokens: list[int]
          ) -> dict[str, Callable[[], Any]]:
    rows = weight.shape[1]
    one = torch.randn(CHOSEN, WIDTH, 1, device=weight.device,
                      dtype=weight.dtype)
    found: dict[str, Callable[[], Any]] = {
        "gather": lambda: weight[ids],
        "gather, bmm": lambda: torch.bmm(weight[ids], one)}
    for count in tokens:
        x = torch.randn(CHOSEN * count, WIDTH, device=weight.device,
                        dtype=weight.dtype)
        ends = torch.zeros(weight.shape[0], dtype=torch.int32,
                           device=weight.device)
        ends[ids] = count
        ends = ends.cumsum(0).to(torch.int32)
        if weight.device.type == "cuda" and rows % 8 == 0:
            found[f"grouped, {count}"] = (
                lambda x=x, ends=ends: torch._grouped_mm(
                    x, weight.transpose(1, 2), offs=ends))
    return found


def cold_rates(experts: Experts, pinned: torch.Tensor, tokens: list[int],
               unit_bytes: int, link: float) -> list[tuple[str, ...]]:
    hot = list(range(CHOSEN))
    cold = list(range(experts.count // 2, experts.count // 2 + CHOSEN))
    experts.make_hot(hot)
    rows = []
    ids = {count: torch.tensor(cold[:count] + hot[count:],
                               device=experts.device) for count in COLD}
    for name in works(experts.weight, ids[0], tokens):
        times = [timed(works(experts.weight, ids[count], tokens)[name],
                       experts.device) for count in COLD]
        beside = timed(works(pinned, ids[0], tokens)[name], experts.device)
        bytes_more = CHOSEN * unit_bytes
        rate = bytes_more / max(times[-1] - times[0], 1e-3) / 1e3
        rows.append((f"{unit_bytes / 1e6:.1f} MB, {name}",
                     *(f"{one:.0f}" for one in times),
                     f"{1e6 * bytes_more / link:.0f}", f"{rate:.1f}",
                     f"{beside:.0f}",
                     f"{bytes_more / max(beside - times[0], 1e-3) / 1e3:.1f}"))
    return rows


def trace_of(law: str, count: int, steps: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    odds = (1 / np.arange(1, count + 1) if law == "Zipf" else np.ones(count))
    order = random.permutation(count)
    return [[int(order[one]) for one in random.choice(
        count, CHOSEN, replace=False, p=odds / odds.sum())]
        for _ in range(steps)]


def trace_times(experts: Experts, unit_bytes: int, law: str, link: float
                ) -> tuple[str, ...]:
    experts.follow(0)
    experts.settle()
    experts.follow(int(experts.count * unit_bytes * 0.4))
    trace = trace_of(law, experts.count, 400)
    for step in trace[:200]:
        experts.step(step)
    experts.settle()
    before = experts.stats
    took = []
    for step in trace[200:]:
        ids = torch.tensor(step, device=experts.device)
        took.append(timed(lambda: experts.weight[ids], experts.device, 1))
        experts.step(step)
    after = experts.stats
    cold = after.touched_cold_bytes - before.touched_cold_bytes
    hot = after.touched_hot_bytes - before.touched_hot_bytes
    return (f"{unit_bytes / 1e6:.1f} MB, {law}",
            f"{100 * hot / (hot + cold):.0f} %", f"{statistics.mean(took):.0f}",
            f"{1e6 * cold / 200 / link:.0f}")


SECOND = """
import sys, time
import hoist, torch
torch.ones(1, device=sys.argv[2])
with hoist.connect(sys.argv[1], connect_deadline=60) as session:
    model = session.model("experts")
    pieces = list(model)
    begin = time.perf_counter()
    tensors = session.in_place(model, {"w": hoist.InPlaceTensor(
        "U8", (sum(p.tensors[0].nbytes for p in pieces),), pieces,
        units=len(pieces))}, deadline=120)
    first = tensors["w"].torch()[:8].cpu()
    print(f"{time.perf_counter() - begin:.2f}", flush=True)
"""


def attach(programs: str, pieces: int, device: str) -> None:
    cuda = device == "cuda"
    toml = TOML.format(device=device, pool=512, in_place=2 * pieces + 64)
    with tempfile.TemporaryDirectory(
            dir="/dev/shm" if cuda else None) as folder, \
            hoistd(programs, toml) as node:
        path = pathlib.Path(folder, "model.safetensors")
        write_model(path, pieces, 2 * MIB)
        with hoist.connect(node.socket, connect_deadline=60) as session:
            model = session.register(path, "experts")
            begin = time.perf_counter()
            first = session.in_place(model, {"w": hoist.InPlaceTensor(
                "U8", (pieces * 2 * MIB,), list(model), units=pieces)},
                deadline=300)
            took = time.perf_counter() - begin
            second = subprocess.run(
                [sys.executable, "-c", SECOND, node.socket,
                 "cuda" if cuda else "cpu"], check=True, text=True,
                capture_output=True).stdout
            first.close()
    table([("pieces", "first worker, s", "second worker, s"),
           (str(pieces), f"{took:.2f}", second.strip())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--piece-mb", type=float, nargs="+",
                        default=[0.5, 2, 6, 24, 96])
    parser.add_argument("--tokens", type=int, nargs="+",
                        default=[1, 16, 256])
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--attach", type=int, metavar="PIECES")
    arguments = parser.parse_args()
    if arguments.attach:
        attach(arguments.bin, arguments.attach, arguments.device)
        return
    device = torch.device("cuda" if arguments.device == "cuda" else "cpu")
    link = link_rate(device)
    print(f"link {link / 1e9:.1f} GB/s")
    rates = [("8 experts", *(f"{n} cold, us" for n in COLD), "link, us",
              "GB/s", "UVA, us", "GB/s")]
    traces = [("experts, routing", "hot", "us a step", "link, us")]
    for size in arguments.piece_mb:
        unit = int(size * MIB)
        piece = max(unit, 2 * MIB)
        count = max(16, min(128, int(arguments.gib * GIB) // piece))
        toml = TOML.format(device=arguments.device,
                           pool=(count * piece >> 20) + 512,
                           in_place=(count * piece >> 20) + 64)
        with tempfile.TemporaryDirectory() as folder, \
                hoistd(arguments.bin, toml) as node:
            path = pathlib.Path(folder, "model.safetensors")
            write_model(path, count, piece)
            with hoist.connect(node.socket, connect_deadline=60) as session:
                model = session.register(path, "experts")
                experts = Experts(session, model, unit, device)
                memory = Pinned(device)
                pinned = on_device(memory.copy_of(experts.weight.cpu()),
                                   device)
                rates += cold_rates(experts, pinned, arguments.tokens, unit,
                                    link)
                for law in ("Zipf", "uniform"):
                    traces.append(trace_times(experts, unit, law, link))
    table(rates)
    print()
    table(traces)


if __name__ == "__main__":
    main()
