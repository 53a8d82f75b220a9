"""A module under hoist: its parts, made, and undone.

    _hooks       stand in the modules, and call
    _passes      who runs, and which group is there; it asks
    _planning    plans, and tells
    _live        a group to come and go; which tells its
    _binding     what the modules see.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Iterator, cast

import torch
from torch import nn

from .. import _session
from .._errors import NotFound
from .._model import Model
from . import _registry
from ._device_part import DevicePart, Held
from ._hooks import Hooks, NotCopied, renew_lists
from ._idle import Shelf
from ._live import LiveGroup
from ._options import Wanted
from ._passes import Passes
from ._planning import Planning
from ._registry import watch_registrations
from ._stats import PLAN_COUNTS, AttachStats
from ._tree import Tree


class Attachment(NotCopied):
    """The link between a module tree and hoistd.

    Threads: any, as Passes says.
    """

    model: Model  # As it is staged.
    original: Model  # With the weights as they were; often the same.

    def __init__(self, root: nn.Module, wanted: Wanted,
                 parts: list[DevicePart], excluded: set[nn.Module],
                 devices: dict[str, torch.device]) -> None:
        """wanted: as attach was called. devices: of stored tensors, before."""
        self.root = root
        self.session: _session.Session = wanted.session
        self.wanted = wanted
        self.parts = parts
        self.groups: list[LiveGroup] = []
        self.shelf = Shelf()
        self.devices = devices
        self.planning = Planning(wanted.session, parts, self.groups)
        self._tree = Tree(root, excluded, parts, self.groups)
        self._hooks = Hooks(root, self.groups, self._tree)
        self.passes = Passes(root, parts, self.groups, self.planning,
                             self.shelf, wanted.idle, wanted.exclude_kwargs,
                             self._hooks)
        self._at_collection: Any = None

    # Set-up and its undoing.

    def install(self) -> None:
        """Hooks the modules; from here on forwards come through here."""
        self._tree.look()
        self._hooks.install(self.passes)
        for module in self._known_modules():
            _registry.know(module, self)
        watch_registrations()
        # A module that is let go of without detach is collected in any order.
        self._at_collection = weakref.finalize(
            self.root, _give_back, [part.held for part in self.parts])
        self._at_collection.atexit = False

    def uninstall(self) -> None:
        self._hooks.remove()
        for module in self._known_modules():
            _registry.forget(module)
        if self._at_collection is not None:
            self._at_collection.detach()

    def _known_modules(self) -> set[nn.Module]:
        return {self.root, *self._tree.modules}

    def close(self) -> None:
        """Gives hoistd everything back; nothing may be running."""
        with contextlib.ExitStack() as stack:
            stack.callback(_give_back, [part.held for part in self.parts])
            self.passes.end_all()

    def detach(self) -> None:
        """The module has its own weights again."""
        with self.passes.between("detach it"):
            own = [swap for group in self.groups
                   for swap in group.binding.own_weights(self.devices)]
            self.uninstall()
            for holder, key, value in own:
                holder[key] = value
            renew_lists(self._tree.modules)
            self.close()

    def undo(self) -> None:
        """Of an attach that failed: the module has what it had; hoistd has
        back what is its."""
        self.uninstall()
        try:
            for group in self.groups:
                group.binding.restore(self.devices)
        finally:
            self.close()

    # What came to the tree; see _registry.Attached.

    def note_change(self) -> None:
        self._tree.note_change()

    def shares(self, module: nn.Module, name: str) -> bool:
        return self._tree.shares(module, name)

    # Groups, by what callers call them.

    def groups_below(self, modules: set[nn.Module]) -> list[LiveGroup]:
        """Those that any of the modules has weights of."""
        return [group for group in self.groups
                if any(place.module in modules for weight in group.spec.weights
                       for place in weight.places)]

    def groups_named(self, name: str | None) -> list[LiveGroup]:
        """All, or the one of that name."""
        found = [group for group in self.groups
                 if name is None or group.spec.name == name]
        if not found:
            raise NotFound(f'"{self.model.name}" has no group "{name}"')
        return found

    def stats(self) -> AttachStats:
        infos = [part.plan.info for part in self.parts
                 if part.plan is not None]
        pinned = sum(map(self.planning.pinned_bytes, self.parts))
        return AttachStats(
            model=self.model.name, groups=len(self.groups),
            model_bytes=self.model.image_bytes,
            budget_bytes=pinned + sum(info.budget_bytes for info in infos),
            pinned_bytes=pinned,
            resident_bytes=sum(info.resident_bytes for info in infos),
            ring_bytes=sum(info.ring_bytes for info in infos),
            streamed_bytes=sum(info.streamed_bytes for info in infos),
            scratch_bytes=sum(part.scratch_bytes for part in self.parts),
            passes=self.passes.count, idle_reads=self.shelf.reads,
            **{name: self.planning.count(name) for name in PLAN_COUNTS})


def attachment_of(module: nn.Module) -> Attachment | None:
    """What this very module is attached by."""
    return cast("Attachment | None", _registry.known(module))


def attachments_in(module: nn.Module) -> Iterator[Attachment]:
    """Those that any module of the tree belongs to, each once."""
    found = {id(one): one for one in map(attachment_of, module.modules())
             if one is not None}
    return iter(found.values())


def find_attached(model: str) -> Attachment | None:
    """See _registry.find."""
    return cast("Attachment | None", _registry.find(model))


def _give_back(held: list[Held]) -> None:
    with contextlib.ExitStack() as stack:  # All, whichever of them fails.
        for one in held:
            stack.callback(one.give_back)
