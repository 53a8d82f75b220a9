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
from typing import Any, Protocol, Sequence

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


class Turner(Protocol):
    """A model that takes turns."""

    name: str

    def state(self) -> str:
        """ASLEEP, STREAMING or WHOLE."""

    def answers_right(self) -> bool:
        """Runs one pass; compares its answer."""

    def sleep(self) -> None: ...

    def wake(self) -> None:
        """May leave it asleep, or streaming, where there is no room."""


class Layers:
    """Layers of PyTorch's, attached to hoistd."""

    def __init__(self, session: hoist.Session, mib: int, width: int,
                 seed: int) -> None:
        self.name = f"{mib} MiB"
        self._x = torch.ones(2, width, device="cuda" if session.devices[
            0].kind == "cuda" else "cpu")
        torch.manual_seed(seed)
        self._model = torch.nn.Sequential(*(
            torch.nn.Sequential(torch.nn.Linear(width, width, bias=False),
                                torch.nn.Tanh())
            for _ in range(max(1, mib * MIB // (width * width * 4))))).eval()
        self._wanted = self._by_hand()
        hoist.attach(self._model, session=session, progress=False)

    @torch.no_grad()
    def _by_hand(self) -> torch.Tensor:
        x = self._x
        for layer in self._model:
            x = layer.to(x.device)(x)
            layer.to("cpu")
        return x

    def state(self) -> str:
        stats = hoist.stats(self._model)
        return (ASLEEP if not stats.budget_bytes else
                STREAMING if stats.streamed_bytes else WHOLE)

    @torch.no_grad()
    def answers_right(self) -> bool:
        return torch.equal(self._model(self._x), self._wanted)

    def sleep(self) -> None:
        hoist.sleep(self._model)

    def wake(self) -> None:
        with contextlib.suppress(hoist.ResourceExhausted):
            hoist.wake(self._model)

    def check(self) -> None:
        """Raises hoist.DataLoss unless all weights are as they were."""
        hoist.check(self._model)


def states_of(models: Sequence[Turner]) -> str:
    """A character each."""
    return "".join(one.state() for one in models)


def take_turns(models: Sequence[Turner], seconds: float, hand_over: bool
               ) -> tuple[list[Answer], int]:
    """Bursts of requests for at least `seconds`, each for another model; with
    `hand_over`, the last one sleeps before the next one wakes. Returns all
    answers, and the number of wrong ones."""
    draw = random.Random(0)
    answers: list[Answer] = []
    states, who, wrong = states_of(models), 0, 0
    start = time.perf_counter()
    while not answers or answers[-1].end < seconds:
        for _ in range(draw.randint(2, 6)):
            begin, first = time.perf_counter() - start, states[who] == ASLEEP
            wrong += not models[who].answers_right()
            end, states = time.perf_counter() - start, states_of(models)
            answers.append(Answer(begin, end, who, first, states))
        last, who = who, draw.choice(
            [one for one in range(len(models)) if one != who])
        if hand_over:
            models[last].sleep()
            models[who].wake()
            answers[-1].states = states_of(models)
        time.sleep(draw.expovariate(1 / MEAN_PAUSE))
    return answers, wrong


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


def report(models: Sequence[Turner], answers: list[Answer],
           wrong: int) -> None:
    width = max(len(one.name) for one in models)
    for one, row in zip(models, timeline(answers)):
        print(f"{one.name:>{width}}  {row}")
    print(f"{ASLEEP} asleep, {STREAMING} streaming, {WHOLE} whole, "
          f"{ANSWERING} answering; {answers[-1].end:.1f} s")
    for what, first in ("first passes after a sleep", True), ("others", False):
        print(summary(what, [one.end - one.begin for one in answers
                             if one.first == first]))
    print("all answers are right" if not wrong else f"{wrong} WRONG answers")


def run(options: argparse.Namespace) -> int:
    session = hoist.connect(options.socket, name="turns.py")
    models = [Layers(session, mib, options.width, seed)
              for seed, mib in enumerate(options.mib)]
    answers, wrong = take_turns(models, options.seconds, options.hand_over)
    for model in models:
        model.check()
    report(models, answers, wrong)
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
