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
worker, a process of its own, takes to have so many pieces of 2 MiB that the first one has:
as one tensor, and as the experts of a module that hoist.load fills.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any, Callable

import hoist
import numpy as np
import torch
from torch import nn

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
                                     [piece.name for piece in pieces],
                                     units=self.count)},
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


class ExpertsOfLayer(nn.Module):
    """One layer's, stacked; an expert has 2 MiB, a piece, in each matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(
            torch.empty(128, 2048, 512, dtype=torch.bfloat16))
        self.down_proj = nn.Parameter(
            torch.empty(128, 512, 2048, dtype=torch.bfloat16))


def mixture(pieces: int) -> nn.Module:
    """On the meta device."""
    with torch.device("meta"):
        return nn.ModuleDict({"layers": nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(512),
                           "experts": ExpertsOfLayer()})
            for _ in range(pieces // 256))})


def write_mixture(path: pathlib.Path, pieces: int) -> None:
    """Zeros, as a sparse file."""
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, tensor in mixture(pieces).state_dict().items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": hoist._dtypes.from_torch(tensor.dtype),
                        "shape": list(tensor.shape),
                        "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def attach_tensor(session: hoist.Session, path: str, pieces: int
                  ) -> tuple[float, Any]:
    """Seconds, and what is to be kept."""
    model = session.register(path, "experts")
    begin = time.perf_counter()
    tensors = session.in_place(model, {"w": hoist.InPlaceTensor(
        "U8", (pieces * 2 * MIB,), [one.name for one in model],
        units=pieces)}, deadline=300)
    return time.perf_counter() - begin, tensors


def attach_mixture(session: hoist.Session, path: str, pieces: int
                   ) -> tuple[float, Any]:
    module, load = mixture(pieces), hoist.load  # Which imports hoist.nn.
    begin = time.perf_counter()
    load(module, path, "64MiB", in_place="auto", session=session,
         deadline=300)
    return time.perf_counter() - begin, module


WAYS = {"session.in_place, one tensor":
        (attach_tensor, lambda path, pieces: write_model(path, pieces,
                                                         2 * MIB)),
        "hoist.load, a mixture": (attach_mixture, write_mixture)}


def second(way: str, socket: str, path: str, pieces: int,
           device: str) -> tuple[float, float]:
    """Seconds, and seconds of CPU, of a process of its own."""
    torch.ones(1, device=device)
    with hoist.connect(socket, connect_deadline=60) as session:
        before = time.process_time()
        took, kept = WAYS[way][0](session, path, pieces)
        cpu = time.process_time() - before
        del kept
        return took, cpu


def attach(programs: str, pieces: int, device: str) -> None:
    cuda = device == "cuda"
    toml = TOML.format(device=device, pool=512, in_place=2 * pieces + 64)
    rows = [("pieces", "way", "first worker, s", "second worker, s",
             "its CPU, s")]
    for way, (attaches, write) in WAYS.items():
        with tempfile.TemporaryDirectory(
                dir="/dev/shm" if cuda else None) as folder, \
                hoistd(programs, toml) as node:
            path = pathlib.Path(folder, "model.safetensors")
            write(path, pieces)
            with hoist.connect(node.socket, connect_deadline=60) as session:
                took, kept = attaches(session, str(path), pieces)
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    again, cpu = pool.apply(second, (
                        way, node.socket, str(path), pieces,
                        "cuda" if cuda else "cpu"))
                del kept
        rows.append((str(pieces), way, f"{took:.2f}", f"{again:.2f}",
                     f"{cpu:.2f}"))
    table(rows)


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
