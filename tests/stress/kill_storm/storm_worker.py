"""A worker that stages checked groups until it is told to end.

storm_worker.py SOCKET MODEL PIPE SEED: PIPE is a descriptor, to which it writes a
byte for each group that it has found right. Its one session goes on whatever
becomes of hoistd. Ends with 0 on SIGTERM, with 3 at the first wrong byte, with 4
if it was told of any error.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import hoist
import numpy as np

GROUPS = 12
GROUP_BYTES = 256 << 10
WRONG = 3
LOST = 4


def bytes_of(group: int) -> np.ndarray:
    return np.random.default_rng(group).integers(
        0, 256, GROUP_BYTES, dtype=np.uint8)


class Worker:
    def __init__(self, socket: str, path: str, pipe: int, seed: int) -> None:
        self._socket = socket
        self._path = path
        self._random = random.Random(seed)
        self._right = [bytes_of(group) for group in range(GROUPS)]
        self._pipe = pipe
        self.stopping = False

    def run(self) -> None:
        try:
            with hoist.connect(self._socket, connect_deadline=60) as session:
                while not self.stopping:
                    self._stream(session)
                    self._stage(session)
        except hoist.HoistError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            sys.exit(LOST)

    def _check(self, group: int, tensor: hoist.Tensor) -> None:
        if os.environ.get("HOIST_TEST_BACKEND") == "cuda":
            got = tensor.torch().cpu().numpy()
        else:
            got = tensor.numpy().copy()
        if not np.array_equal(got, self._right[group]):
            # A plan that has ended says so, and its bytes are void.
            self.confirm()
            print(f"WRONG: group {group}", flush=True)
            os._exit(WRONG)
        os.write(self._pipe, b".")

    def _stream(self, session: hoist.Session) -> None:
        model = session.register(self._path, "files")
        with session.set_plan(model, budget=4 * GROUP_BYTES, order=list(model),
                              deadline=20) as plan:
            self.confirm = plan.check
            for _ in range(self._random.randrange(1, 6)):
                for group in model:
                    with plan.use(group) as tensors:
                        (name,) = tensors
                        self._check(int(name.split(".")[1]), tensors[name])
                    plan.check()
                    if self.stopping:
                        return

    def _stage(self, session: hoist.Session) -> None:
        for number in self._random.sample(range(GROUPS), 3):
            # The same bytes attach, and bring back what was lost.
            model = session.publish("published", f"g{number}",
                                    {"w": self._right[number]})
            with session.stage(model[f"g{number}"], deadline=20) as lease:
                self.confirm = lambda: None
                self._check(number, lease["w"])


def main() -> None:
    worker = Worker(*sys.argv[1:3], *map(int, sys.argv[3:5]))

    def stop(*_: object) -> None:
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    worker.run()


if __name__ == "__main__":
    main()
