"""Attaching with options that come in several calls."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..nn import attach, detach
from ..nn._hooks import attachment_of

_KEPT = ("budget", "groups", "order", "storage_dtype", "skip", "exclude",
         "idle", "device", "session", "exclude_kwargs", "deadline", "weight",
         "priority")


def attach_with(module: nn.Module, **options: Any) -> None:
    """Attaches; a module that is attached already keeps its other options, so
    that casting and offloading may be asked for in either order."""
    before = attachment_of(module)
    if before is not None:
        options = {**{name: getattr(before.wanted, name) for name in _KEPT},
                   **options}
        detach(module)
    attach(module, **options)
