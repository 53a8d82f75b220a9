"""A device whose copies are made as late as they may be, and an arena; without
a GPU and without a hoistd."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hoist import ResourceExhausted
from hoist.activations._copying import Copies, Mark

GARBAGE = 0xEE


class _Place:
    """A range of memory that a copy does not keep alive."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._ref = StorageWeakRef(flat.untyped_storage())
        self._at = flat.storage_offset(), flat.shape, flat.stride()

    def flat(self) -> torch.Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._ref.cdata)
        assert storage is not None, "memory was free before its copy was made"
        return torch.empty(0, dtype=torch.uint8).set_(storage, *self._at)


class LateCopier:
    """Copies nothing before somebody waits for it; what was not waited for
    reads as garbage, or finds its memory gone."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.waits = 0
        self._queues: dict[str, list[Callable[[], None]]] = {"out": [],
                                                             "in": []}
        self._done = {"out": 0, "in": 0}

    def out_stream(self) -> int:
        return 1

    def in_stream(self) -> int:
        return 2

    def check(self) -> None:
        pass

    def current(self) -> Any:
        return None

    def copy_out(self, copies: Copies) -> Mark:
        for source, target in copies:
            self._put("out", source, target)
        return ("out", len(self._queues["out"]))

    def copy_in(self, copies: Copies) -> list[Mark]:
        marks = []
        # What is copied back was copied out before: one link, as it were.
        for source, target in copies:
            target.fill_(GARBAGE)
            self._put("in", source, target, ("out", len(self._queues["out"])))
            marks.append(("in", len(self._queues["in"])))
        return marks

    def wait(self, mark: Mark, stream: Any = None) -> None:
        self.waits += 1
        self._run(mark)

    def is_done(self, mark: Mark) -> bool:
        return self._done[mark[0]] >= mark[1]

    def synchronize(self) -> None:
        for name, queue in self._queues.items():
            self._run((name, len(queue)))

    def _put(self, name: str, source: torch.Tensor, target: torch.Tensor,
             after: Mark | None = None) -> None:
        places = _Place(source), _Place(target)

        def copy() -> None:
            if after is not None:
                self._run(after)
            places[1].flat().copy_(places[0].flat())

        self._queues[name].append(copy)

    def _run(self, mark: Mark) -> None:
        name, until = mark
        while self._done[name] < until:
            self._done[name] += 1
            self._queues[name][self._done[name] - 1]()


class Block:
    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes


class Arena:
    """Blocks one after another; one that is given back is overwritten."""

    def __init__(self, nbytes: int) -> None:
        self._memory = ctypes.create_string_buffer(nbytes)
        self.bytes, self.pinned_bytes = nbytes, 0
        self._used = 0
        self.taken: dict[int, Block] = {}
        self.given_on: list[int] = []
        self.is_closed = False

    @property
    def stats(self) -> Arena:
        return self

    def take(self, nbytes: int, stream: int = 0) -> Block:
        if self._used + nbytes > self.bytes:
            raise ResourceExhausted(f"no {nbytes} of {self.bytes} are left")
        block = Block(ctypes.addressof(self._memory) + self._used, nbytes)
        self._used += nbytes
        self.taken[block.address] = block
        return block

    def give(self, block: Block, stream: int = 0) -> None:
        del self.taken[block.address]
        self.given_on.append(stream)
        ctypes.memset(block.address, GARBAGE, block.nbytes)

    def close(self) -> None:
        assert not self.taken and not self.is_closed
        self.is_closed = True
