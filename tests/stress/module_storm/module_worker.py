"""A worker that attaches modules, calls them and detaches them until it is told
to end.

module_worker.py PIPE SEED: PIPE is a descriptor, to which it writes a byte for
each module that came through whole: "a" attached and detached, "r" refused and as
it was, "l" lost with an error that says so. Ends with 0 on SIGTERM, with 3 at the
first wrong byte, with 4 if a module cannot be had back and no error says that it
is lost.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import sys
import time

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / "../../support"),
                str(HERE / "../../conformance/torch")]

import hoist  # noqa: E402
import torch  # noqa: E402
from failing import Belongings  # noqa: E402
from torch import nn  # noqa: E402

WIDTH, LAYERS, KINDS = 160, 6, 4
WRONG, KEPT = 3, 4
DETACH_SECONDS = 120


def module_of(kind: int) -> nn.Module:
    """Workers have the same four: hoistd has each once."""
    torch.manual_seed(kind)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    return nn.Sequential(*layers).eval()


class Worker:
    def __init__(self, pipe: int, seed: int) -> None:
        self._pipe = pipe
        self._random = random.Random(seed)
        self._x = torch.rand(2, WIDTH)
        self._states = [{name: value.clone() for name, value
                         in module_of(kind).state_dict().items()}
                        for kind in range(KINDS)]
        self._outputs = [module_of(kind)(self._x) for kind in range(KINDS)]
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            kind = self._random.randrange(KINDS)
            os.write(self._pipe, self._life(kind).encode())

    def _life(self, kind: int) -> str:
        module = module_of(kind)
        own = Belongings(module)
        budget = self._random.choice([0.4, 0.7, 1.0])
        try:
            hoist.attach(module, budget, stage_deadline=5)
        except hoist.HoistError as error:
            say("attach", error)
            own.assert_all_there()
            self._check(kind, module(self._x), "a module that was not attached")
            return "r"
        for _ in range(self._random.randrange(8)):
            try:
                output = module(self._x)
            except hoist.HoistError as error:
                say("forward", error)
                continue
            self._check(kind, output, "a pass")
        return self._detach(kind, module)

    def _detach(self, kind: int, module: nn.Module) -> str:
        end = time.monotonic() + DETACH_SECONDS
        while True:
            try:
                hoist.detach(module)
                break
            except (hoist.NotFound, hoist.DataLoss) as error:
                say("lost", error)
                return "l"
            except hoist.HoistError as error:
                say("detach", error)
                if time.monotonic() > end:
                    os._exit(KEPT)
        for name, value in module.state_dict().items():
            if not torch.equal(value, self._states[kind][name]):
                wrong(f"{name} after detach")
        self._check(kind, module(self._x), "a module that was detached")
        return "a"

    def _check(self, kind: int, output: torch.Tensor, what: str) -> None:
        if not torch.equal(output, self._outputs[kind]):
            wrong(what)


def say(what: str, error: Exception) -> None:
    print(f"{what}: {type(error).__name__}: {error}", flush=True)


def wrong(what: str) -> None:
    print(f"WRONG: {what}", flush=True)
    os._exit(WRONG)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    worker = Worker(*map(int, sys.argv[1:3]))

    def stop(*_: object) -> None:
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    worker.run()


if __name__ == "__main__":
    main()
