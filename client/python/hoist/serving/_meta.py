"""Builds engines' modules without memory for their parameters."""

from __future__ import annotations

from typing import Any, Callable, Iterator, TypeVar

import torch
from torch.overrides import TorchFunctionMode

T = TypeVar("T")

# They return tensors without values, whatever their arguments.
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty",
          "new_empty_strided")
# They return tensors with their arguments' elements.
_SAME = ("bfloat16", "clone", "contiguous", "double", "float", "half", "to",
         "type")


def build_on_meta(make: Callable[[], T]) -> tuple[T, frozenset[int]]:
    """The result of `make`, with meta tensors for those that it makes by
    torch.empty: engines make parameters in that way, and fill them later. All
    others are real, such as tables of rotations.

    Also the storages (`storage_id`) of meta tensors that a function of torch's
    has filled all the same: those values are lost.
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
        # A freed storage's number could be reused.
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
                return to  # Finding out that nothing changes takes longer.
        self._note(kwargs.get("out"))
        made = func(*args, **kwargs)
        if name not in _EMPTY:
            self._note_made(name, (args, kwargs), made)
        return made

    def _note_made(self, name: str, given: Any, made: Any) -> None:
        """Unless it is a view or a copy without values, it has values."""
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
