"""The modules of an attached tree: whose weight is whose, what comes, and what
goes."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from ._device_part import DevicePart
from ._idle import IdleTensor
from ._inventory import Weight
from ._live import LiveGroup
from ._others import Modules


class Tree:
    """Which weights of the tree are hoist's, and what is done about others
    that came to it later.

    Threads: any may tell of a change; the rest one at a time.
    """

    def __init__(self, root: nn.Module, excluded: set[nn.Module],
                 parts: list[DevicePart], groups: list[LiveGroup],
                 note_end: Callable[[], None]) -> None:
        """note_end: one of `ended` has come. Called by any thread, wherever
        Python collects what nobody has."""
        self._root = root
        self._excluded = weakref.WeakSet(excluded)
        self._parts = parts
        self._groups = groups
        self._note_end = note_end
        self._managed: weakref.WeakKeyDictionary[
            nn.Module, dict[str, LiveGroup]] = weakref.WeakKeyDictionary()
        # What is read in place, and no group's.
        self._placed: weakref.WeakKeyDictionary[
            nn.Module, dict[str, weakref.ref[torch.Tensor]]] = (
                weakref.WeakKeyDictionary())
        # Of each group, those of its modules that somebody has.
        self._alive: dict[LiveGroup, set[weakref.ref[nn.Module]]] = {}
        self.changed = False  # It has modules or weights we do not know.
        self.known = Modules()  # Of the whole tree, as last seen.

    def look(self, placed: Sequence[Weight] = ()) -> None:
        """Notes where the groups' weights are, and those read in place."""
        for weight in placed:
            for place in weight.places:
                if place.module is not None:
                    self._placed.setdefault(place.module, {})[
                        place.key] = weakref.ref(weight.value)
        for group in self._groups:
            for weight in group.spec.weights:
                for place in weight.places:
                    if place.module is not None:
                        self._managed.setdefault(
                            place.module, {})[place.key] = group
            self._wait_for_end(group)
        self._visit()

    def _wait_for_end(self, group: LiveGroup) -> None:
        alive: set[weakref.ref[nn.Module]] = set()

        def end(module: weakref.ref[nn.Module]) -> None:
            alive.discard(module)
            if not alive:
                self._note_end()

        alive.update(weakref.ref(module, end) for module in group.spec.modules)
        self._alive[group] = alive

    def ended(self) -> list[LiveGroup]:
        """Groups that no module is left of."""
        return [group for group in self._groups
                if not self._alive.get(group, True)]

    def leave_out(self, gone: set[LiveGroup]) -> None:
        """Of `ended`."""
        self._groups[:] = [one for one in self._groups if one not in gone]
        for group in gone:
            del self._alive[group]

    def forget(self) -> None:
        """No end is told any more."""
        self._alive.clear()

    @property
    def modules(self) -> Iterable[nn.Module]:
        """Those with weights of hoist's."""
        return list({**dict.fromkeys(self._managed),
                     **dict.fromkeys(self._placed)})

    @property
    def device(self) -> torch.device:
        """The root's."""
        return self._parts[0].torch_device

    def note_change(self) -> None:
        self.changed = True

    def manages(self, module: nn.Module, name: str) -> bool:
        placed = self._placed.get(module, {}).get(name)
        return self._is_a_groups(module, name) or (
            placed is not None and placed() is not None
            and module._parameters.get(name) is placed())

    def _is_a_groups(self, module: nn.Module, name: str) -> bool:
        group = self._managed.get(module, {}).get(name)
        return group is not None and (
            group.binding.is_own_place(module, name)
            or group.binding.is_there(module, name))

    def idle_values(self, module: nn.Module) -> dict[str, Any]:
        """The true values of the module's weights that come and go."""
        return {key: group.binding.idle_value(module, key)
                for key, group in self._managed.get(module, {}).items()
                if not group.bound and group.binding.is_there(module, key)}

    def shares(self, module: nn.Module, name: str) -> bool:
        """True where the bytes are hoist's, not the worker's own."""
        return self.manages(module, name) and not any(
            group.binding.is_own_place(module, name) for group in self._groups)

    def trains(self) -> bool:
        """Weights that are not hoist's need gradients, or that are read in
        place, which may have them."""
        return any(value is not None and value.requires_grad
                   and not self._is_a_groups(module, key)
                   for module in self.known
                   for key, value in module._parameters.items())

    def admit(self) -> None:
        """Weights that came after attach (adapters) are the worker's own, and
        are moved to the device that their inputs come on: that of the module
        with groups that they are below, else the root's."""
        if not self.changed:
            return
        self.changed = False
        for module, device in self._visit().items():
            holders: list[Any] = [module._parameters, module._buffers]
            for holder in holders:
                for key, value in holder.items():
                    if value is None or self.manages(module, key) or (
                            value.device == device):
                        continue
                    with torch.no_grad():
                        holder[key] = _moved(value, device)

    def _visit(self) -> dict[nn.Module, torch.device]:
        """Every module that is there now, with the device that its inputs come
        on. `known` has them from then on."""
        own: dict[nn.Module, torch.device] = {}
        for group in self._groups:
            for trigger in group.spec.triggers:
                own.setdefault(trigger, group.part.torch_device)
        devices: dict[nn.Module, torch.device] = {}
        self._visit_below(self._root, self.device, own, devices)
        self.known = Modules(devices)
        return devices

    # No function within a function, which would refer to itself, and so keep
    # modules until they are collected.
    def _visit_below(self, module: nn.Module, device: torch.device,
                     own: Mapping[nn.Module, torch.device],
                     devices: dict[nn.Module, torch.device]) -> None:
        if module in devices or module in self._excluded:
            return
        devices[module] = own.get(module, device)
        for child in module.children():
            self._visit_below(child, devices[module], own, devices)


def _moved(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    if not isinstance(value, nn.Parameter):
        return value.to(device)
    if isinstance(value, IdleTensor):  # Made of a weight that lives in hoist.
        return nn.Parameter(value.to(device), value.requires_grad)
    value.data = value.data.to(device)
    return value


def ways_to(root: nn.Module, wanted: set[nn.Module]) -> set[nn.Module]:
    """The wanted modules below the root, and those that each is within."""
    found: set[nn.Module] = set()
    _find_ways(root, wanted, found, set())
    return found


def _find_ways(module: nn.Module, wanted: set[nn.Module],
               found: set[nn.Module], seen: set[nn.Module]) -> None:
    if module in seen:
        return
    seen.add(module)
    for child in module.children():
        _find_ways(child, wanted, found, seen)
    if module in wanted or any(child in found for child in module.children()):
        found.add(module)
