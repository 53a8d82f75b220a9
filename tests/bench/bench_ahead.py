#!/usr/bin/env python3
"""What it is worth to copy cold experts ahead of their reads.

bench_ahead.py --bin DIR [--layers N] [--attention US ...] [--hot PART ...]
               [--right PART ...] [--function grouped_mm|batched_mm]
               [--device cuda|emulated]

Decodes a token at a time: layers of Qwen3-30B-A3B's shape (8 of 128 experts of 9 MiB),
with projections, a wait in place of the rest of attention, and transformers' experts.
Routing is a trace by Zipf's law, in another order of experts in each layer. A guess for
a layer has all its experts, of which the part `right` is right; the others are likely
by the same law. Rows: all experts resident; read in place, as without ahead=; and
fetched ahead. All run in one CUDA graph a row (eagerly on the emulated device), after
the hot set is learnt. The places for copies are part of what is hot; all 48 layers
share them, so these layers pay their part.

cold MB: what a token chose of cold experts. wasted: bytes that were copied and not
read, of all over the link. came: of the cold reads, those whose copy had come. libhoist
calls a touch cold by where the piece is when it takes the counts; a copy is one by where
it was at the read. A piece that got hot between was a hot touch, and its copy still came.
So `came` may exceed 100 %.
equal: all outputs are the resident model's.
"""

from __future__ import annotations

import argparse
import time
import types
from typing import Any, Callable

import hoist
import numpy as np
import torch
from hoist.nn._plan import places
from hoist.nn._plan.ahead import RINGS
from torch import nn
from torch.nn import functional as F
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeExperts, Qwen3MoeRMSNorm)

from common import hoistd, table

TOML = """
[device]
backend = "{device}"
pool = "{pool}MiB"
[host]
pool = "{pool}MiB"
in_place = "{pool}MiB"
[log]
level = "error"
"""
CHOSEN = 8
LEARN, TOKENS = 400, 120
ADVANCE = 100  # Tokens between two looks at what is hot.
DEPTH = 48  # Layers of the model that these stand for.


class Replay:
    """Per step and layer, what the router answers and what is guessed."""

    def __init__(self, layers: int, experts: int, device: torch.device
                 ) -> None:
        self._random = np.random.default_rng(3)
        odds = 1 / np.arange(1, experts + 1)
        self._odds = odds / odds.sum()
        self._orders = [self._random.permutation(experts)
                        for _ in range(layers)]
        self.experts, self.layers, self.device = experts, layers, device
        self.steps = LEARN + TOKENS
        self._chosen = np.array([[self._draw(layer) for layer in range(layers)]
                                 for _ in range(self.steps)])
        self.chosen = torch.from_numpy(self._chosen).to(device)
        self.guess = torch.full_like(self.chosen, -1)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def _draw(self, layer: int) -> np.ndarray:
        return self._orders[layer][self._random.choice(
            self.experts, CHOSEN, replace=False, p=self._odds)]

    def guess_right(self, part: float) -> None:
        made = self._chosen.copy()
        for step in made:
            for layer, ids in enumerate(step):
                wrong = self._random.random(CHOSEN) >= part
                strays = [one for one in np.concatenate(
                    [self._draw(layer) for _ in range(4)])
                    if one not in ids]
                strays = list(dict.fromkeys(strays))[:CHOSEN]
                ids[wrong] = (strays + [-1] * CHOSEN)[:wrong.sum()]
                self._random.shuffle(ids)
        self.guess.copy_(torch.from_numpy(made))

    def at(self, of: torch.Tensor, layer: int) -> torch.Tensor:
        return of[:, layer].index_select(0, self.step)

    def __call__(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """A guess."""
        return self.at(self.guess, layer)


class Block(nn.Module):
    def __init__(self, config: Any, layer: int, replay: Replay) -> None:
        super().__init__()
        self.experts = Qwen3MoeExperts(config)
        self._layer, self._replay = layer, replay

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self._replay.at(self._replay.chosen, self._layer)
        factors = torch.full(chosen.shape, 1 / CHOSEN, dtype=x.dtype,
                             device=x.device)
        return self.experts(x, chosen, factors)


class Layer(nn.Module):
    def __init__(self, config: Any, layer: int, replay: Replay,
                 waits: Callable[[], None]) -> None:
        super().__init__()
        width = config.hidden_size
        self.before = nn.ModuleList(Qwen3MoeRMSNorm(width) for _ in range(2))
        self.up = nn.Linear(width, 5 * width // 2, bias=False)
        self.down = nn.Linear(5 * width // 2, width, bias=False)
        self.mlp = Block(config, layer, replay)
        self._waits = waits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(self.before[0](x))
        self._waits()
        x = x + self.down(F.silu(h))
        return x + self.mlp(self.before[1](x))


class Model(nn.Module):
    """Call `token` for the next."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device
                 ) -> None:
        super().__init__()
        small = device.type != "cuda"
        config = types.SimpleNamespace(
            hidden_size=256 if small else 2048,
            moe_intermediate_size=128 if small else 768,
            num_experts=32 if small else 128, hidden_act="silu",
            num_experts_per_tok=CHOSEN, rms_norm_eps=1e-6,
            _experts_implementation=arguments.function)
        self.cycles = 0
        self.replay = Replay(arguments.layers, config.num_experts, device)
        with device:
            torch.set_default_dtype(torch.bfloat16)
            self.layers = nn.ModuleList(
                Layer(config, layer, self.replay, self._wait)
                for layer in range(arguments.layers))
            self.inputs = torch.randn(self.replay.steps, config.hidden_size)
            torch.set_default_dtype(torch.float32)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.data.normal_(std=0.02)
        self.eval().requires_grad_(False)

    def _wait(self) -> None:
        if self.cycles:
            torch.cuda._sleep(self.cycles)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Decode:
    """Tokens of one model, in a CUDA graph where there are any."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._replay = model.replay
        self._outs = torch.zeros_like(model.inputs)
        self._graph: Any = None
        self._work()
        self._work()
        if model.inputs.is_cuda:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._work()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._work()

    @torch.no_grad()
    def _work(self) -> None:
        step = self._replay.step
        out = self._model(self._model.inputs.index_select(0, step))
        self._outs.index_copy_(0, step, out)
        step.add_(1).remainder_(self._replay.steps)

    def run(self, first: int, count: int) -> float:
        """Milliseconds a token."""
        self._replay.step.fill_(first)
        one = self._graph.replay if self._graph else self._work
        cuda = self._model.inputs.is_cuda
        if cuda:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            one()
        if cuda:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / count

    @property
    def outs(self) -> torch.Tensor:
        return self._outs[LEARN:].clone()


def cycles_of(microseconds: float) -> int:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    torch.cuda.synchronize()
    return int(10_000 / begin.elapsed_time(end) * microseconds)


class Rows:
    def __init__(self, model: Model, arguments: argparse.Namespace,
                 session: hoist.Session) -> None:
        self._model, self._arguments = model, arguments
        self._session = session
        self._expected: dict[int, torch.Tensor] = {}
        self._resident: dict[int, float] = {}
        self._today: dict[tuple[int, float], float] = {}
        self.rows = [("attention, us", "hot", "right", "ms a token",
                      "x resident", "x in place", "cold MB", "wasted", "came",
                      "equal")]

    def _attention(self, us: int) -> None:
        self._model.cycles = (cycles_of(us) if us and
                              self._model.inputs.is_cuda else 0)

    def resident(self) -> None:
        for us in self._arguments.attention:
            self._attention(us)
            decode = Decode(self._model)
            decode.run(0, LEARN)
            self._resident[us] = decode.run(LEARN, TOKENS)
            self._expected[us] = decode.outs
            self.rows.append((str(us), "all", "", f"{self._resident[us]:.2f}",
                              "1.00", "", "", "", "", ""))

    def hot(self, part: float, ahead: bool) -> None:
        stats = hoist.stats(self._model)
        hoist.set_budget(self._model, stats.model_bytes - stats.in_place_bytes
                         + int(part * stats.in_place_bytes)
                         + (self._not_theirs() if ahead else 0))

    def _not_theirs(self) -> int:
        """Of the places' bytes, the part of layers that are not here."""
        experts = self._model.layers[0].mlp.experts
        one = sum(weight.nbytes for weight in experts.parameters()
                  ) // experts.num_experts
        return int(RINGS * places.PLACES * one
                   * max(0, 1 - len(self._model.layers) / DEPTH))

    def row(self, us: int, hot: float, right: float | None, decode: Decode
            ) -> None:
        """right=None: ahead= is not used."""
        model = self._model
        if right is not None:
            model.replay.guess_right(right)
        for first in range(0, LEARN, ADVANCE):
            decode.run(first, ADVANCE)
            hoist.advance(model, wait=True)
        before = hoist.stats(model)
        took = decode.run(LEARN, TOKENS)
        hoist.advance(model, wait=True)
        after = hoist.stats(model)
        cold, fetched, read = (
            getattr(after, name) - getattr(before, name) for name in
            ("touched_cold_bytes", "fetched_bytes", "fetched_read_bytes"))
        if right is None:
            self._today[us, hot] = took
        equal = torch.equal(decode.outs, self._expected[us])
        self.rows.append((
            str(us), f"{hot:.0%}", "" if right is None else f"{right:.0%}",
            f"{took:.2f}", f"{took / self._resident[us]:.2f}",
            f"{took / self._today[us, hot]:.2f}",
            f"{cold / TOKENS / 1e6:.0f}",
            f"{(fetched - read) / max(cold - read + fetched, 1):.0%}",
            f"{read / max(cold, 1):.0%}", "yes" if equal else "NO"))
        print("  ".join(self.rows[-1]), flush=True)

    def attached(self, ahead: Any) -> None:
        arguments, model = self._arguments, self._model
        begin = time.perf_counter()
        hoist.attach(model, budget=1.0, in_place="experts", ahead=ahead,
                     name="mixture", session=self._session)
        print(f"attached in {time.perf_counter() - begin:.1f} s", flush=True)
        self.hot(arguments.hot[0], bool(ahead))
        for us in arguments.attention:
            self._attention(us)
            decode = Decode(model)
            for hot in arguments.hot:
                self.hot(hot, bool(ahead))
                for right in arguments.right if ahead else [None]:
                    self.row(us, hot, right, decode)
            del decode
        if ahead and model.inputs.is_cuda:
            self._variants(arguments.attention[0])
        begin = time.perf_counter()
        hoist.detach(model)
        print(f"detached in {time.perf_counter() - begin:.1f} s", flush=True)

    def _variants(self, us: int) -> None:
        """By the copies' blocks."""
        from hoist.nn._plan import places_cuda
        self._attention(us)
        made = places_cuda._BLOCKS
        for blocks in 8, 32:
            places_cuda._BLOCKS = blocks
            self.rows.append((f"{blocks} blocks",
                              *[""] * (len(self.rows[0]) - 1)))
            decode = Decode(self._model)
            self.row(us, self._arguments.hot[-1], self._arguments.right[0],
                     decode)
            del decode
        places_cuda._BLOCKS = made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--attention", type=int, nargs="+", default=[300, 30],
                        metavar="US")
    parser.add_argument("--hot", type=float, nargs="+", default=[0.6, 0.4])
    parser.add_argument("--right", type=float, nargs="+",
                        default=[0.8, 1.0, 0.5, 0.0])
    parser.add_argument("--function", default="grouped_mm")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    torch.manual_seed(1)
    model = Model(arguments, device)
    nbytes = sum(one.nbytes for one in model.parameters())
    print(f"{nbytes / 1e9:.1f} GB; {places.PLACES} places", flush=True)
    toml = TOML.format(device=arguments.device, pool=(nbytes >> 20) + 1024)
    with hoistd(arguments.bin, toml) as node, hoist.connect(
            node.socket, connect_deadline=60) as session:
        rows = Rows(model, arguments, session)
        rows.resident()
        rows.attached(None)
        rows.attached(model.replay)
    table(rows.rows)


if __name__ == "__main__":
    main()
