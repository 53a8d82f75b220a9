"""The attached modules of this process, and their notifications.

Hooks on registered parameters and modules apply to the whole process.
"""

from __future__ import annotations

import weakref
from typing import Any, Iterable, Iterator, Protocol, cast

import torch
from torch import nn

from ..._errors import FailedPrecondition
from ..._model import Model


class Attached(Protocol):
    """A module's attachment."""

    model: Model  # The staged one.
    original: Model  # With the original weights; often the same.

    def shares(self, module: nn.Module, name: str) -> bool:
        """True if the bytes are hoist's, not the worker's own."""

    def note_change(self) -> None:
        """The tree has new modules or weights."""


_attached: weakref.WeakKeyDictionary[
    nn.Module, weakref.ref[Attached]] = weakref.WeakKeyDictionary()
_watching: list[Any] = []
_watchers: weakref.WeakSet[Attached] = weakref.WeakSet()
_handle: list[Any] = []  # Of the hook that they share.


# For each module of their trees, also without weights.
_within: weakref.WeakKeyDictionary[
    nn.Module, weakref.ref[Attached]] = weakref.WeakKeyDictionary()


def know(module: nn.Module, by: Attached) -> None:
    """Until `forget`. The module refers to its attachment."""
    vars(module)["_hoist"] = by
    _attached[module] = weakref.ref(by)


def forget(module: nn.Module) -> None:
    vars(module).pop("_hoist", None)
    _attached.pop(module, None)


def known(module: nn.Module) -> Attached | None:
    """The attachment of exactly this module."""
    return cast("Attached | None", vars(module).get("_hoist"))


def find(model: str) -> Attached | None:
    """The attachment to that model, or to weights that it held; None if no
    module of this process has one."""
    for one in _all():
        if model in (one.model.name, one.original.name):
            return one
    return None


def _all() -> Iterator[Attached]:
    for one in {ref() for ref in list(_attached.values())}:
        if one is not None:
            yield one


def watch_weights() -> None:
    """Watches parameters and buffers that are registered from now on."""
    if not _watching:
        hooks = nn.modules.module
        _watching.append(hooks.register_module_parameter_registration_hook(
            _on_weight))
        _watching.append(hooks.register_module_buffer_registration_hook(
            _on_weight))


def watch_modules(by: Attached, tree: Iterable[nn.Module]) -> None:
    """Watches modules that are added to these, for `by`, until
    `ignore_modules`. Forwards register modules too (each slice of a ModuleList
    does), so this costs time where it is not needed."""
    ref = weakref.ref(by)
    for module in tree:
        _within[module] = ref
    if not _watchers:
        _handle.append(nn.modules.module.
                       register_module_module_registration_hook(_on_module))
    _watchers.add(by)


def ignore_modules(by: Attached) -> None:
    _watchers.discard(by)
    if not _watchers:
        while _handle:
            _handle.pop().remove()


def _on_weight(module: nn.Module, name: str, value: Any) -> None:
    by = known(module)
    if by is None:
        return
    if by.shares(module, name):
        raise FailedPrecondition(
            f'"{name}" lives in hoist and cannot be replaced; '
            "hoist.detach(module) first")
    by.note_change()


def _on_module(module: nn.Module, name: str, child: Any) -> None:
    if torch.compiler.is_compiling():
        return  # Modules that compiled code makes end with its call.
    ref = _within.get(module)
    by = None if ref is None else ref()
    if by is not None and isinstance(child, nn.Module):
        by.note_change()
