"""The modules of an attached tree: whose weight is whose, and what comes."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import nn

from ._device_part import DevicePart
from ._live import LiveGroup


class Tree:
    """Which weights of the tree are hoist's, and what is done about others
    that came to it later.

    Threads: any may tell of a change; the rest one at a time.
    """

    def __init__(self, root: nn.Module, excluded: set[nn.Module],
                 parts: list[DevicePart], groups: list[LiveGroup]) -> None:
        self._root = root
        self._excluded = excluded
        self._parts = parts
        self._groups = groups
        self._managed: dict[nn.Module, dict[str, LiveGroup]] = {}
        self.changed = False  # It has modules or weights we do not know.
        self.known: set[nn.Module] = set()  # Of the whole tree, as last seen.

    def look(self) -> None:
        """Notes where the groups' weights are."""
        for group in self._groups:
            for weight in group.spec.weights:
                for place in weight.places:
                    self._managed.setdefault(
                        place.module, {})[place.key] = group
        self._visit()

    @property
    def modules(self) -> Iterable[nn.Module]:
        """Those with weights of hoist's."""
        return self._managed.keys()

    @property
    def device(self) -> torch.device:
        """The root's."""
        return self._parts[0].torch_device

    def note_change(self) -> None:
        self.changed = True

    def manages(self, module: nn.Module, name: str) -> bool:
        return name in self._managed.get(module, ())

    def idle_values(self, module: nn.Module) -> dict[str, Any]:
        """The true values of the module's weights that come and go."""
        return {key: group.binding.idle_value(module, key)
                for key, group in self._managed.get(module, {}).items()
                if not group.bound and not group.binding.is_own_place(module,
                                                                      key)}

    def shares(self, module: nn.Module, name: str) -> bool:
        """True where the bytes are hoist's, not the worker's own."""
        return self.manages(module, name) and not any(
            group.binding.is_own_place(module, name) for group in self._groups)

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
                        if isinstance(value, nn.Parameter):
                            value.data = value.data.to(device)
                        else:
                            holder[key] = value.to(device)

    def _visit(self) -> dict[nn.Module, torch.device]:
        """Every module that is there now, with the device that its inputs come
        on. `known` has them from then on."""
        own: dict[nn.Module, torch.device] = {}
        for group in self._groups:
            for trigger in group.spec.triggers:
                own.setdefault(trigger, group.part.torch_device)
        devices: dict[nn.Module, torch.device] = {}

        def visit(module: nn.Module, device: torch.device) -> None:
            if module in devices or module in self._excluded:
                return
            devices[module] = own.get(module, device)
            for child in module.children():
                visit(child, devices[module])

        visit(self._root, self.device)
        self.known = set(devices)
        return devices
