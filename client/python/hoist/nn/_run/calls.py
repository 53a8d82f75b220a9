"""What passes keep of running calls, and ask of the hooks around modules."""

from __future__ import annotations

import dataclasses
import sys
from typing import Protocol

import torch

from ... import _hot
from .._show.group import Group


class Surroundings(Protocol):
    """The hooks around the modules, which call Passes."""

    @property
    def changed(self) -> bool:
        """The tree has new modules or weights without care so far."""

    def is_compiled(self) -> bool:
        """Calls of the groups' modules are a part of compiled code, as far as
        modules show it."""

    def trace(self, traced: bool) -> None:
        """Whether compiled code may have the calls of this pass."""

    def trains(self) -> bool:
        """A parameter of the tree that is not hoist's needs gradients."""

    def before_pass(self) -> None:
        """A pass begins; takes care of additions to the tree."""

    def bring(self, group: Group) -> None:
        """From now on any call of the group's modules enters it."""

    def forget_calls(self) -> None:
        """Running calls will not end."""

    def renew(self, all_groups: bool = False) -> None:
        """The set of bound groups has changed. all_groups: calls of bound ones
        come here, too."""


@dataclasses.dataclass
class Call(*_hot.fields("Call")):  # type: ignore[misc]
    """Observations of the calls of a module with groups, from passes."""

    is_followed: bool = False  # By a call that needs the same group.
    # By one that does not, or by none. (A default would hide the field.)
    is_last: bool = dataclasses.field(default_factory=bool)

    def note(self, groups: list[Group], followed: bool) -> None:
        """The groups' next call; compiled code has one stage for all of
        them."""
        self.is_followed |= followed
        self.is_last |= not followed
        if self.is_followed and self.is_last:
            for group in groups:
                group.operable = False


def handled() -> int:
    """Identifies the exception being handled. torch calls hooks after a failed
    forward within its handler, in the same way as after an output of None."""
    return id(sys.exc_info()[1])


@dataclasses.dataclass
class Pass(*_hot.fields("Pass")):  # type: ignore[misc]
    """A root's call, from begin to end."""

    handled: int  # At its begin; see handled().
    depth: int = 1  # Nested calls of the root module.
    is_compiled: bool = False  # At least in part.
    # Groups hide their weights as they end.
    is_plain: bool = dataclasses.field(default_factory=bool)
    return_to: torch.device | None = None
    # The staged groups of a block without a running module, and its last call.
    open: list[Group] = dataclasses.field(default_factory=list)
    last: Call = dataclasses.field(default_factory=Call)
    shown: list[Group] = dataclasses.field(default_factory=list)  # Until its end.
    sequence: list[Group] = dataclasses.field(default_factory=list)  # Staged.
