"""Keeps tensors on the device: hoist.keep() and hoist.mark_keep()."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch
from torch.autograd.function import FunctionCtx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._eager import eager
from .._saved_tensors import Pair, push


class _Thread(threading.local):
    def __init__(self) -> None:
        self.pairs: list[Pair | None] = []  # Of keep() blocks.
        self.kept_bytes = 0  # Saved within those.


_thread = _Thread()


def is_keeping() -> bool:
    """This thread is within a keep()."""
    return bool(_thread.pairs)


def kept_bytes() -> int:
    """The bytes that this thread has ever saved under keep()."""
    return _thread.kept_bytes


class _Marks:
    """Storages that stay, by address; references are weak.

    Threads: any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refs: dict[int, StorageWeakRef] = {}
        self._look_at = 64  # Marks at which dead ones are dropped.

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        with self._lock:
            self._refs[storage._cdata] = StorageWeakRef(storage)
            if len(self._refs) >= self._look_at:
                self._refs = {key: ref for key, ref in self._refs.items()
                              if not ref.expired()}
                self._look_at = max(64, 2 * len(self._refs))

    def __contains__(self, address: int) -> bool:
        # A weak reference keeps a storage's address from being reused.
        return address in self._refs


_marks = _Marks()


def is_marked(storage: int) -> bool:
    return storage in _marks


def mark_keep(*tensors: torch.Tensor | None) -> None:
    """Marks tensors whose memory stays on the device when it is saved for
    backward.

    The mark belongs to the memory: it holds for views, and for the memory's
    life. A wrapper's parts are marked. None is skipped.
    """
    for tensor in tensors:
        if tensor is None:
            continue
        if is_traceable_wrapper_subclass(tensor):
            kind: Any = type(tensor)
            mark_keep(*(getattr(tensor, name)
                        for name in kind.__tensor_flatten__(tensor)[0]))
        elif tensor.layout == torch.strided:
            _marks.add(tensor)


# Autograd packs the arguments of a custom function's save_for_backward only
# after its forward, and so after a keep() in it. So a call within one marks
# them. torch's own method is back when no thread is in a keep().
_plain_save = FunctionCtx.save_for_backward
_users_lock = threading.Lock()
_users = 0


def _save_for_backward(self: FunctionCtx, *tensors: torch.Tensor) -> None:
    if is_keeping():
        mark_keep(*(one for one in tensors if isinstance(one, torch.Tensor)))
    _plain_save(self, *tensors)


def _watch_functions(change: int) -> None:
    global _users
    with _users_lock:
        _users += change
        FunctionCtx.save_for_backward = (  # type: ignore[method-assign]
            _save_for_backward if _users else _plain_save)


class _Keeper:
    """Takes every tensor, unchanged."""

    @eager
    def pack(self, tensor: torch.Tensor) -> Any:
        _thread.kept_bytes += tensor.numel() * tensor.dtype.itemsize
        return tensor.detach()

    @eager
    def unpack(self, packed: Any) -> torch.Tensor:
        kept: torch.Tensor = packed
        return kept


_KEEPER = _Keeper()


class keep(contextlib.ContextDecorator):
    """`with hoist.keep():` or `@hoist.keep()`: tensors that the block saves for
    backward stay on the device, whatever offload_activations is around it or
    within it, at any depth.

    This includes custom autograd functions, whether their apply or their
    save_for_backward is in the block. Weights of attached modules are staged as
    usual. One object may be entered many times, also nested, by any thread.
    Compiled code breaks its graph here, and so refuses it under
    `fullgraph=True`.
    """

    @eager
    def __enter__(self) -> keep:
        _thread.pairs.append(push(_KEEPER))
        _watch_functions(+1)
        return self

    @eager
    def __exit__(self, *error: object) -> None:
        _watch_functions(-1)
        pair = _thread.pairs.pop()
        if pair is not None:
            pair.remove()
