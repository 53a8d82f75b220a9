"""A worker that stages checked groups until it is told to end.

storm_worker.py SOCKET MODEL PIECES PIPE SEED: of MODEL's groups it streams some and
stages some, and PIECES' it reads in place, while they become hot and cold. PIPE is
a descriptor, to which it writes a byte for each group that it has found right: HOT,
if it read a piece of it from device memory in place, else COLD. Its
one session goes on whatever becomes of hoistd. Ends with 0 on SIGTERM, with 3 at
the first wrong byte, with 4 if it was told of any error.
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
PIECES = 4
PIECE_BYTES = 2 << 20
COLD, HOT = b".", b"h"
WRONG = 3
LOST = 4


def bytes_of(group: int) -> np.ndarray:
    return np.random.default_rng(group).integers(
        0, 256, GROUP_BYTES, dtype=np.uint8)


def bytes_of_piece(piece: int) -> np.ndarray:
    return np.random.default_rng(GROUPS + piece).integers(
        0, 256, PIECE_BYTES, dtype=np.uint8)


def read(tensor: hoist.Tensor) -> np.ndarray:
    if os.environ.get("HOIST_TEST_BACKEND") == "cuda":
        return tensor.torch().cpu().numpy()
    return tensor.numpy().copy()


class Worker:
    def __init__(self, socket: str, path: str, pieces: str, pipe: int,
                 seed: int) -> None:
        self._socket = socket
        self._path = path
        self._pieces = pieces
        self._random = random.Random(seed)
        self._right = [bytes_of(group) for group in range(GROUPS)]
        self._right_pieces = np.stack(
            [bytes_of_piece(piece) for piece in range(PIECES)])
        self._pipe = pipe
        self.stopping = False

    def run(self) -> None:
        try:
            with hoist.connect(self._socket, connect_deadline=60) as session:
                while not self.stopping:
                    self._stream(session)
                    self._stage(session)
                    self._read_in_place(session)
        except hoist.HoistError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            sys.exit(LOST)

    def _check(self, group: int, tensor: hoist.Tensor) -> None:
        if not np.array_equal(read(tensor), self._right[group]):
            # A plan that has ended says so, and its bytes are void.
            self.confirm()
            print(f"WRONG: group {group}", flush=True)
            os._exit(WRONG)
        os.write(self._pipe, COLD)

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

    def _read_in_place(self, session: hoist.Session) -> None:
        model = session.register(self._pieces, "pieces")
        made = hoist.InPlaceTensor("U8", (PIECES, PIECE_BYTES),
                                   [f"experts.{piece}"
                                    for piece in range(PIECES)], units=PIECES)
        tensors = session.in_place(model, {"all": made}, deadline=20,
                                   hot_bytes=PIECE_BYTES)
        try:
            for _ in range(self._random.randrange(1, 6)):
                # Another piece becomes hot, and the one before it cold.
                piece = self._random.randrange(PIECES)
                for _ in range(40):  # Passes.
                    tensors.touch("all", {piece: 1})
                if self._random.random() < 0.5:
                    tensors.advance(wait=True)
                tensors.begin()
                hot = tensors.stats.hot_piece_count > 0
                same = np.array_equal(read(tensors["all"]), self._right_pieces)
                tensors.end()
                if not same:
                    tensors.check()
                    print("WRONG: a piece", flush=True)
                    os._exit(WRONG)
                os.write(self._pipe, HOT if hot else COLD)
        finally:
            tensors.close()


def main() -> None:
    worker = Worker(*sys.argv[1:4], *map(int, sys.argv[4:6]))

    def stop(*_: object) -> None:
        worker.stopping = True

    signal.signal(signal.SIGTERM, stop)
    worker.run()


if __name__ == "__main__":
    main()
