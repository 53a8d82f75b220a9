"""Weights with layers that come just before they are needed, under a plan."""

from __future__ import annotations

import itertools
from typing import Mapping, Sequence

from .. import _session
from .._errors import FailedPrecondition, ResourceExhausted
from .._model import Group
from ._weights import Connect, Find, Weights


class PlannedWeights(Weights):
    """The groups of `layers` are at the plan's addresses: residents for good,
    the others in slots that they share, valid between Plan.stage and Plan.done.
    Of each layer the budget keeps a part. All other groups are bound, as in
    Weights.

    It cannot be suspended: another plan has other addresses.
    """

    def __init__(self, session: _session.Session, connect: Connect, find: Find,
                 stored: Mapping[str, tuple[str, str]],
                 device: _session.Device, deadline: float, budget: int,
                 layers: Mapping[str, Sequence[str]]) -> None:
        """budget: bytes of the device, for all groups. layers: each one's
        groups, in a pass's order. ResourceExhausted: it is too small; names a
        budget that would be enough."""
        planned = {group for groups in layers.values() for group in groups}
        own = {name: place for name, place in stored.items()
               if place[0] not in planned}
        super().__init__(session, connect, find, own, device, deadline)
        model = find(session)
        self.groups: dict[str, list[Group]] = {
            layer: [model[group] for group in groups]
            for layer, groups in layers.items()}
        blocks = list(self.groups.values())
        if budget <= self.nbytes:
            least = self.nbytes + 2 * max(
                (sum(one.image_bytes for one in block) for block in blocks),
                default=0)
            raise ResourceExhausted(
                f"a budget of {budget} bytes is less than what is outside of "
                f"layers ({self.nbytes}); {least} hold two layers beside it")
        self.plan = session.set_plan(
            model, budget=budget - self.nbytes, device=device.index,
            order=itertools.chain(*blocks), deadline=deadline, blocks=blocks)
        self.nbytes += self.plan.info.resident_bytes + self.plan.info.ring_bytes
        placed = {group.name: self.plan.tensors(group)
                  for block in blocks for group in block}
        self.tensors.update({
            name: placed[group][tensor].torch()
            for name, (group, tensor) in stored.items() if group in placed})

    def check_suspend(self) -> None:
        """FailedPrecondition."""
        raise FailedPrecondition(
            "an engine with a budget cannot be suspended: its layers would be "
            "elsewhere afterwards; start it without one, or end it")
