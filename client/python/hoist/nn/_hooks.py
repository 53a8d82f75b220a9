"""What stands in and around the modules of an attachment.

Hooks, and what takes the place of methods that would move, convert, replace or
copy weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Iterator, cast

import torch
from torch import nn

from .._errors import FailedPrecondition
from ._eager import eager
from ._live import LiveGroup
from ._move import device_of, to_device

if TYPE_CHECKING:
    from ._attachment import Attachment


def renew_lists(modules: Iterable[nn.Module]) -> None:
    """torch's recurrent modules keep lists of their weights, which they renew
    in forward: too late for what is let go of, or copied, before."""
    for module in modules:
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()


def do_nothing() -> None:
    """In place of a module's flatten_parameters."""


@dataclasses.dataclass
class Hook:
    """A module that is copied or pickled has its hooks copied or pickled."""

    attachment: Attachment

    def __deepcopy__(self, memo: Any) -> Any:
        return self.attachment.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.attachment.__reduce_ex__(protocol)


@dataclasses.dataclass
class Begin(Hook):
    groups: list[LiveGroup]
    # Where the inputs were, of each running call that had them moved.
    came_from: list[torch.device] = dataclasses.field(default_factory=list)

    @eager
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        for group in self.groups:
            self.attachment.enter(group)
        if not self.attachment.moves_inputs:
            return None
        device = self.groups[0].part.torch_device
        self.came_from.append(device_of((args, kwargs)) or
                              self.attachment.parts[0].torch_device)
        return self.attachment.move_inputs(args, kwargs, device)


@dataclasses.dataclass
class End(Hook):
    begin: Begin

    @eager
    def __call__(self, module: nn.Module, args: Any, kwargs: Any,
                 output: Any) -> Any:
        with contextlib.ExitStack() as stack:  # All, whichever of them fails.
            for group in self.begin.groups:
                stack.callback(self.attachment.leave, group)
        if self.begin.came_from:
            back = self.begin.came_from.pop()
            if output is not None:
                return to_device(output, back)
        return None


class BeginPass(Hook):
    @eager
    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return self.attachment.begin_pass(args, kwargs)


class EndPass(Hook):
    @eager
    def __call__(self, module: nn.Module, args: Any, kwargs: Any,
                 output: Any) -> Any:
        return self.attachment.end_pass(output)


@dataclasses.dataclass
class Apply:
    """Stands in for a module's `_apply`, which .to(), .half() and .cuda() go
    through: what hoist holds can only stay what and where it is."""

    attachment: Attachment
    module: nn.Module

    def __call__(self, fn: Any, recurse: bool = True) -> nn.Module:
        module, attachment = self.module, self.attachment
        kept: list[tuple[dict[str, Any], str, Any]] = []
        device = attachment.parts[0].torch_device
        for holder in (module._parameters, module._buffers):
            for key, value in holder.items():
                if value is not None and attachment.manages(module, key):
                    _refuse_conversion(fn, value.dtype, device)
                    kept.append((holder, key, value))
        for holder, key, _ in kept:
            holder[key] = None
        try:
            type(module)._apply(module, fn, recurse)
        finally:
            for holder, key, value in kept:
                holder[key] = value
            renew_lists([module])
            attachment.note_change()  # Adapters stay where their inputs are.
        return module


@dataclasses.dataclass
class LoadStateDict:
    """Before a module's part of a state_dict is copied into its weights, which
    torch would refuse with a message for each, or skip if they are on meta."""

    attachment: Attachment

    def __call__(self, module: nn.Module, state: Any, prefix: str,
                 *_: Any) -> None:
        for holder in (module._parameters, module._buffers):
            for key in holder:
                if prefix + key in state and self.attachment.shares(module,
                                                                    key):
                    raise FailedPrecondition(
                        f'"{prefix + key}" lives in hoist, where it is shared '
                        "and read-only; hoist.detach(module) before "
                        "load_state_dict, or leave it out of the state_dict")


def _refuse_conversion(fn: Any, dtype: torch.dtype,
                       device: torch.device) -> None:
    probe = torch.empty(0, dtype=dtype, device=device)
    made = fn(probe)
    if made.dtype != dtype or made.device != device:
        raise FailedPrecondition(
            f"the module's weights live in hoist, which stages them as {dtype} "
            f"on {device}; they cannot become {made.dtype} on {made.device}. "
            "hoist.detach(module) first, or attach with storage_dtype=, or "
            "load with dtype=")


# Registrations of parameters and modules are seen for the whole process.
_attached: weakref.WeakKeyDictionary[
    nn.Module, weakref.ref[Attachment]] = weakref.WeakKeyDictionary()
_watching: list[Any] = []


def know(module: nn.Module, attachment: Attachment) -> None:
    _attached[module] = weakref.ref(attachment)


def forget(module: nn.Module) -> None:
    _attached.pop(module, None)


def attachment_of(module: nn.Module) -> Attachment | None:
    return cast("Attachment | None", vars(module).get("_hoist"))


def attachments_in(module: nn.Module) -> Iterator[Attachment]:
    """Those that any module of the tree belongs to, each once."""
    found = {id(one): one for one in map(attachment_of, module.modules())
             if one is not None}
    return iter(found.values())


def find_attached(model: str) -> Attachment | None:
    """The attachment to that model, or to weights that were its; if a module
    is attached in this process."""
    for one in {ref() for ref in list(_attached.values())}:
        if one is not None and model in (one.model.name, one.original.name):
            return one
    return None


def watch_registrations() -> None:
    if _watching:
        return
    hooks = nn.modules.module
    _watching.append(hooks.register_module_parameter_registration_hook(
        _on_weight))
    _watching.append(hooks.register_module_buffer_registration_hook(_on_weight))
    _watching.append(hooks.register_module_module_registration_hook(_on_module))


def _on_weight(module: nn.Module, name: str, value: Any) -> None:
    attachment = attachment_of(module)
    if attachment is None:
        return
    if attachment.shares(module, name):
        raise FailedPrecondition(
            f'"{name}" lives in hoist and cannot be replaced; '
            "hoist.detach(module) first")
    attachment.note_change()


def _on_module(module: nn.Module, name: str, child: Any) -> None:
    # A module without weights of its own is not known by itself.
    if isinstance(child, nn.Module):
        for one in {ref() for ref in list(_attached.values())}:
            if one is not None:
                one.note_change()
