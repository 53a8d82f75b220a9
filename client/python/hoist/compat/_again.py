"""Attaching with options that come in several calls."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..nn import attach, detach
from ..nn._api import unwrap
from ..nn._attachment import attachment_of
from ..nn._options import AttachOptions

# Not the name: with other groups or types it is another model.
_KEPT = {"budget", *AttachOptions.__annotations__} - {"name", "progress"}


def attach_with(module: nn.Module, **options: Any) -> None:
    """Attaches; a module that is attached already keeps its other options, so
    that casting and offloading may be asked for in either order."""
    before = attachment_of(unwrap(module))
    if before is not None:
        detach(module)
        # As it is by now: hoistd may have ended, and the session with it.
        options = {**{name: getattr(before.wanted, name) for name in _KEPT},
                   **options}
    attach(module, **options)
