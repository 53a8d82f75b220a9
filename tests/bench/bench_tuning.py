#!/usr/bin/env python3
"""Adapters trained over a frozen base that is streamed.

bench_tuning.py --bin DIR [--layers N] [--width W] [--tokens T] [--steps S]
                [--budget FRACTION] [--device cuda|emulated]

A Llama of N layers, frozen, with random weights of a fixed seed and LoRA adapters
(peft) on all linear layers, is trained for S steps of T tokens in turns: resident;
and under hoist with that part of its bytes as budget (a third). Prints medians of
a step, those of the first four left out, which show hoist the order; the bytes
that a step streams, forward and backward; the bound, which is the resident step or
those bytes at the link's rate (measured here), whichever is more; and whether all
losses and adapters equal the resident model's, bit for bit.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from typing import Any

import hoist
import peft
import torch

from bench_decode import TOML, bytes_of, link_rate, make
from common import MIB, hoistd, table

FIRST = 4  # Steps that are not counted.


class Tuned:
    """A base with adapters, and what its steps took and gave."""

    def __init__(self, name: str, base: Any, device: torch.device) -> None:
        self.name = name
        self.device = device
        torch.manual_seed(1)
        self.model = peft.get_peft_model(base, peft.LoraConfig(
            r=16, target_modules="all-linear")).train()
        self.adapters = [one for one in self.model.parameters()
                         if one.requires_grad]
        self.optimizer = torch.optim.SGD(self.adapters, lr=1e-2)
        self.losses: list[float] = []
        self.step_ms: list[float] = []

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, ids: torch.Tensor) -> None:
        self.sync()
        begin = time.perf_counter()
        loss = self.model(input_ids=ids, labels=ids).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.sync()
        self.step_ms.append((time.perf_counter() - begin) * 1e3)
        self.losses.append(loss.item())

    @property
    def median_ms(self) -> float:
        return statistics.median(self.step_ms[FIRST:])


def report(resident: Tuned, hoisted: Tuned, streamed: int,
           rate: float | None) -> None:
    bound = resident.median_ms
    if rate is not None:
        bound = max(bound, streamed / rate)
    same = resident.losses == hoisted.losses and all(
        torch.equal(one, other) for one, other in
        zip(resident.adapters, hoisted.adapters))
    rows: list[tuple[str, ...]] = [
        ("base", "step ms", "first ms", "streamed MB", "bound ms", "x bound",
         "equal")]
    for one in (resident, hoisted):
        mine = one is hoisted
        rows.append((
            one.name, f"{one.median_ms:.1f}", f"{one.step_ms[0]:.0f}",
            f"{streamed / 1e6:.0f}" if mine else "-",
            f"{bound:.1f}" if mine else "-",
            f"{one.median_ms / bound:.3f}" if mine else "-",
            ("yes" if same else "NO") if mine else "-"))
    table(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--budget", type=float, default=1 / 3)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if arguments.steps <= FIRST:
        parser.error(f"--steps: more than {FIRST}")
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    base = make(arguments, device).requires_grad_(False)
    pool = 2 * bytes_of(base) + 256 * MIB
    with hoistd(arguments.bin, TOML.format(
            device=arguments.device, pool=pool, in_place=0)) as node:
        os.environ["HOIST_SOCKET"] = node.socket
        streaming = copy.deepcopy(base)
        hoist.attach(streaming, int(bytes_of(base) * arguments.budget))
        resident = Tuned("resident", base, device)
        hoisted = Tuned(f"hoist, {arguments.budget:.2f} of it", streaming,
                        device)
        generator = torch.Generator().manual_seed(2)
        for _ in range(arguments.steps):
            ids = torch.randint(arguments.vocabulary, (1, arguments.tokens),
                                generator=generator).to(device)
            for one in (resident, hoisted):
                one.step(ids)
        streamed = hoist.stats(streaming).streamed_bytes
        report(resident, hoisted, streamed, link_rate(device))
        hoist.detach(streaming)
    return 0


if __name__ == "__main__":
    sys.exit(main())
