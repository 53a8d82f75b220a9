#!/usr/bin/env python3
"""Five models take turns on a device that holds two of them.

turns.py [--mib N N N N N] [--width W] [--seconds S] [--hand-over]
         [--socket PATH]

Start hoistd with a pool for two: `hoistd --user --set device.pool=56MiB`.
Requests come in bursts, each for another model. Idle models give way by
themselves; with --hand-over a model sleeps after its burst, and the next one
wakes before its own. The timeline shows each model's state, and the summary
first passes after a sleep, beside all others. Each answer must be that of the
same weights copied by hand, bit for bit. Exit status: 0 if so, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import sys
import time
from typing import Any

import surroundings

surroundings.need("torch")
surroundings.find_hoist()
surroundings.keep_others_quiet()

import hoist  # noqa: E402
import torch  # noqa: E402

MIB = 1 << 20
ASLEEP, STREAMING, WHOLE, ANSWERING = ".", "~", "=", "#"
COLUMNS = 72
MEAN_PAUSE = 0.05  # Seconds between bursts.


@dataclasses.dataclass
class Answer:
    """A pass of a model, and the states of all models after it."""

    begin: float
    end: float
    who: int
    first: bool  # After a sleep.
    states: str


def make_model(mib: int, width: int, seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    layers = max(1, mib * MIB // (width * width * 4))
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.Linear(width, width, bias=False),
                            torch.nn.Tanh()) for _ in range(layers))).eval()


def by_hand(model: torch.nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    for layer in model:
        x = layer.to(x.device)(x)
        layer.to("cpu")
    return x


def states_of(models: list[torch.nn.Sequential]) -> str:
    """A character each."""
    found = map(hoist.stats, models)
    return "".join(ASLEEP if not one.budget_bytes else
                   STREAMING if one.streamed_bytes else WHOLE for one in found)


def timeline(answers: list[Answer]) -> list[str]:
    """A row for each model."""
    states, rows = answers[0].states, [""] * len(answers[0].states)
    for column in range(COLUMNS):
        low, high = (answers[-1].end * (column + at) / COLUMNS
                     for at in (0, 1))
        answered = {one.who for one in answers
                    if one.begin < high and one.end >= low}
        states = next((one.states for one in reversed(answers)
                       if one.end < high), states)
        rows = [row + (ANSWERING if who in answered else states[who])
                for who, row in enumerate(rows)]
    return rows


def summary(what: str, times: list[float]) -> str:
    if not times:
        return f"{what}: none"
    ranked = sorted(times)
    p50, p99 = (ranked[int((len(ranked) - 1) * share)] * 1e3
                for share in (0.5, 0.99))
    return f"{what}: {len(times)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms"


@torch.no_grad()
def run(options: argparse.Namespace) -> int:
    session = hoist.connect(options.socket, name="turns.py")
    x = torch.ones(2, options.width, device="cuda" if session.devices[
        0].kind == "cuda" else "cpu")
    models = [make_model(mib, options.width, seed)
              for seed, mib in enumerate(options.mib)]
    wanted = [by_hand(model, x) for model in models]
    for model in models:
        hoist.attach(model, session=session, progress=False)
    draw = random.Random(0)
    answers: list[Answer] = []
    states, who, wrong = states_of(models), 0, 0
    start = time.perf_counter()
    while not answers or answers[-1].end < options.seconds:
        for _ in range(draw.randint(2, 6)):
            begin, first = time.perf_counter() - start, states[who] == ASLEEP
            wrong += not torch.equal(models[who](x), wanted[who])
            end, states = time.perf_counter() - start, states_of(models)
            answers.append(Answer(begin, end, who, first, states))
        last, who = who, draw.choice(
            [one for one in range(len(models)) if one != who])
        if options.hand_over:
            hoist.sleep(models[last])
            with contextlib.suppress(hoist.ResourceExhausted):
                hoist.wake(models[who])
            answers[-1].states = states_of(models)
        time.sleep(draw.expovariate(1 / MEAN_PAUSE))
    for model in models:
        hoist.check(model)
    for mib, row in zip(options.mib, timeline(answers)):
        print(f"{mib:6} MiB  {row}")
    print(f"{ASLEEP} asleep, {STREAMING} streaming, {WHOLE} whole, "
          f"{ANSWERING} answering; {answers[-1].end:.1f} s")
    for what, first in ("first passes after a sleep", True), ("others", False):
        print(summary(what, [one.end - one.begin for one in answers
                             if one.first == first]))
    print("all answers are right" if not wrong else f"{wrong} WRONG answers")
    return 1 if wrong else 0


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mib", type=int, nargs=5, default=[24] * 5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--hand-over", action="store_true")
    parser.add_argument("--socket")
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
