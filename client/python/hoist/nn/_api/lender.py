"""An attached module that gives way when hoistd asks."""

from __future__ import annotations

import logging
import weakref
from typing import Protocol

from ..._errors import HoistError
from .._plan.lending import asks
from .attachment import Attachment

log = logging.getLogger("hoist.nn")


_SOON = 0.1  # Seconds until another look at a busy pipeline.


class Owner(Protocol):
    """Divides device memory among several modules."""

    def take_back(self, attachment: Attachment) -> bool:
        """The module gives its memory back. False: not now; must not block."""

    def wake(self) -> None: ...


class Lender:
    """See _plan/lending.py, which calls `consider` in its thread."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        # None: the module has a plan of its own.
        self._owner: weakref.ref[Owner] | None = None

    def owned_by(self, owner: Owner) -> None:
        """From now on the owner gives the module's memory, and has it back."""
        self._owner = weakref.ref(owner)

    def consider(self) -> None:
        """Gives way now, at the end of the running pass, or when the module has
        been idle for long enough."""
        info = self._attachment.parts[0].info
        if info is not None and info.asked_to_give_way:
            idle = info.idle_ms / 1000
            self._attachment.passes.once_free(lambda: self._give_way(idle))

    def wake(self) -> None:
        """Plans again, and copies; a pass waits for that."""
        attachment = self._attachment
        if attachment.ended or not attachment.sleeps:
            return
        owner = None if self._owner is None else self._owner()
        if owner is not None:
            return owner.wake()
        with attachment.passes.between("wake it"):
            attachment.wake()
            part = attachment.parts[0]
            part.synchronize([part.stream()])

    def _give_way(self, idle: float) -> None:
        """Nothing has the turn. Another look follows while it is in use."""
        attachment = self._attachment
        left = (attachment.passes.in_use_for(idle)
                if attachment.is_installed and not attachment.ended
                else None)  # A failed attach ends its plan itself.
        if left is None:
            return
        if left > 0:
            asks().look_again(self, left)
            return
        owner = None if self._owner is None else self._owner()
        try:
            if owner is None:
                attachment.give_back()
            elif not owner.take_back(attachment):
                return asks().look_again(self, _SOON)
            log.debug("%s gives way", attachment.model.name)
        except HoistError as error:
            # The memory is gone; whoever asks for results is told.
            attachment.void = error


def lend(attachment: Attachment) -> None:
    """Its plans, which follow, give way. Neither groups on several devices nor
    pieces in place do."""
    if len(attachment.parts) == 1 and attachment.passes.in_place is None:
        attachment.planning.lender = Lender(attachment)


def own(owner: Owner, attachment: Attachment) -> None:
    """The owner's plans for the module, which follow, give way to admins, as
    they have budgets of their own."""
    lender = attachment.planning.lender
    if isinstance(lender, Lender):
        lender.owned_by(owner)
