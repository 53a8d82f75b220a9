"""An attached module that gives way when hoistd asks."""

from __future__ import annotations

import logging

from ..._errors import HoistError
from .._plan.lending import asks
from .attachment import Attachment

log = logging.getLogger("hoist.nn")


class Lender:
    """See _plan/lending.py, which calls `consider` in its thread."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

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
        try:
            attachment.give_back()
            log.debug("%s gives way", attachment.model.name)
        except HoistError as error:
            # The memory is gone; whoever asks for results is told.
            attachment.void = error


def lend(attachment: Attachment) -> None:
    """Its plans, which follow, give way. Neither groups on several devices nor
    pieces in place do."""
    if len(attachment.parts) == 1 and attachment.passes.in_place is None:
        attachment.planning.lender = Lender(attachment)


def keep(attachment: Attachment) -> None:
    """Its plans give no way from now on."""
    attachment.planning.lender = None
