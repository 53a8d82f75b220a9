"""Counts of stages: those of the host, and those of CUDA graph replays.

A pass that ran without staging a group has read other bytes in its place. The
host counts its own calls. A call that a CUDA graph records does not run again,
but an addition that the graph records beside it does: replays are counted on
the device, and checked once the device has reached them.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Sequence

import torch

# Passes whose counts may be in transfer from the device.
_IN_FLIGHT = 2


@dataclasses.dataclass
class Mark:
    """The counts at the beginning of a pass."""

    host: list[int]
    replayed: torch.Tensor | None  # In transfer to the host; None: no graphs.


@dataclasses.dataclass
class _Late:
    """A pass whose replay counts have not arrived yet."""

    host: list[bool]
    begin: torch.Tensor
    end: torch.Tensor
    there: Any  # The event after both.


# Takes for each group whether the pass staged it; raises if it was required.
Judge = Callable[[Sequence[bool]], None]


class StageCounts:
    """The counts of one model's groups, by number.

    Threads: those that run the model, one at a time. If two threads' passes
    overlap, the stages of one may hide a missed stage of the other.
    """

    def __init__(self, groups: int, device: torch.device,
                 judge: Judge) -> None:
        self._host = [0] * groups
        self._judge = judge
        self._is_cuda = device.type == "cuda"
        self._replays: torch.Tensor | None = None
        self._recorded = False  # Whether a graph adds to the replays.
        self._late: collections.deque[_Late] = collections.deque()
        if self._is_cuda:
            with torch.inference_mode(False):
                self._replays = torch.zeros(groups, dtype=torch.int64,
                                            device=device)

    def note(self, group: int) -> None:
        """Counts a stage for later work on the current stream."""
        self._host[group] += 1
        if self._is_capturing():
            assert self._replays is not None
            self._recorded = True
            self._replays[group].add_(1)

    def begin_pass(self) -> Mark:
        """Raises the judge's errors about earlier passes."""
        self.check(wait=False)
        return Mark(list(self._host), self._snapshot())

    def end_pass(self, begin: Mark) -> None:
        """Raises the judge's errors about earlier passes, and about this one if
        the host knows its counts."""
        staged = [now > then
                  for now, then in zip(self._host, begin.host)]
        end = None if all(staged) else self._snapshot()
        if begin.replayed is None or end is None:
            self._judge(staged)
        else:
            there = torch.cuda.Event()
            there.record()
            self._late.append(_Late(staged, begin.replayed, end, there))
        self.check(wait=False)

    def check(self, wait: bool = True) -> None:
        """Raises the judge's errors about passes whose replays are complete;
        wait: about all passes."""
        while self._late:
            late = self._late[0]
            if wait or len(self._late) > _IN_FLIGHT:
                late.there.synchronize()
            elif not late.there.query():
                return
            self._late.popleft()
            self._judge([host or bool(now > then) for host, now, then in zip(
                late.host, late.end.tolist(), late.begin.tolist())])

    def _is_capturing(self) -> bool:
        return self._is_cuda and torch.cuda.is_current_stream_capturing()

    def _snapshot(self) -> torch.Tensor | None:
        """A copy of the replay counts, in stream order."""
        if not self._recorded or self._is_capturing():
            return None
        assert self._replays is not None
        with torch.inference_mode(False), torch.no_grad():
            there = torch.empty(self._replays.shape, dtype=torch.int64,
                                device="cpu", pin_memory=True)
            return there.copy_(self._replays, non_blocking=True)
