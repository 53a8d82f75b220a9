"""Weights with layers that come just before they are needed, under a plan."""

from __future__ import annotations

from typing import Mapping, Sequence

from .. import _session
from .._errors import FailedPrecondition, ResourceExhausted
from .._model import Group
from ._weights import Connect, Find, Weights


class PlannedWeights(Weights):
    """The groups of `layers` are at the plan's addresses: residents for good,
    the others in slots that they share, valid between Plan.stage and Plan.done.
    All other groups are bound, as in Weights.

    It cannot be suspended: another plan has other addresses.
    """

    def __init__(self, session: _session.Session, connect: Connect, find: Find,
                 stored: Mapping[str, tuple[str, str]],
                 device: _session.Device, deadline: float, budget: int,
                 layers: Sequence[str]) -> None:
        """budget: bytes of the device, for all groups. layers: groups, in a
        pass's order. ResourceExhausted: it is too small; names a budget that
        would be enough."""
        own = {name: place for name, place in stored.items()
               if place[0] not in layers}
        super().__init__(session, connect, find, own, device, deadline)
        model = find(session)
        wanted = [one for one in layers
                  if any(group == one for group, _ in stored.values())]
        self.groups: dict[str, Group] = {one: model[one] for one in wanted}
        if budget <= self.nbytes:
            least = self.nbytes + 2 * max(
                (one.image_bytes for one in self.groups.values()), default=0)
            raise ResourceExhausted(
                f"a budget of {budget} bytes is less than what is outside of "
                f"layers ({self.nbytes}); {least} hold two layers beside it")
        self.plan = session.set_plan(
            model, budget=budget - self.nbytes, device=device.index,
            order=self.groups.values(), deadline=deadline)
        self.nbytes += self.plan.info.resident_bytes + self.plan.info.ring_bytes
        placed = {one: self.plan.tensors(group)
                  for one, group in self.groups.items()}
        self.tensors.update({
            name: placed[group][tensor].torch()
            for name, (group, tensor) in stored.items() if group in placed})

    def check_suspend(self) -> None:
        """FailedPrecondition."""
        raise FailedPrecondition(
            "an engine with a budget cannot be suspended: its layers would be "
            "elsewhere afterwards; start it without one, or end it")
