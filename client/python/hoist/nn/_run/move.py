"""Moves inputs and outputs between devices.

Only tensors in tuples, lists and dictionaries move. A container without a moved
tensor stays the same object, and other kinds of objects (caches) are not
searched.
"""

from __future__ import annotations

from typing import Any

import torch


def to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, dict):
        moved = {key: to_device(one, device) for key, one in value.items()}
        if all(moved[key] is value[key] for key in moved):
            return value
        return moved if type(value) is dict else _same_kind(value, moved)
    if isinstance(value, (list, tuple)):
        items = [to_device(one, device) for one in value]
        if all(a is b for a, b in zip(items, value)):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    return value


def _same_kind(value: dict[Any, Any], moved: dict[Any, Any]) -> Any:
    """transformers' and diffusers' outputs are dictionaries with fields."""
    try:
        return type(value)(**moved)
    except TypeError:
        return type(value)(moved)


def device_of(value: Any) -> torch.device | None:
    """The device of the first tensor."""
    if isinstance(value, torch.Tensor):
        return value.device
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    for one in value:
        found = device_of(one)
        if found is not None:
            return found
    return None
