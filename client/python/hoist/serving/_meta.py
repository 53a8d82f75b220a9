"""Modules of engines, made without memory for their parameters."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch
from torch.overrides import TorchFunctionMode

T = TypeVar("T")


def build_on_meta(make: Callable[[], T]) -> tuple[T, frozenset[int]]:
    """What `make` makes, with the meta device's in the place of each tensor
    that it makes by torch.empty: engines make parameters so, and give them
    values later. All else is real, such as tables of rotations.

    Also the storages (`storage_id`) of those that `make` wrote to by a function
    of torch's: their values are lost.
    """
    mode = _EmptyOnMeta()
    with mode:
        made = make()
    return made, frozenset(mode.written)


def storage_id(tensor: torch.Tensor) -> int:
    """The same for all views of one storage, while it lives."""
    return int(tensor.untyped_storage()._cdata)


class _EmptyOnMeta(TorchFunctionMode):

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        # A storage that was freed could give its number to another one.
        self._keep: list[torch.UntypedStorage] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and not any(
                kwargs.get(one) for one in ("device", "out", "pin_memory")):
            return func(*args, **{**kwargs, "device": "meta"})
        to = args[0] if args else kwargs.get("tensor")
        name = getattr(func, "__name__", "")
        init = getattr(func, "__module__", "") == "torch.nn.init"
        if isinstance(to, torch.Tensor) and to.is_meta and (
                init or name == "__setitem__" or (
                    name.endswith("_") and not name.endswith("__")
                    and name not in ("requires_grad_", "detach_"))):
            self.written.add(storage_id(to))
            self._keep.append(to.untyped_storage())
            if init:  # Working out that nothing changes takes longer.
                return to
        return func(*args, **kwargs)
