"""Modules of engines, made without memory for their parameters."""

from __future__ import annotations

from typing import Any, Callable, Iterator, TypeVar

import torch
from torch.overrides import TorchFunctionMode

T = TypeVar("T")

# Tensors without values, of whatever they are given.
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty",
          "new_empty_strided")
# Tensors of the elements that they are given.
_SAME = ("bfloat16", "clone", "contiguous", "double", "float", "half", "to",
         "type")


def build_on_meta(make: Callable[[], T]) -> tuple[T, frozenset[int]]:
    """What `make` makes, with the meta device's in the place of each tensor
    that it makes by torch.empty: engines make parameters so, and give them
    values later. All else is real, such as tables of rotations.

    Also the storages (`storage_id`) of those that have had values all the same,
    by a function of torch's: these are lost.
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
        if init or name == "__setitem__" or (
                name.endswith("_") and not name.endswith("__")
                and name not in ("requires_grad_", "detach_")):
            self._note(to)
            if init and getattr(to, "is_meta", False):
                return to  # Working out that nothing changes takes longer.
        self._note(kwargs.get("out"))
        made = func(*args, **kwargs)
        if name not in _EMPTY:
            self._note_made(name, (args, kwargs), made)
        return made

    def _note_made(self, name: str, given: Any, made: Any) -> None:
        """What is not a view has values, unless it is a copy without any."""
        found = list(_on_meta(made))
        before = {storage_id(one) for one in _on_meta(given)} if found else ()
        if name in _SAME and self.written.isdisjoint(before):
            return
        self._note([one for one in found if storage_id(one) not in before])

    def _note(self, to: Any) -> None:
        for one in _on_meta(to):
            self.written.add(storage_id(one))
            self._keep.append(one.untyped_storage())


def _on_meta(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        if tree.is_meta:
            yield tree
    elif isinstance(tree, (list, tuple)):
        for one in tree:
            yield from _on_meta(one)
    elif isinstance(tree, dict):
        yield from _on_meta(list(tree.values()))
