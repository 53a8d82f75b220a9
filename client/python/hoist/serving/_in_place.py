"""Weights of which some tensors are read in place, in hot and cold pieces."""

from __future__ import annotations

import contextlib
from typing import Mapping

import torch

from .. import _session
from .._errors import (DeadlineExceeded, FailedPrecondition, HoistError,
                       ResourceExhausted)
from .._in_place import InPlaceTensor
from ._recipes import Pieces
from ._weights import Connect, Find, Weights


class InPlaceWeights(Weights):
    """Tensors in `pieces` are at one address each; what the budget leaves beside
    all other groups, which are bound as in Weights, holds their hot pieces.

    It cannot be suspended: another range has another address.
    """

    def __init__(self, session: _session.Session, connect: Connect, find: Find,
                 stored: Mapping[str, tuple[str, str]],
                 device: _session.Device, deadline: float, budget: int,
                 pieces: Mapping[str, Pieces], first_counts: Mapping[str, int],
                 counts: torch.Tensor) -> None:
        """budget: bytes of the device, for all groups. first_counts: by the
        names of `pieces`; see InPlaceTensor. counts: on the device, of int32.

        ResourceExhausted: the budget is too small, and the message names a
        sufficient one; or hoistd has no room for it.
        Unimplemented: this hoistd has no zero-copy memory; says why.
        """
        session.check_in_place()
        super().__init__(session, connect, find, stored, device, deadline)
        if budget < self.nbytes:
            raise ResourceExhausted(
                f"a budget of {budget} bytes is less than what is not read in "
                f"place, which has {self.nbytes}")
        model = find(session)
        # Its kernels' reads are between its `begin` and `end`.
        self.in_place = session.in_place(
            model, {name: InPlaceTensor(one.dtype, one.shape, one.groups,
                                        one.units, first_counts[name])
                    for name, one in pieces.items()},
            hot_bytes=budget - self.nbytes, device=device.index,
            deadline=deadline, counts=(counts.data_ptr(), counts.numel()),
            keep=counts)
        self._fill_budget(budget, max(
            model[group].image_bytes for one in pieces.values()
            for group in one.groups))
        self.nbytes += self.in_place.stats.hot_bytes
        for name in pieces:
            view = self.in_place[name]
            self._spans.append((view.address, view.nbytes))
            self.tensors[name] = view.torch()

    def _fill_budget(self, budget: int, largest: int) -> None:
        """So that an engine's measure of free memory is right. largest: bytes
        of a piece; less than one may be left over."""
        with contextlib.suppress(DeadlineExceeded):
            self.in_place.advance(wait=True)
        stats = self.in_place.stats
        wanted = min(stats.hot_budget_bytes, stats.bytes)
        if wanted - stats.hot_bytes < largest:
            return
        enough = budget - stats.hot_budget_bytes + stats.hot_bytes
        refusal = "it is still copying"
        try:
            self.in_place.check_hot()
        except HoistError as error:
            refusal = str(error)
        raise ResourceExhausted(
            f"of a budget of {budget} bytes {stats.hot_budget_bytes} are for "
            f"experts, and hoistd had room for {stats.hot_bytes}; give a budget "
            f"of {enough}, or hoistd what it lacks: {refusal}")

    def check_suspend(self) -> None:
        """FailedPrecondition."""
        raise FailedPrecondition(
            "an engine with experts in place cannot be suspended: they would be "
            'elsewhere afterwards; start it without "in_place", or end it')
