"""The modules of an attached tree: owners of weights, additions, and ends of
modules."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from .._tensors.idle import IdleTensor
from .._tree.inventory import Weight, adapters_in
from .._tree.others import Modules
from .device_part import DevicePart
from .group import Group


class Tree:
    """Knows which weights of the tree are hoist's, and takes care of weights
    that were added later.

    Threads: any may report a change; the rest one at a time.
    """

    def __init__(self, root: nn.Module, excluded: set[nn.Module],
                 parts: list[DevicePart], groups: list[Group],
                 note_end: Callable[[], None]) -> None:
        """note_end: a group has ended, see `ended`. Called by any thread,
        wherever Python collects the last module."""
        self._root = root
        self._excluded = weakref.WeakSet(excluded)
        self._parts = parts
        self._groups = groups
        self._note_end = note_end
        self._managed: weakref.WeakKeyDictionary[
            nn.Module, dict[str, Group]] = weakref.WeakKeyDictionary()
        # Weights that are read in place, which are in no group.
        self._placed: weakref.WeakKeyDictionary[
            nn.Module, dict[str, weakref.ref[torch.Tensor]]] = (
                weakref.WeakKeyDictionary())
        # By group, its living modules.
        self._alive: dict[Group, set[weakref.ref[nn.Module]]] = {}
        self.changed = False  # It has unknown modules or weights.
        self.known = Modules()  # The whole tree, as last visited.

    def look(self, placed: Sequence[Weight] = ()) -> None:
        """Notes the places of the groups' weights, and of those in place."""
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
        self.changed = bool(adapters_in(self._root))

    def _wait_for_end(self, group: Group) -> None:
        alive: set[weakref.ref[nn.Module]] = set()

        def end(module: weakref.ref[nn.Module]) -> None:
            alive.discard(module)
            if not alive:
                self._note_end()

        alive.update(weakref.ref(module, end) for module in group.spec.modules)
        self._alive[group] = alive

    def ended(self) -> list[Group]:
        """Groups without a living module."""
        return [group for group in self._groups
                if not self._alive.get(group, True)]

    def leave_out(self, gone: set[Group]) -> None:
        """gone: groups from `ended`."""
        self._groups[:] = [one for one in self._groups if one not in gone]
        for group in gone:
            del self._alive[group]

    def forget(self) -> None:
        """Stops the reports of ended groups."""
        self._alive.clear()

    @property
    def modules(self) -> Iterable[nn.Module]:
        """The modules with weights of hoist's."""
        return list({**dict.fromkeys(self._managed),
                     **dict.fromkeys(self._placed)})

    @property
    def device(self) -> torch.device:
        """The root's device."""
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
        """The true values of the module's transient weights."""
        return {key: group.binding.idle_value(module, key)
                for key, group in self._managed.get(module, {}).items()
                if not group.bound and group.binding.is_there(module, key)}

    def shares(self, module: nn.Module, name: str) -> bool:
        """True if the bytes are hoist's, not the worker's own."""
        return self.manages(module, name) and not any(
            group.binding.is_own_place(module, name) for group in self._groups)

    def trains(self) -> bool:
        """Whether one of the worker's own weights, or one read in place, needs
        gradients."""
        return any(value is not None and value.requires_grad
                   and not self._is_a_groups(module, key)
                   for module in self.known
                   for key, value in module._parameters.items())

    def admit(self) -> None:
        """Weights added after attach (adapters) are the worker's own. They move
        to the device of their inputs: that of the nearest module above with
        groups, else the root's."""
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
        """Every present module, with the device of its inputs. Updates
        `known`."""
        own: dict[nn.Module, torch.device] = {}
        for group in self._groups:
            for trigger in group.spec.triggers:
                own.setdefault(trigger, group.part.torch_device)
        devices: dict[nn.Module, torch.device] = {}
        self._visit_below(self._root, self.device, own, devices)
        self.known = Modules(devices)
        return devices

    # Not a nested function: it would refer to itself, and keep modules until
    # the next garbage collection.
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
    if isinstance(value, IdleTensor):  # Made from a weight in hoist.
        return nn.Parameter(value.to(device), value.requires_grad)
    value.data = value.data.to(device)
    return value


def ways_to(root: nn.Module, wanted: set[nn.Module]) -> set[nn.Module]:
    """The wanted modules below the root, and all modules around them."""
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
