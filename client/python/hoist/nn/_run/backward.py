"""Backwards through a module with transient weights.

A graph has the identity of each weight that it needs (saved.py). Before one of
its nodes runs, the group is staged for that node, without the modules. It stays
until another block's turn in the same backward, or the backward's end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any, Callable

import torch

from ... import _saved_tensors
from ..._errors import FailedPrecondition, HoistError, Unavailable
from .._show.group import Group
from .._tensors.lent import Read
from .turns import Turns, is_in_backward


@dataclasses.dataclass
class _Turn:
    """The groups that one thread of a backward has staged for its node."""

    node: Any = None
    is_new: bool = True  # The node has read nothing yet.
    groups: list[Group] = dataclasses.field(default_factory=list)
    reads: dict[tuple[Group, str], Read] = dataclasses.field(
        default_factory=dict)


@dataclasses.dataclass(eq=False)
class _Backward:
    """One backward: a graph task of the engine."""

    task: int  # The engine's number of it.
    turns: dict[int, _Turn] = dataclasses.field(  # By thread.
        default_factory=dict)


class _AtEnd:
    """A callback: the engine calls it after a backward, or drops it if that has
    failed. Nothing else may refer to it, nor a frame that an exception keeps.
    """

    def __init__(self, of: Backwards, backward: _Backward) -> None:
        self._of = of
        self._backward: _Backward | None = backward

    def __call__(self) -> None:
        backward, self._backward = self._backward, None
        assert backward is not None
        self._of.end(backward, failed=False)

    def __del__(self) -> None:
        if self._backward is not None:
            self._of.end(self._backward, failed=True)


class Backwards:
    """The backwards of one attached module.

    Threads: any; for one device's nodes, one at a time. A backward holds the
    module's turn (see Turns).
    """

    def __init__(self, turns: Turns, groups: list[Group],
                 begin: Callable[[], None], renew: Callable[[], None],
                 end: Callable[[list[Group]], None]) -> None:
        """begin: ends stages left by this thread or others. renew: see Passes.
        end: gets the groups that a backward has needed, in order, once none of
        them is staged."""
        self._turns = turns
        self._groups = groups
        self._begin = begin
        self._renew = renew
        self._end = end
        self._running: dict[int, _Backward] = {}  # By task.
        self._sequence: list[Group] = []

    @property
    def are_running(self) -> bool:
        return bool(self._running)

    def read(self, group: Group, name: str) -> torch.Tensor:
        """See saved.Reader."""
        if not is_in_backward():
            return self._read_alone(group, name)
        turn = self._turn_to(group)
        if turn.is_new and torch.is_grad_enabled():
            # The node's own graph has the weight too (create_graph). The
            # engine removes the pair after the node.
            _saved_tensors.push()
        turn.is_new = False
        if group.bound:
            return group.stored(name)
        if group not in turn.groups:
            self._stage(group)
            if group.bound:
                return group.stored(name)
            turn.groups.append(group)
        read = turn.reads.get((group, name))
        if read is None:
            read = turn.reads[group, name] = group.read(name)
        return read.base

    def _read_alone(self, group: Group, name: str) -> torch.Tensor:
        """For readers of a graph outside a backward: memory of its own."""
        with self._turns.between():
            self._begin()
            if group.bound:
                return group.stored(name)
            self._stage(group)
            try:
                return group.stored(name).clone()
            finally:
                group.release()

    # A group's turn.

    def enter(self, group: Group) -> None:
        """A module that needs the group is about to run in a backward's node,
        which recomputes a checkpoint."""
        self._turn_to(group)

    def keep(self, group: Group) -> None:
        """The module has run; the nodes of its results come next."""
        turn = self._turn_to(group)
        if group not in turn.groups:
            group.hold()
            turn.groups.append(group)

    def _turn_to(self, group: Group) -> _Turn:
        """Ends the groups of this thread's earlier nodes, except that group's
        block."""
        backward = self._running.get(torch._C._current_graph_task_id())
        if backward is None:
            backward = self._begin_backward()
        turn = backward.turns.setdefault(threading.get_ident(), _Turn())
        node = torch._C._current_autograd_node()
        if turn.node is not node:
            turn.node, turn.is_new = node, True
            if any(one.block != group.block for one in turn.groups):
                self._end_turn(turn, but=group.block)
        self._note(group)
        return turn

    def _note(self, group: Group) -> None:
        """Within a block's turn each of its groups comes once."""
        for one in reversed(self._sequence):
            if one is group:
                return
            if one.block != group.block:
                break
        self._sequence.append(group)

    def _begin_backward(self) -> _Backward:
        backward = _Backward(torch._C._current_graph_task_id())
        self._turns.begin_backward()
        self._running[backward.task] = backward
        # From here on its end is certain.
        torch.autograd.Variable._execution_engine.queue_callback(
            _AtEnd(self, backward))
        self._begin()
        return backward

    def _stage(self, group: Group) -> None:
        alone = group.binding.casts_bytes > 0 and group.needs_own_scratch()
        try:
            group.hold(outside_plan=alone)
        except Unavailable:
            if any(one.state.running or one.state.holds
                   for one in self._groups):
                raise
            self._renew()
            if not group.bound:
                group.hold(outside_plan=alone)

    def _end_turn(self, turn: _Turn, but: str = "") -> None:
        """but: a block that stays.

        FailedPrecondition: a node has kept a view of a weight."""
        # Other holders of the group have views, and report their own end.
        kept = {name for (group, name), read in turn.reads.items()
                if group.block != but and group.state.holds == 1
                and read.is_kept}
        groups, turn.groups = turn.groups, [
            one for one in turn.groups if one.block == but]
        turn.reads = {key: read for key, read in turn.reads.items()
                      if key[0].block == but}
        with contextlib.ExitStack() as stack:
            for group in groups:
                if group.block != but:
                    stack.callback(group.release)
        if kept:
            raise FailedPrecondition(
                f'a view of "{min(kept)}" that a backward was given is still '
                "there after it, in a gradient or elsewhere, and will show "
                "other weights' bytes; keep a clone()")

    def end(self, backward: _Backward, failed: bool) -> None:
        """FailedPrecondition: see _end_turn."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._turns.end_backward)
            stack.callback(self._note_end, backward, failed)
            for turn in backward.turns.values():
                if failed:
                    stack.enter_context(contextlib.suppress(HoistError))
                stack.callback(self._end_turn, turn)

    def _note_end(self, backward: _Backward, failed: bool) -> None:
        del self._running[backward.task]
        if self._running:
            return
        sequence, self._sequence = self._sequence, []
        if not failed:
            self._end(sequence)
