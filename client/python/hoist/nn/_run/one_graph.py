"""Passes of compiled modules: in one graph, if the compiler allows it.

Compiled code takes its inputs before anything runs. So in such a pass it is
given every streamed group's weights at the plan's addresses. The groups' hooks
become operators of the code (operators.py), and a part that puts weights into
modules and takes them out (rebuilt.py). The inputs hold other bytes until they
are staged. So a pass is one graph only after passes, uncompiled, that have
shown which calls read which weights. Code that was compiled without the hooks
finds nothing but idle weights in the modules.
"""

from __future__ import annotations

import logging
from typing import Callable

import torch

from ..._errors import FailedPrecondition
from .._graph import operators
from .._graph.compiled import Pause, can_wait
from .._graph.operators import Tensors, new_token, operands_of
from .._show.device_part import DevicePart
from .._show.group import Group
from .._tensors.resident import new_kind

log = logging.getLogger("hoist.nn")

# Passes in a row that run eagerly until one can be a single graph; after these,
# passes are compiled in pieces until then.
_PATIENCE = 4


class OneGraph:
    """The graph of one attached module.

    Threads: the thread of the pass.
    """

    def __init__(self, parts: list[DevicePart], groups: list[Group],
                 is_mine: Callable[[], bool], end_open: Callable[[], None]
                 ) -> None:
        """is_mine: this thread runs the pass. end_open: ends stages that were
        left open."""
        self.active = False  # Compiled hooks are operators.
        self.pause = Pause()
        self._parts = parts
        self._groups = groups
        self._is_mine = is_mine
        self._end_open = end_open
        self._waited = 0  # Passes in a row.
        self._stages: dict[Group, _Stage] = {}
        self._seen = 0  # The last value of operators.compilations.
        self._kind = new_kind()
        self._token: torch.Tensor | None = None
        self._key: object = None  # The plan of the token.
        self._refused: str | None = None  # Why graphs are impossible now.
        self.open: list[Group] = []  # Of one block; see leave_open.
        self._in_capture = False  # At that time.

    @property
    def is_possible(self) -> bool:
        return (can_wait() and self._refused is None
                and len(self._parts) == 1 and self._parts[0].plan is not None)

    def begin(self, made: int, known: bool) -> list[Group]:
        """A pass of a compiled module begins; returns the groups whose weights
        are shown from now on.

        made: see Planning. known: it is known which calls read which weights.
        """
        if not self.is_possible:
            return []
        if not known:
            self._waited += 1
            if self._waited <= _PATIENCE:
                self.pause.begin()
            return []
        self._waited = 0
        self._renew(made)
        with_grad = torch.is_grad_enabled()
        shown = []
        for group in self._groups:
            if self._prepare(group):
                if not group.show_in_place(with_grad):
                    group.operands = None  # It runs eagerly, unchanged.
                shown.append(group)
        self.active = bool(shown)
        return shown

    def note_hooks(self) -> None:
        """The hooks have changed, so compiled code is void."""
        self._kind = new_kind()
        for group in self._stages:
            group.binding.forget_addresses()
        self._stages.clear()

    def end(self) -> None:
        """The pass has ended, or was cut short.

        FailedPrecondition: code that was compiled in it has kept views of
        weights.
        """
        self.pause.end()
        self.open = []  # All stages have ended.
        if not self.active:
            return
        self.active = False
        if torch.is_grad_enabled():
            for group in self._stages:
                group.binding.spoil_graphs()
        elif self._seen != operators.compilations:
            self._seen = operators.compilations
            for group in self._stages:
                group.binding.refuse_views()

    def refuse(self, group: Group, why: str) -> None:
        """Its operators raise this. From the next pass on graphs are broken."""
        if self._refused is None:
            self._refused = (
                f'compiled code cannot stage "{group.spec.name}": {why}; call '
                "the module again: it is compiled in pieces from now on")
            log.warning("%s", self._refused)

    def check(self) -> None:
        if self._refused is not None:
            raise FailedPrecondition(self._refused)

    def expect(self, group: Group) -> None:
        """A group's operator is called."""
        self.check()
        if not self.active or not self._is_mine():
            raise FailedPrecondition(
                f'compiled code stages "{group.spec.name}" outside of a pass; '
                "call the module, not what was compiled of it")
        if not self.open or self.open[0].block != group.block:
            self._end_open()

    def leave_open(self, group: Group) -> None:
        """It stays staged for its next operators, which follow at once."""
        self.open.append(group)
        self._in_capture = self._parts[0].is_capturing()

    def take_open(self, group: Group) -> bool:
        """Whether it was left open."""
        if group not in self.open:
            return False
        self.open.remove(group)
        return True

    def end_open(self) -> None:
        while self.open:
            group = self.open.pop()
            group.end_in_place()
            if self._in_capture and not self._parts[0].is_capturing():
                self.refuse(group, "a CUDA graph was recorded in which it does "
                            "not end")
        self.check()

    def _renew(self, made: int) -> None:
        """CUDA graphs recorded under another plan must not be replayed."""
        key = (self._parts[0].plan, made)
        if key != self._key:
            self._key = key
            self._token = new_token(self._parts[0].torch_device)
            self._stages.clear()

    def _prepare(self, group: Group) -> bool:
        """Whether the address of the group's weights is known."""
        group.operands = None
        if group.state.running or not group.operable:
            return False
        weights = group.planned_weights(self._kind)
        if weights is None:
            return False
        stage = self._stages.get(group)
        if stage is None or stage.operands.weights is not weights:
            assert self._token is not None
            stage = _Stage(self, group, self._token, weights)
            self._stages[group] = stage
        group.operands = stage.operands
        return True


class _Stage:
    """The work of a group's operators."""

    def __init__(self, graph: OneGraph, group: Group, token: torch.Tensor,
                 weights: list[torch.Tensor]) -> None:
        self._graph = graph
        self._group = group
        assert group.binding.placement is not None
        self.operands = operands_of(
            self, token, weights, [*group.binding.placement.rebuilt.values()])

    def stage(self, weights: Tensors) -> None:
        self._expect_in_place(weights)
        if not (self._graph.take_open(self._group)
                or self._group.stage_in_place()):
            self._graph.refuse(self._group, "the plan has no place for it now")
            self._graph.check()

    def _expect_in_place(self, weights: Tensors) -> None:
        self._graph.expect(self._group)
        if not self.operands.lie_in_place(weights):
            self._graph.refuse(self._group, "it was given copies of weights; or "
                               "a view of one is left behind")
            self._graph.check()

    def read(self, weights: Tensors, outputs: Tensors) -> None:
        self._expect_in_place(weights)
        if any(map(self._group.is_lent, outputs)):
            self._graph.refuse(self._group, "it returns a view of a weight")
            self._graph.check()

    def done(self, weights: Tensors, last: bool) -> None:
        self._expect_in_place(weights)
        if last:
            self._group.end_in_place()
        else:
            self._graph.leave_open(self._group)

    def misplaced(self) -> None:
        if self._graph.active:
            self._graph.refuse(
                self._group, "it reads a weight of it, or a view of one, "
                "outside of the group's calls")
