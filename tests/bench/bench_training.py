#!/usr/bin/env python3
"""What a step of LoRA takes over a frozen base that is streamed.

bench_training.py --bin DIR [--layers N] [--width W] [--tokens T ...]
                  [--part F] [--steps S] [--device cuda|emulated]

A decoder has N layers in bfloat16, with random weights of a fixed seed and
adapters on the seven linears of each layer. It takes S steps of AdamW over T
tokens, with all of the base on the device, and under hoist with the part F of
its memory. For each T it prints the medians of both, in milliseconds; the bytes
that a step streams by its plan, and the bound: the resident step, or twice the
bytes that do not stay at the link's rate, measured here, whatever takes longer;
hoist's step by that; and whether all losses and gradients were the resident
one's, bit for bit.
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
import torch
from torch import nn

from common import MIB, compute_alike, hoistd, link_rate, table

TOML = """
[device]
backend = "{device}"
pool = {pool}
[host]
pool = {host}
"""
RANK = 16


class Adapted(nn.Module):
    """A frozen linear, and what is trained beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        like = dict(bias=False, dtype=torch.bfloat16)
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, **like)
        self.up = nn.Linear(RANK, base.out_features, **like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Layer(nn.Module):
    LINEARS = ("q", "k", "v", "o", "gate", "rise", "fall")

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * 11 // 4
        shapes = {"gate": (width, inner), "rise": (width, inner),
                  "fall": (inner, width)}
        for name in self.LINEARS:
            setattr(self, name, nn.Linear(*shapes.get(name, (width, width)),
                                          bias=False))
        self.before = nn.RMSNorm(width)
        self.between = nn.RMSNorm(width)
        self.heads = max(1, width // 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
                   for one in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v,
                                                       is_causal=True)
        x = x + self.o(y.transpose(-3, -2).flatten(-2))
        y = self.between(x)
        return x + self.fall(nn.functional.silu(self.gate(y)) * self.rise(y))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def adapt(model: nn.Module, device: torch.device) -> nn.Module:
    """The same adapters each time."""
    torch.manual_seed(1)
    for layer in model.layers:
        for name in Layer.LINEARS:
            made = Adapted(getattr(layer, name))
            made.down.to(device)
            made.up.to(device)
            setattr(layer, name, made)
    return model


class Trainer:
    """One model: its steps' times, losses and gradients."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.trained = [one for one in model.parameters()
                        if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, 1e-4)
        self.step_ms: list[float] = []
        self.given: list[list[torch.Tensor]] = []

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def step(self, x: torch.Tensor) -> None:
        self.sync()
        begin = time.perf_counter()
        loss = (self.model(x).float() ** 2).mean()
        loss.backward()
        self.optimizer.step()
        self.sync()
        self.step_ms.append((time.perf_counter() - begin) * 1e3)
        # Sums of bits, so that steps are compared and not kept.
        self.given.append([loss.detach(), *(
            one.grad.view(torch.int16).sum(dtype=torch.int64)
            for one in self.trained)])
        self.optimizer.zero_grad()


def measure(arguments: argparse.Namespace, tokens: int, rate: float | None,
            plain: Trainer, ours: Trainer) -> tuple[str, ...]:
    for one in (plain, ours):
        one.step_ms.clear()
        one.given.clear()
    warm = 3  # The order is learned, and planned with its backward.
    for at in range(arguments.steps + warm):
        torch.manual_seed(at)
        x = torch.randn(1, tokens, arguments.width).to(
            ours.device, torch.bfloat16)
        for one in (plain, ours):
            one.step(x)
    attachment: Any = vars(ours.model)["_hoist"]
    comes = sum(group.staged.image_bytes for group in attachment.groups
                if not group.bound)
    stats = hoist.stats(ours.model)
    resident, streamed = (statistics.median(one.step_ms[warm:])
                          for one in (plain, ours))
    same = all(torch.equal(mine, other)
               for mine, other in zip(sum(ours.given, []),
                                      sum(plain.given, [])))
    bound = over = "-"
    if rate is not None:
        floor = max(resident, 2 * comes / rate)
        bound, over = f"{floor:.1f}", f"{streamed / floor:.3f}"
    return (str(tokens), f"{resident:.1f}", f"{streamed:.1f}",
            f"{stats.budget_bytes / MIB:.0f}", f"{2 * comes / MIB:.0f}",
            f"{stats.streamed_bytes / MIB:.0f}",
            "-" if rate is None else f"{rate / 1e6:.1f}", bound, over,
            "yes" if same else "NO")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--tokens", type=int, nargs="+",
                        default=[1024, 8192])
    parser.add_argument("--part", type=float, default=1 / 3)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    compute_alike()
    cuda = arguments.device == "cuda"
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    with torch.device(device):
        base = Decoder(arguments.layers, arguments.width).to(
            torch.bfloat16).requires_grad_(False)
    whole = sum(one.nbytes for one in base.parameters())
    rows: list[tuple[str, ...]] = [
        ("tokens", "resident ms", "hoist ms", "budget MiB",
         "2 x what comes, MiB", "planned a step, MiB", "link GB/s",
         "bound ms", "x bound", "equal")]
    with hoistd(arguments.bin, TOML.format(
            device=arguments.device,
            pool=int(whole * arguments.part) + 256 * MIB,
            host=int(whole * 1.25) + 256 * MIB)) as node:
        os.environ["HOIST_SOCKET"] = node.socket
        model = copy.deepcopy(base)
        hoist.attach(model, arguments.part)
        ours = Trainer(adapt(model, device), device)
        plain = Trainer(adapt(base, device), device)
        rate = link_rate(device)
        for tokens in arguments.tokens:
            rows.append(measure(arguments, tokens, rate, plain, ours))
        hoist.check(model)
        hoist.detach(model)
    table(rows)
    return 0 if all(row[-1] == "yes" for row in rows[1:]) else 1


if __name__ == "__main__":
    sys.exit(main())
