"""The life of an attachment's plans: made, learned, made anew, budgets.

One plan a device, of all groups there that are not pinned. It knows nothing of
modules and passes but the order in which a pass has staged groups.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Iterable, Mapping

from .._errors import HoistError, ResourceExhausted
from .._model import Model
from .._plan import Plan, PlanTerms
from ._budget import Budget, find_device, to_bytes
from ._device_part import DevicePart
from ._live import LiveGroup
from ._stats import PLAN_COUNTS

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("hoist.nn")


@dataclasses.dataclass
class _Planned:
    """What one device's plan was asked for, and what it did before."""

    budget: int  # 0: what hoistd gives.
    forward: list[LiveGroup]
    model: Model
    # What a backward needs after it, where there are any.
    backward: list[LiveGroup] = dataclasses.field(default_factory=list)
    forwards: int = 0  # Passes without gradients since the last backward.
    missed: int = 0  # Stages that the plan had nothing for, when planned.
    refused: list[LiveGroup] | None = None  # An order that was asked for.

    @property
    def order(self) -> list[LiveGroup]:
        return [*self.forward, *self.backward]


# Passes in a row without gradients, after which a plan forgets backwards. To
# plan anew waits for the GPU; to pass over the backward's part costs a forward
# the copies that were begun for it.
_PATIENCE = 16


class Planning:
    """Of one attachment.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, parts: list[DevicePart],
                 groups: list[LiveGroup]) -> None:
        self._parts = parts
        self._groups = groups
        self._planned: dict[DevicePart, _Planned] = {}
        self.learns = False  # The order of the groups.
        self.beside = 0  # Bytes of the module that no group has.
        self.made = 0  # Times that a plan was made anew; addresses changed.
        self._deadline = 0.0
        self._terms: PlanTerms = {}
        # What plans counted that hoistd's end has ended.
        self._counted = dict.fromkeys(PLAN_COUNTS, 0)

    # Made.

    def plan(self, model: Model, order: Iterable[LiveGroup], budget: Budget,
             learn: bool, deadline: float, **terms: Unpack[PlanTerms]) -> None:
        """Plans for each device what of `order` is there, for the first time.

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
                deadline=self._deadline, **self._terms)
        except ResourceExhausted as error:
            raise self._explained(error, part) from None
        return part.plan

    # Made anew.

    def end(self) -> None:
        """The plans are given back; hoistd may have ended them."""
        for part in self._parts:
            self._end(part)

    def _end(self, part: DevicePart) -> None:
        plan, part.plan = part.plan, None
        if plan is not None:
            for name in PLAN_COUNTS:
                self._counted[name] += getattr(plan.stats, name)
            plan.close()

    def plan_anew(self, model: Model) -> None:
        """After `end`, of the session whose model it is: with the budget, the
        order and the terms that the plans had."""
        for part, planned in self._planned.items():
            planned.model = model
            planned.missed = min(planned.missed, 0)
            planned.refused = None
            self._set_plan(part, planned, self.learns)

    def expect_budget(self, budget: Budget) -> None:
        """After `end`: what `plan_anew` is to ask for."""
        for part, planned in self._planned.items():
            planned.budget = self.budget_for(part, budget)

    def end_pass(self, sequence: list[LiveGroup], with_grad: bool) -> None:
        """sequence: the groups that the pass has staged, as they came; those
        that are bound to their place need no staging, and are not in it."""
        if not sequence:
            return
        try:
            if self.learns:
                self._learn(sequence)
            else:
                self._plan_what_came(sequence)
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

    def end_backward(self, sequence: list[LiveGroup]) -> None:
        """A backward has ended, and needed these groups, as they came. Nothing
        is staged. From the first one on a pass and its backward are one order:
        a forward without one passes over its part."""
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
                   forward: list[LiveGroup], backward: list[LiveGroup]
                   ) -> None:
        """Unless hoistd refuses, a graph holds the plan's addresses, a group is
        there, or that is the order that it has."""
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
                # Most of what stays is other groups then: the device need not
                # have room for both.
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

    def _learn(self, sequence: list[LiveGroup]) -> None:
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
        """Groups will come at other times: whatever comes in the next pass is
        new."""
        for planned in self._planned.values():
            planned.missed = -1

    def _plan_what_came(self, sequence: list[LiveGroup]) -> None:
        """Plans anew with this pass's order if it staged what the plan does not
        have; what else the plan has comes where it came before. So each group is
        planned for after the first pass that it comes in. Where hoistd refuses, the plan
        stands, and the others are staged beside it. A plan that a CUDA graph
        was captured with stays: the graph's addresses are its."""
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
                # By a call around this pass: the next one's end does it.
                planned.missed = -1
                continue
            self._set_order(part, planned, forward, planned.backward)

    def leave_out(self, gone: set[LiveGroup]) -> None:
        """Between passes: these will not come any more."""
        for part, planned in list(self._planned.items()):
            if part.captured or gone.isdisjoint(planned.order):
                continue
            planned.forward = [one for one in planned.forward
                               if one not in gone]
            planned.backward = [one for one in planned.backward
                                if one not in gone]
            planned.missed = -1  # The order, if it was only a guess.
            if part.plan is None:
                continue
            self.forget_addresses(part)
            if planned.order:
                part.plan.set_order([group.staged for group in planned.order])
            else:
                self._end(part)
                del self._planned[part]

    def forget_addresses(self, part: DevicePart) -> None:
        """The part's plan is about to be made anew, or was."""
        self.made += 1
        for group in self._groups:
            if group.part is part and not group.pinned:
                group.unbind()
                group.binding.forget_addresses()

    # Budgets.

    def set_budget(self, budget: Budget) -> None:
        """Of the parts, between passes. On ResourceExhausted all stay as they
        were."""
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
        """What is left of a part's budget for its plan; 0: what hoistd
        gives."""
        if isinstance(budget, Mapping):
            for key, amount in budget.items():
                if find_device(part.session, key)[0] == part.device:
                    budget = amount
                    break
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
                f"least that would do is {self._least_bytes(part)} bytes")
        return amount - pinned

    def bytes_beside(self, part: DevicePart, budget: Budget) -> int:
        """What the budget has beyond all groups, for what no group has."""
        amount = self.budget_for(part, budget)
        if amount == 0:
            return self.beside
        planned = sum(group.staged.image_bytes for group in self._groups
                      if group.part is part and not group.pinned)
        return max(0, amount - planned)

    def pinned_bytes(self, part: DevicePart) -> int:
        return sum(group.staged.image_bytes for group in self._groups
                   if group.pinned and group.part is part)

    def _least_bytes(self, part: DevicePart) -> int:
        """The smallest budget: what is pinned, and the plan's largest group."""
        return self.pinned_bytes(part) + max(
            (group.staged.image_bytes for group in self._groups
             if group.part is part and not group.pinned), default=0)

    def _explained(self, error: ResourceExhausted,
                   part: DevicePart) -> ResourceExhausted:
        """A plan's refusal, for the caller to raise: one that is raised by the
        function that it was given to holds that frame, and all its callers',
        until Python's collector comes. Plans know nothing of what is pinned."""
        pinned = self.pinned_bytes(part)
        if not pinned:
            return error
        return ResourceExhausted(
            f"{error}; besides, {pinned} bytes of the budget are pinned: "
            "groups that are needed while others come and go; the least that "
            f"would do is {self._least_bytes(part)} bytes in all")

    # Facts.

    def check(self) -> None:
        """Raises if results since the last check may not be trusted."""
        for part in self._parts:
            if part.plan is not None:
                part.plan.check()

    def count(self, what: str) -> int:
        """A field of PlanStats, over all plans."""
        counted: int = self._counted[what] + sum(
            getattr(part.plan.stats, what) for part in self._parts
            if part.plan is not None)
        return counted


def _backward_of(came: list[LiveGroup], planned: _Planned) -> list[LiveGroup]:
    """What came in a backward; what came in one before; and residents that are
    bound, and so come without being staged, where the forward has them."""
    known = {*came, *planned.backward}
    forward = [group for group in planned.forward
               if group in known or group.bound]
    order = _merged(came[::-1], forward)
    # What is bound and comes before all that backwards need, they never reach.
    while order and order[0] not in known:
        del order[0]
    return order[::-1]


def _merged(came: list[LiveGroup], before: list[LiveGroup]) -> list[LiveGroup]:
    """What came, in its order; what else came before, after the same group as
    it did then. (Residents that are bound come without being staged.)"""
    new = set(came)
    follow: dict[LiveGroup | None, list[LiveGroup]] = {}
    last: LiveGroup | None = None
    for group in before:
        if group in new:
            last = group
        elif group not in follow.setdefault(last, []):
            follow[last].append(group)
    order = follow.pop(None, [])
    for group in came:
        order += [group, *follow.pop(group, [])]
    return order
