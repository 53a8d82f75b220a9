"""The states of a group's weights, and their order."""

from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import torch

from ... import _hot
from .._tensors.rebuilt import Rebuilt
from .._tensors.resident import KeptLease
from .shown import Shown, end_grade, grade


class State:
    """The fields of all states; most are empty unless it is staged."""

    after: tuple[type[State], ...]  # The states that may follow.
    running = 0  # Running modules that need the group.
    holds = 0  # See Group.hold.
    shown: Shown | None = None  # The staged weights in the modules.


class Idle(State):
    """Not staged. Modules have true values, which are read on access; with
    idle="slot", until the pass ends, they have the forward's weights."""


@dataclasses.dataclass(eq=False)
class Placed(State):
    """Not staged. Compiled code is given the weights at their future address;
    modules have idle ones, which code exchanges by itself."""

    placed: Shown
    weights: list[torch.Tensor]  # Each once.
    rebuilt: dict[int, Rebuilt]  # By place in the list of swaps.
    in_code: Sequence[int] = ()  # The ones that code exchanges.
    with_grad: bool = False

    def follow(self, with_grad: bool) -> None:
        """with_grad: autograd is on. It forbids the writes that our operators
        declare, so the weights need no gradients."""
        if self.with_grad == with_grad:
            return
        self.with_grad = with_grad
        for name, value in self.placed.graded:
            if with_grad:
                end_grade(value)
            else:
                grade(value, name)


class Staged(*_hot.fields("Staged"), State):  # type: ignore[misc]
    """Staged for a while, by the plan or a lease."""

    scratch: torch.Tensor | None = None  # The memory of cast weights.

    def __init__(self, address: int, stream: int | None, before: State,
                 lease: Any = None) -> None:
        """before: the state that modules see outside forwards, and after."""
        self.address = address
        self.streams = [stream]  # The streams that it was staged on.
        self.before = before
        self.lease = lease


@dataclasses.dataclass(eq=False)
class Resident(State):
    """On the device for good, over a lease that each of its tensors keeps."""

    address: int
    lease: KeptLease | None  # None: it has no bytes.


IDLE = Idle()
Idle.after = Placed.after = (Idle, Placed, Staged, Resident)
Staged.after = (Idle, Placed, Resident)  # The last one if it is pinned.
Resident.after = (Idle,)
