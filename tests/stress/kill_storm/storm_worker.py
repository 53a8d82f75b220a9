"""A worker that stages checked groups until it is told to end.

storm_worker.py SOCKET MODEL PIECES PIPE SEED: of MODEL's groups it streams some and
stages some, and PIECES' it reads in place, while they become hot and cold. PIPE is
a descriptor, to which it writes a byte for each group that it has found right: HOT,
if it read a piece of it from device memory in place, else COLD. Its
one session goes on whatever becomes of hoistd. Ends with 0 on SIGTERM, with 3 at
the first wrong byte, with 4 if it was told of any error.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import struct
import sys
import time
from typing import Any

import hoist
import numpy as np

GROUPS = 12
GROUP_BYTES = 256 << 10
PIECES = 4
PIECE_BYTES = 2 << 20
# Of a plan, which may need no hoistd; of a stage, which needs one; in place.
STREAMED, STAGED, COLD, HOT = b"p", b"s", b"c", b"h"
OTHER = b"w"  # So many bytes are wrong.
FOUND = struct.Struct("=c7xd")  # CLOCK_MONOTONIC's seconds.
WRONG = 3
LOST = 4
CUDA, DRIVER = False, None
if os.environ.get("HOIST_TEST_BACKEND") == "cuda":
    import torch
    CUDA = torch.cuda.is_available()
    if not CUDA:  # The tests' driver, whose memory is this process's own.
        DRIVER = ctypes.CDLL("libcuda.so.1")


def bytes_of(group: int) -> np.ndarray:
    return np.random.default_rng(group).integers(
        0, 256, GROUP_BYTES, dtype=np.uint8)


def bytes_of_piece(piece: int) -> np.ndarray:
    return np.random.default_rng(GROUPS + piece).integers(
        0, 256, PIECE_BYTES, dtype=np.uint8)


def wrong_bytes(tensor: hoist.Tensor, right: Any) -> Any:
    """How many; on a GPU its kernel may still run."""
    if CUDA:
        return (tensor.torch() != right).sum()
    if DRIVER is not None:
        DRIVER.cuStreamSynchronize(None)
    found = (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
    return np.count_nonzero(np.reshape(found, right.shape) != right)


class Worker:
    def __init__(self, socket: str, path: str, pieces: str, pipe: int,
                 seed: int) -> None:
        self._socket = socket
        self._path = path
        self._pieces = pieces
        self._random = random.Random(seed)
        self._right: list[Any] = [bytes_of(group) for group in range(GROUPS)]
        self._right_pieces: Any = np.stack(
            [bytes_of_piece(piece) for piece in range(PIECES)])
        if CUDA:  # Compared there: kernels read in place while somebody dies.
            self._right = [torch.from_numpy(one).cuda() for one in self._right]
            self._right_pieces = torch.from_numpy(self._right_pieces).cuda()
        self._pipe = pipe
        self._begun = time.monotonic()
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

    def _found(self, kind: bytes, wrong: int, what: str) -> None:
        if wrong:
            # What has ended says so, and its bytes are void.
            self.confirm()
            print(f"WRONG: {wrong} bytes of {what}", flush=True)
            os.write(self._pipe, FOUND.pack(OTHER, wrong))
            os._exit(WRONG)
        os.write(self._pipe, FOUND.pack(kind, self._begun))
        self._begun = time.monotonic()

    def _check(self, kind: bytes, group: int, tensor: hoist.Tensor) -> None:
        wrong = int(wrong_bytes(tensor, self._right[group]))
        self._found(kind, wrong, f"group {group}")

    def _stream(self, session: hoist.Session) -> None:
        model = session.register(self._path, "files")
        with session.set_plan(model, budget=4 * GROUP_BYTES, order=list(model),
                              deadline=20) as plan:
            self.confirm = plan.check
            for _ in range(self._random.randrange(1, 6)):
                for group in model:
                    with plan.use(group) as tensors:
                        (name,) = tensors
                        self._check(STREAMED, int(name.split(".")[1]),
                                    tensors[name])
                    plan.check()
                    if self.stopping:
                        return

    def _stage(self, session: hoist.Session) -> None:
        self.confirm = lambda: None
        for number in self._random.sample(range(GROUPS), 3):
            self._begun = time.monotonic()
            # The same bytes attach, and bring back what was lost.
            model = session.publish("published", f"g{number}",
                                    {"w": self._right[number]})
            with session.stage(model[f"g{number}"], deadline=20) as lease:
                self._check(STAGED, number, lease["w"])

    def _read_in_place(self, session: hoist.Session) -> None:
        model = session.register(self._pieces, "pieces")
        made = hoist.InPlaceTensor("U8", (PIECES, PIECE_BYTES),
                                   [f"experts.{piece}"
                                    for piece in range(PIECES)], units=PIECES)
        tensors = session.in_place(model, {"all": made}, deadline=20,
                                   hot_bytes=PIECE_BYTES)
        self.confirm = tensors.check
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
                wrong = wrong_bytes(tensors["all"], self._right_pieces)
                tensors.end()
                self._found(HOT if hot else COLD, int(wrong), "the pieces")
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
