"""Casts of weights that autocast makes while a group's modules run.

autocast casts a weight for each operator that it runs in a lower precision, and
a graph saves the cast: a copy of a weight that would outlive its group. So in a
graph under autocast a cast is recognised by its memory, and the graph saves the
weight's name instead.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import (TorchDispatchMode,
                                          _get_current_dispatch_mode,
                                          _pop_mode, _push_mode)

from ..._saved_tensors import is_plain

Bring = Callable[[], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class _Cast:
    storage: StorageWeakRef  # While it lives, its key is unique.
    bring: Bring  # Of the cast's source.
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]

    def part(self, size: torch.Size, stride: tuple[int, ...],
             offset: int) -> torch.Tensor:
        source = self.bring()
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype,
                                   device=source.device)
        return made.copy_(source).as_strided(size, stride, offset)


class Casts(TorchDispatchMode):
    """The casts of one thread, from `begin` to `end`. Each operator is slower
    by some microseconds meanwhile."""

    def __init__(self, claim: Callable[[torch.Tensor], Bring | None]) -> None:
        """claim: returns how to bring a weight again; None: no weight."""
        super().__init__()
        self._claim = claim
        self._found: dict[int, _Cast] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self._note(args[0], made)
        return made

    def _note(self, source: torch.Tensor, made: torch.Tensor) -> None:
        if not is_plain(made) or made.device != source.device:
            return
        bring = self._claim(source)
        if bring is not None:
            storage = made.untyped_storage()
            self._found[storage._cdata] = _Cast(
                StorageWeakRef(storage), bring, made.dtype, made.size(),
                made.stride())

    def find(self, tensor: torch.Tensor) -> Bring | None:
        """How to bring it again, if it is a cast of a weight or a view of one.
        """
        cast = (self._found.get(tensor.untyped_storage()._cdata)
                if is_plain(tensor) else None)
        if (cast is None or cast.storage.expired()
                or cast.dtype != tensor.dtype):
            return None
        size, stride, offset = (tensor.size(), tensor.stride(),
                                int(tensor.storage_offset()))
        return lambda: cast.part(size, stride, offset)

    def begin(self) -> None:
        # Not by `with`, which registers it for all threads.
        _push_mode(self)
        _now.casts = self

    def end(self) -> None:
        """Removes it from any place on the stack."""
        _now.casts = None
        self._found.clear()
        later = []
        while (top := _get_current_dispatch_mode()) is not None:
            _pop_mode()
            if top is self:
                break
            later.append(top)
        for one in reversed(later):
            _push_mode(one)


class _Now(threading.local):
    casts: Casts | None = None


_now = _Now()


def is_on(device: torch.device) -> bool:
    """autocast is on for this thread and device, and no Casts is active."""
    return _now.casts is None and torch.is_autocast_enabled(device.type)


def find_cast(tensor: torch.Tensor) -> Bring | None:
    """See Casts.find."""
    return None if _now.casts is None else _now.casts.find(tensor)
