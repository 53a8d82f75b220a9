"""One of a pipeline's modules, and its part of the pipeline's budget."""

from __future__ import annotations

import inspect
import logging

from torch import nn

from ..._errors import (FailedPrecondition, HoistError, InvalidArgument,
                        ResourceExhausted)
from .._plan.budget import Budget
from .._tree.casting import as_patterns, matching_modules
from .._tree.layout import lay_out
from .assemble import undo
from .attach import attach_as, detach, unwrap
from .attachment import Attachment, attachment_of
from .options import AttachOptions, Wanted

log = logging.getLogger("hoist.nn")


class Component:
    """One of a pipeline's modules, and its part of the budget."""

    def __init__(self, name: str, attachment: Attachment,
                 called: nn.Module) -> None:
        """called: the pipeline's object, perhaps torch.compile's wrapper."""
        self.name = name
        self.attachment = attachment
        self.called = called
        self.whole = attachment.image_bytes
        self.least = attachment.planning.least_bytes(attachment.parts[0])
        self.granted = self.whole  # 0: it has no plan.
        self.takes_steps = _takes_steps(attachment.root)
        self.calls = 0  # Seen since its turn began.
        # Attached before the pipeline, with this budget.
        self.joined = False
        self._before: Budget = None

    @classmethod
    def attach(cls, name: str, module: nn.Module, budget: Budget,
               options: AttachOptions) -> Component:
        """The module's own tensors are kept until `commit`."""
        try:
            found = attach_as(module, Wanted.of(budget, options))
        except HoistError as error:
            raise type(error)(f'component "{name}": {error}') from error
        return cls(name, found, module)

    @classmethod
    def join(cls, name: str, module: nn.Module,
             attachment: Attachment) -> Component:
        """Without memory so far: its own is given back."""
        if len(attachment.parts) > 1:
            raise InvalidArgument(
                f'component "{name}" is spread over {len(attachment.parts)} '
                "devices; a pipeline's budget is of one")
        found = cls(name, attachment, module)
        found.joined = True
        found._before = (found.promised if attachment.parts[0].plan is not None
                         else attachment.wanted.budget)
        found.set(0)
        if found.granted:
            raise FailedPrecondition(
                f'component "{name}" runs, or a CUDA graph was captured of it '
                "with the memory that it has; hoist.detach it first")
        return found

    def commit(self) -> None:
        if not self.joined:
            self.attachment.commit()

    def undo(self) -> None:
        """After a failed attach_pipeline."""
        if not self.joined:
            if self.attachment.wanted.hand_over == "by_group":
                detach(self.attachment.root)
            else:
                undo(self.attachment)
            return
        try:
            self.attachment.bring_back(self._before)
        except HoistError as error:  # Its next call tries again, and raises it.
            log.debug("%s does not come back at once: %s", self.name, error)

    @property
    def attached(self) -> bool:
        """By this attachment; the module may have been detached by itself."""
        return attachment_of(self.attachment.root) is self.attachment

    def set(self, budget: int) -> None:
        """Sets its part of the budget; 0: none. While it runs, or a CUDA graph
        holds its addresses, it keeps its memory."""
        if budget == self.granted or (self.granted
                                      and self.attachment.captured):
            return
        try:
            if not budget:
                self._give_back()
            elif not self.granted:
                self._give_back()  # Memory that it got by itself.
                self.attachment.bring_back(budget)
            else:
                self.attachment.set_budget(budget)
        except FailedPrecondition as error:
            if not self.granted:
                raise
            log.debug("%s keeps its memory: %s", self.name, error)
            return
        self.granted = budget

    def _give_back(self) -> None:
        try:
            self.attachment.give_back()
        except FailedPrecondition:
            raise
        except HoistError:  # The results are void, and the memory is gone.
            self.granted = 0
            raise
        # For a call that bypasses the gates, and so brings it back.
        self.attachment.planning.expect_budget(self.least)

    @property
    def promised(self) -> int:
        """The granted device memory, if the budget was all there is."""
        part = self.attachment.parts[0]
        return (part.device.pool_bytes if part.plan is None else
                self.attachment.stats().budget_bytes)

    def check_fits(self, budget: int) -> None:
        if self.least > budget:
            raise ResourceExhausted(
                f'component "{self.name}" needs {self.least} bytes; a budget '
                f"of {budget} is too small")

    def all_there_is(self) -> int:
        """The bytes that hoistd can promise; only while it has nothing."""
        if not self.granted:
            self.attachment.bring_back(None)
            self.granted = self.whole
        promised = self.promised
        self.set(0)
        return promised


def _takes_steps(module: nn.Module) -> bool:
    """It is a denoiser, which is called in a loop."""
    try:
        return "timestep" in inspect.signature(module.forward).parameters
    except ValueError:  # No Python function.
        return False


def image_bytes(module: nn.Module, options: AttachOptions) -> int:
    """The bytes of its groups for these options, in hoist's alignment."""
    root = unwrap(module)
    attachment = attachment_of(root)
    if attachment is not None:
        return attachment.image_bytes
    excluded = matching_modules(
        root, as_patterns("exclude", options.get("exclude", ())))
    specs = lay_out(root, options.get("groups", "block"), excluded)
    return sum(_up(sum(_up(one.nbytes, 256) for one in spec.stored), 4096)
               for spec in specs)


def _up(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step
