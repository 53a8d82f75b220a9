"""Saved tensors of autograd over weights, whose memory is reused by backward.

autograd keeps the names of the group and the part instead. When a backward
reaches it, the group is staged again, whatever has happened to its address
meanwhile.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import Any, Callable, Mapping, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ... import _saved_tensors
from ..._saved_tensors import Pair
from .._show.device_part import DevicePart
from .._show.group import Group
from .._tensors.idle import IdleTensor
from .._tree.inventory import Part, span_bytes
from .autocast import Casts, find_cast, is_on


class Reader(Protocol):
    """Brings groups' bytes for a backward."""

    def read(self, group: Group, name: str) -> torch.Tensor:
        """A stored tensor of the group, on its device, for the node that runs
        in this thread."""


@dataclasses.dataclass
class _Own:
    """A stored tensor that the module owns, since it was detached."""

    tensor: torch.Tensor
    cast_to: torch.dtype | None  # The type in which a graph was computed.
    weights: list[tuple[torch.Tensor, int]]  # Its weights, with versions.

    def bring(self, part: Part, device: torch.device) -> torch.Tensor:
        if any(one._version != version for one, version in self.weights):
            raise RuntimeError(
                f'"{part.stored.name}", which is needed for gradient '
                "computation, has been modified by an inplace operation after "
                "hoist.detach; call backward() before that")
        own = part.view(self.tensor)
        if own.device == device and self.cast_to is None:
            return own
        made = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype,
                                   device=device)
        return made.copy_(own if self.cast_to is None else
                          own.to(self.cast_to).to(own.dtype))


class SavedWeight:
    """A tensor over a group's bytes. It holds no memory, except that of a
    detached module."""

    __slots__ = ("_reader", "_group", "_part", "_own", "__weakref__")

    def __init__(self, reader: Reader, group: Group, part: Part) -> None:
        self._reader = reader
        self._group = group
        self._part = part
        self._own: _Own | None = None

    def bring(self) -> torch.Tensor:
        """For the node that runs in this thread."""
        if self._own is not None:
            return self._own.bring(self._part, self._group.part.torch_device)
        base = self._reader.read(self._group, self._part.stored.name)
        view = self._part.view(base)
        return view.detach() if view is base else view

    def settle(self, own: Mapping[str, _Own]) -> None:
        self._own = own[self._part.stored.name]


def settle(group: Group) -> None:
    """Its modules were detached: graphs use the modules' own weights."""
    found = {name: _Own(tensor, group.spec.storage.get(name), [])
             for name, tensor in group.binding.own.items()}
    for weight in group.spec.weights if found else ():
        place = weight.places[0]
        value = place.holder.get(place.key)
        if isinstance(value, torch.Tensor):
            for part in weight.parts:
                found[part.stored.name].weights.append((value, value._version))
    for saved in [*group.saved] if found else ():
        saved.settle(found)


# Devices with groups. Replaced, never changed, as other threads iterate it.
_parts: tuple[weakref.ref[DevicePart], ...] = ()


def claim_on(part: DevicePart, reader: Reader) -> None:
    """Claims saved tensors of groups that are staged there, from now on."""
    global _parts
    part.reader = reader
    _parts = (*(one for one in _parts if one() is not None),
              weakref.ref(part))


def _claim(tensor: torch.Tensor) -> Callable[[], torch.Tensor] | None:
    """See _saved_tensors.add_claimer."""
    if isinstance(tensor, IdleTensor):
        return None  # It has its value whenever it is read.
    if is_traceable_wrapper_subclass(tensor):
        return _claim_wrapper(tensor)
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    try:
        there = tensor.data_ptr()
    except RuntimeError:  # A tensor type without memory.
        return None
    for one in _parts:
        part = one()
        for group in tuple(part.staged) if part is not None else ():
            found = group.find(there, span_bytes(tensor))
            if found is None:
                continue
            stored, offset = found
            if offset % tensor.element_size():
                continue
            assert part is not None
            saved = SavedWeight(part.reader, group, Part(
                stored, tensor.dtype, tuple(tensor.shape), tensor.stride(),
                offset))
            group.saved.add(saved)
            return saved.bring
    return find_cast(tensor)


def _claim_wrapper(tensor: Any) -> Callable[[], torch.Tensor] | None:
    """Of plain tensors, some of them a group's."""
    names, context = tensor.__tensor_flatten__()
    kept = {name: getattr(tensor, name) for name in names}
    brings = {name: _claim(one) for name, one in kept.items()}
    claimed = {name: bring for name, bring in brings.items() if bring}
    if not claimed:
        return None
    for name in claimed:
        del kept[name]
    kind, size, stride = type(tensor), tensor.size(), tensor.stride()
    needs = tensor.requires_grad

    def bring() -> torch.Tensor:
        inner = {**kept, **{name: one() for name, one in claimed.items()}}
        made: torch.Tensor = kind.__tensor_unflatten__(inner, context, size,
                                                       stride)
        return made.requires_grad_(needs)

    return bring


_saved_tensors.add_claimer(_claim)


class Pushed(threading.local):
    """The pairs of hooks that this thread's running calls have pushed, to claim
    their saved tensors."""

    def __init__(self) -> None:
        self.pairs: list[tuple[object, Pair, Casts | None]] = []

    def begin(self, call: object, device: torch.device,
              is_compiled: bool = False) -> None:
        """is_compiled: the call's compiler decides what it saves."""
        if not torch.is_grad_enabled():
            return
        pair = _saved_tensors.push()
        if pair is None:
            return
        casts = None
        if not is_compiled and is_on(device):
            casts = Casts(_claim)
            casts.begin()
        self.pairs.append((call, pair, casts))

    def end(self, call: object) -> None:
        """Ends the latest one."""
        if self.pairs and self.pairs[-1][0] is call:
            self._end_latest()

    def clear(self) -> None:
        """Running calls will not end."""
        while self.pairs:
            self._end_latest()

    def _end_latest(self) -> None:
        _, pair, casts = self.pairs.pop()
        pair.remove()
        if casts is not None:
            casts.end()
