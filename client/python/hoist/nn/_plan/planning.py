"""The life of an attachment's plans: made, learned, renewed; budgets.

One plan for each device, with all its groups that are not pinned. Of modules
and passes it knows only the order in which a pass has staged groups.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Iterable, Mapping

from ... import _model
from ..._errors import Aborted, HoistError, ResourceExhausted
from ..._model import Model
from ..._plan import Plan, PlanTerms
from .._show.device_part import DevicePart
from .._show.group import Group
from .budget import Budget, find_device, to_bytes
from .lending import Lender, heed
from .stats import PLAN_COUNTS

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("hoist.nn")


@dataclasses.dataclass
class _Planned:
    """The request for one device's plan, and its history."""

    budget: int  # 0: hoistd's choice.
    forward: list[Group]
    model: Model
    # The groups of a backward after it, if there are backwards.
    backward: list[Group] = dataclasses.field(default_factory=list)
    forwards: int = 0  # Passes without gradients since the last backward.
    missed: int = 0  # The plan's count of missing stages, when planned.
    refused: list[Group] | None = None  # An order that hoistd refused.

    @property
    def order(self) -> list[Group]:
        return [*self.forward, *self.backward]


# Passes in a row without gradients after which a plan drops the backward's
# part. A new plan waits for the GPU; skipping the backward's part costs a
# forward the copies that had begun for it.
_PATIENCE = 16


class Planning:
    """The plans of one attachment.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, parts: list[DevicePart],
                 groups: list[Group]) -> None:
        self._parts = parts
        self._groups = groups
        self._planned: dict[DevicePart, _Planned] = {}
        self.learns = False  # The order of the groups.
        self.beside = 0  # The module's bytes outside all groups.
        self.lender: Lender | None = None  # None: its plans give no way.
        self.made = 0  # The number of new plans; each changes addresses.
        self._deadline = 0.0
        self._terms: PlanTerms = {}
        # Counts of plans that ended with their hoistd.
        self._counted = dict.fromkeys(PLAN_COUNTS, 0)

    # First plans.

    def plan(self, model: Model, order: Iterable[Group], budget: Budget,
             learn: bool, deadline: float, **terms: Unpack[PlanTerms]) -> None:
        """Plans the groups of `order` on each device for the first time.

        learn: `order` is a guess; the first pass shows it.
        deadline, terms: Session.set_plan's.
        """
        order = list(order)
        self._deadline, self._terms = deadline, terms
        for part in self._parts:
            groups = [group for group in order if group.part is part
                      and not group.pinned and group.staged.image_bytes]
            if not groups:
                continue
            planned = _Planned(self.budget_for(part, budget), groups, model)
            self._planned[part] = planned
            info = self._set_plan(part, planned, learn).info
            if info.streamed_bytes and info.ring_bytes * 8 > info.budget_bytes:
                log.info(
                    "%s: groups on their way take %d of the budget's %d bytes; "
                    "with smaller ones (groups=) more of it would be left for "
                    "what stays", model.name, info.ring_bytes,
                    info.budget_bytes)
        self.learns = learn

    def _set_plan(self, part: DevicePart, planned: _Planned,
                  learn: bool) -> Plan:
        try:
            part.plan = part.session.set_plan(
                planned.model, budget=planned.budget, device=part.device.index,
                order=[group.staged for group in planned.order], learn=learn,
                deadline=self._deadline, gives_way=self.lender is not None,
                blocks=self._blocks(part), **self._terms)
        except ResourceExhausted as error:
            raise self._explained(error, part) from None
        if self.lender is not None:
            heed(part.plan, self.lender)
        return part.plan

    def _blocks(self, part: DevicePart) -> list[list[_model.Group]]:
        return [[group.staged for group in groups]
                for groups in self._by_block(part) if len(groups) > 1]

    def _by_block(self, part: DevicePart) -> list[list[Group]]:
        """The part's groups with turns."""
        found: dict[str, list[Group]] = {}
        for group in self._groups:
            if group.part is part and not group.pinned:
                found.setdefault(group.block, []).append(group)
        return [*found.values()]

    @property
    def takes_all(self) -> bool:
        """They have all that hoistd could promise, and lend it."""
        return not any(planned.budget for planned in self._planned.values())

    # New plans.

    def end(self) -> None:
        """Gives the plans back; hoistd may have ended them already."""
        for part in self._parts:
            self._end(part)

    def _end(self, part: DevicePart) -> None:
        plan, part.plan = part.plan, None
        if plan is not None:
            for name in PLAN_COUNTS:
                self._counted[name] += getattr(plan.stats, name)
            plan.close()

    def plan_anew(self, model: Model) -> None:
        """After `end`, in that model's session: with the plans' budget, order
        and terms."""
        for part, planned in self._planned.items():
            planned.model = model
            planned.missed = min(planned.missed, 0)
            planned.refused = None
            self._set_plan(part, planned, self.learns)

    def expect_budget(self, budget: Budget) -> None:
        """After `end`: the budget for `plan_anew`."""
        for part, planned in self._planned.items():
            planned.budget = self.budget_for(part, budget)

    def end_pass(self, sequence: list[Group], with_grad: bool) -> None:
        """sequence: the groups that the pass has staged, in order; without
        bound groups, which need no stage."""
        if not sequence:
            return
        try:
            if self.learns:
                self._learn(sequence)
            else:
                self._plan_observed(sequence)
            if not with_grad:
                self._forget_backwards()
        except HoistError as error:
            for part in self._parts:
                error = part.explained(error)
            raise error

    def _forget_backwards(self) -> None:
        for part, planned in self._planned.items():
            planned.forwards += 1
            if planned.backward and planned.forwards >= _PATIENCE:
                self._set_order(part, planned, planned.forward, [])

    def end_backward(self, sequence: list[Group]) -> None:
        """A backward has ended; `sequence` has the groups that it needed, in
        order. Nothing is staged. From the first backward on a pass and its
        backward are one order; a lone forward skips the backward's part."""
        for part, planned in self._planned.items():
            came = [group for group in sequence if group.part is part
                    and group.staged.image_bytes and not group.pinned]
            if not came:
                continue
            planned.forwards = 0
            if not self.learns and not {*came} <= {*planned.backward}:
                self._set_order(part, planned, planned.forward,
                                _backward_of(came, planned))

    def _set_order(self, part: DevicePart, planned: _Planned,
                   forward: list[Group], backward: list[Group]
                   ) -> None:
        """Does nothing if hoistd refuses, a graph holds the plan's addresses, a
        group is staged, or the order is the same."""
        order = [*forward, *backward]
        if part.plan is None or part.captured or order in (
                planned.order, planned.refused) or any(
                    group.is_in_plans_place for group in order):
            return
        self.forget_addresses(part)
        before = planned.forward, planned.backward
        try:
            if backward == planned.backward:
                part.plan.set_order([group.staged for group in order])
                planned.forward = forward
            else:
                # Most residents change: the device need not have room for
                # both sets.
                self._end(part)
                planned.forward, planned.backward = forward, backward
                self._set_plan(part, planned, learn=False)
        except ResourceExhausted as error:
            planned.refused = order
            planned.forward, planned.backward = before
            if part.plan is None:
                self._set_plan(part, planned, learn=False)
            log.warning("%s keeps its plan, which lacks groups: %s",
                        planned.model.name, error)

    def _learn(self, sequence: list[Group]) -> None:
        self.learns = False
        for part in self._parts:
            if part.plan is None or part.is_capturing():
                continue
            if part.plan.end_pass():
                self.forget_addresses(part)
                self._planned[part].forward = [group for group in sequence
                                               if group.part is part]
            self.learns |= part.plan.info.learning

    def expect_new(self) -> None:
        """The order is about to change: every group in the next pass counts as
        new."""
        for planned in self._planned.values():
            planned.missed = -1

    def _plan_observed(self, sequence: list[Group]) -> None:
        """If this pass staged groups that the plan lacks, plans with its order;
        groups of the plan that it did not stage keep their predecessors. So
        each group is planned after its first pass. If hoistd refuses, the plan
        stays, and the others are staged outside it. A plan that a CUDA graph
        has captured stays too: the graph has its addresses."""
        for part, planned in self._planned.items():
            if part.plan is None or part.captured:
                continue
            missed = part.plan.stats.unplanned
            if missed == planned.missed:
                continue
            planned.missed = missed
            came = [group for group in sequence if group.part is part
                    and group.staged.image_bytes]
            if not came:
                continue
            forward = _merged(came, planned.forward)
            if any(group.is_in_plans_place for group in forward):
                # By a call outside the pass: the end of the next one does it.
                planned.missed = -1
                continue
            self._set_order(part, planned, forward, planned.backward)

    def leave_out(self, gone: set[Group]) -> None:
        """Between passes: these groups have ended."""
        for part, planned in list(self._planned.items()):
            if part.captured or gone.isdisjoint(planned.order):
                continue
            planned.forward = [one for one in planned.forward
                               if one not in gone]
            planned.backward = [one for one in planned.backward
                                if one not in gone]
            planned.missed = -1  # Learn the order if it was a guess.
            if part.plan is None:
                continue
            self.forget_addresses(part)
            if planned.order:
                part.plan.set_order([group.staged for group in planned.order])
            else:
                self._end(part)
                del self._planned[part]

    def forget_addresses(self, part: DevicePart) -> None:
        """The part's plan is about to be replaced, or was."""
        self.made += 1
        for group in self._groups:
            if group.part is part and not group.pinned:
                group.unbind()
                group.binding.forget_addresses()

    # Budgets.

    def set_budget(self, budget: Budget) -> None:
        """Sets the parts' budgets, between passes. ResourceExhausted leaves all
        unchanged."""
        budgets = [self.budget_for(part, budget) for part in self._parts]
        done: list[tuple[DevicePart, int]] = []
        for part, amount in zip(self._parts, budgets):
            before = self._planned[part].budget if part.plan else 0
            try:
                self._set_budget(part, amount)
            except ResourceExhausted as error:
                for earlier, old in done:
                    self._set_budget(earlier, old)
                raise self._explained(error, part) from None
            done.append((part, before))

    def _set_budget(self, part: DevicePart, budget: int) -> None:
        if part.plan is not None:
            self.forget_addresses(part)
            part.plan.set_budget(budget)
            self._planned[part].budget = budget

    def budget_for(self, part: DevicePart, budget: Budget) -> int:
        """The rest of a part's budget for its plan; 0: hoistd's choice."""
        if isinstance(budget, Mapping):
            budget = next((amount for key, amount in budget.items()
                           if find_device(part.session, key)[0] == part.device),
                          budget)
        whole = self.beside + sum(group.staged.image_bytes
                                  for group in self._groups)
        amount = to_bytes(budget, whole)  # type: ignore[arg-type]
        if amount == 0:
            return 0
        pinned = self.pinned_bytes(part)
        if amount <= pinned:
            raise ResourceExhausted(
                f"a budget of {amount} bytes is too small: {pinned} bytes are "
                "pinned, being needed while other groups come and go; the "
                "least that would be enough is "
                f"{self.least_bytes(part)} bytes")
        return amount - pinned

    def bytes_beside(self, part: DevicePart, budget: Budget) -> int:
        """The budget's rest beyond all groups, for weights outside groups."""
        amount = self.budget_for(part, budget)
        if amount == 0:
            return self.beside
        planned = sum(group.staged.image_bytes for group in self._groups
                      if group.part is part and not group.pinned)
        return max(0, amount - planned)

    def pinned_bytes(self, part: DevicePart) -> int:
        return sum(group.staged.image_bytes for group in self._groups
                   if group.pinned and group.part is part)

    def least_bytes(self, part: DevicePart) -> int:
        """The smallest budget: all pinned groups, and the largest block."""
        return self.pinned_bytes(part) + max(
            (sum(group.staged.image_bytes for group in groups)
             for groups in self._by_block(part)), default=0)

    def _explained(self, error: ResourceExhausted,
                   part: DevicePart) -> ResourceExhausted:
        """A plan's refusal with the pinned groups, which plans do not know. The
        caller raises it: raised here, it would hold this frame, and all its
        callers', until the next garbage collection."""
        pinned = self.pinned_bytes(part)
        if not pinned:
            return error
        return ResourceExhausted(
            f"{error}; besides, {pinned} bytes of the budget are pinned: "
            "groups that are needed while others come and go; the least that "
            f"would be enough is {self.least_bytes(part)} bytes in all")

    # Facts.

    def check(self) -> None:
        """Raises if results since the last check may not be trusted."""
        for part in self._parts:
            if part.plan is not None:
                part.plan.check()

    def lives(self) -> bool:
        """False: a plan has ended, but not its session: a hoistd that took over
        could not keep the plan."""
        try:
            self.check()
        except Aborted:
            return False
        except HoistError:
            pass  # About the session or results, which others check.
        return True

    def count(self, what: str) -> int:
        """A field of PlanStats, summed over all plans."""
        counted: int = self._counted[what] + sum(
            getattr(stats, what) for stats in
            (part.stats for part in self._parts) if stats is not None)
        return counted


def _backward_of(came: list[Group], planned: _Planned) -> list[Group]:
    """The groups of this backward; those of earlier ones; and bound residents,
    which come without a stage, at the forward's positions."""
    known = {*came, *planned.backward}
    forward = [group for group in planned.forward
               if group in known or group.bound]
    order = _merged(came[::-1], forward)
    # Backwards never reach bound groups that precede all that they need.
    while order and order[0] not in known:
        del order[0]
    return order[::-1]


def _merged(came: list[Group], before: list[Group]) -> list[Group]:
    """The groups of this pass, in order; earlier others follow their old
    predecessors. (Bound residents come without a stage.)"""
    new = set(came)
    follow: dict[Group | None, list[Group]] = {}
    last: Group | None = None
    for group in before:
        if group in new:
            last = group
        elif group not in follow.setdefault(last, []):
            follow[last].append(group)
    order = follow.pop(None, [])
    for group in came:
        order += [group, *follow.pop(group, [])]
    return order
