"""Every weight of a module tree, with its holders and its parts."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from typing import Any, Iterator, Sequence

import torch
from torch import nn

from ..._errors import Unimplemented
from .take_apart import PLAIN, PutTogether, holds_tensors, take_apart


class Place:
    """Where a module holds a weight: `holder[key]`, one of the dictionaries
    `_parameters`, `_buffers` or `__dict__` of `module`."""

    def __init__(self, module: nn.Module, holder: dict[str, Any],
                 key: str) -> None:
        self._module = weakref.ref(module)
        self.holder = holder
        self.key = key

    @property
    def module(self) -> nn.Module | None:
        """None: it has ended."""
        return self._module()


@dataclasses.dataclass(frozen=True)
class Alias:
    """Where a module holds an attribute of a weight: bitsandbytes' state of a
    quantised parameter. `holder[key] is weight.attribute`."""

    holder: dict[str, Any]
    key: str
    attribute: str


@dataclasses.dataclass
class Stored:
    """Bytes that hoist keeps: a tensor of an image.

    `tensor` is the module's own until it is handed over; `meta` describes it
    afterwards.
    """

    name: str
    tensor: torch.Tensor | None
    meta: torch.Tensor
    device: torch.device  # The module's device.

    @property
    def meta_at_first(self) -> bool:
        """The module had no bytes for it."""
        return self.device.type == "meta"

    @property
    def nbytes(self) -> int:
        """Of the range that its elements span."""
        return span_bytes(self.meta)


@dataclasses.dataclass
class Part:
    """A plain tensor of a weight: a view of stored bytes."""

    stored: Stored
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int  # From the stored tensor's first element.

    def view(self, base: torch.Tensor) -> torch.Tensor:
        """The part within `base`, the stored tensor at some address."""
        if (self.offset_bytes == 0 and base.shape == self.shape
                and base.dtype == self.dtype
                and base.stride() == self.strides):
            return base
        start = base.storage_offset() * base.element_size()
        made = torch.empty(0, dtype=self.dtype, device=base.device)
        return made.set_(base.untyped_storage(),
                         (start + self.offset_bytes) // self.dtype.itemsize,
                         self.shape, self.strides)


@dataclasses.dataclass
class Weight:
    """One object that modules hold, in one or more places (a tie)."""

    name: str
    kind: str  # "parameter", "buffer" or "state".
    places: list[Place]
    parts: list[Part]
    put_together: PutTogether
    dtype: torch.dtype | None  # None: not a tensor.
    requires_grad: bool
    plain: bool  # No subclass: the weight is its only part.
    aliases: list[Alias] = dataclasses.field(default_factory=list)

    @property
    def value(self) -> Any:
        place = self.places[0]
        return place.holder[place.key]

    def put(self, value: Any) -> None:
        for holder, key, one in self.swaps(value):
            holder[key] = one

    def swaps(self, value: Any) -> list[tuple[dict[str, Any], str, Any]]:
        """The assignments that make `value` the weight: holder[key] = it."""
        return [
            *((place.holder, place.key, value) for place in self.places),
            *((alias.holder, alias.key, getattr(value, alias.attribute))
              for alias in self.aliases)]


def keep_own(weight: Weight, at: Sequence[int]) -> None:
    """Makes these parts the worker's own. They are parts no more, and are
    inserted when the weight is put together."""
    own = {index: copy_of(tensor) for index, part in enumerate(weight.parts)
           if index in at for tensor in [part.stored.tensor]
           if tensor is not None}
    count, put_together = len(weight.parts), weight.put_together
    weight.parts = [part for index, part in enumerate(weight.parts)
                    if index not in own]

    def with_own(found: Sequence[torch.Tensor]) -> Any:
        others = iter(found)
        return put_together([own[index].to(found[0].device) if index in own
                             else next(others) for index in range(count)])

    weight.put_together = with_own


def as_stored(memory: torch.Tensor, stored: Stored) -> torch.Tensor:
    """The bytes with the stored tensor's type, shape and strides."""
    meta = stored.meta
    return torch.empty(0, dtype=meta.dtype, device=memory.device).set_(
        memory.untyped_storage(),
        memory.storage_offset() // meta.dtype.itemsize, meta.shape,
        meta.stride())


def span_bytes(tensor: torch.Tensor) -> int:
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum((size - 1) * stride for size, stride in
               zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def take_inventory(root: nn.Module, excluded: set[nn.Module]) -> list[Weight]:
    """The weights below `root`, in the order of its modules.

    Ties (one object in several places) are one weight; views of one another
    are weights whose parts lie in the same stored bytes.

    Unimplemented, by name: a weight, or a way to hold it, that hoist lacks.
    """
    weights: dict[int, Weight] = {}
    pieces: list[tuple[Weight, str, torch.Tensor]] = []
    keep = []  # Objects whose id() is in `weights`.
    left_alone = excluded | adapters_in(root)
    for module_name, module in root.named_modules():
        if module in left_alone:
            continue
        _refuse(module_name, module)
        _settle(module)
        for kind, holder, key, value in _held(module):
            place = Place(module, holder, key)
            known = weights.get(id(value))
            if known is not None:
                known.places.append(place)
                continue
            name = f"{module_name}.{key}" if module_name else key
            if kind == "state" and _is_alias(module, place, value, weights):
                continue
            weight, own = _weigh(name, kind, place, value)
            if not own:
                continue
            weights[id(value)] = weight
            keep.append(value)
            pieces += [(weight, name + rest, part) for rest, part in own]
    _store(pieces)
    return list(weights.values())


def adapters_in(root: nn.Module) -> set[nn.Module]:
    """peft's adapters. They are the worker's own like later ones, since they
    are swapped in place and trained; except those without bytes so far."""
    library: Any = sys.modules.get("peft.tuners.tuners_utils")
    if library is None:
        return set()
    return {below for layer in root.modules()
            if isinstance(layer, library.BaseTunerLayer)
            for name in layer.adapter_layer_names
            for one in [getattr(layer, name, None)]
            if isinstance(one, nn.Module)
            and not any(value.is_meta for value in one.parameters())
            for below in one.modules()}


def _refuse(name: str, module: nn.Module) -> None:
    """Unimplemented: its weights cannot be hoist's."""
    why = None
    if isinstance(module, torch.jit.ScriptModule):
        why = "TorchScript holds its weights itself"
    elif getattr(module, "max_norm", None) is not None and isinstance(
            module, (nn.Embedding, nn.EmbeddingBag)):
        why = "with max_norm= its forward writes to its weight"
    if why is not None:
        raise Unimplemented(
            f'"{name or "the module"}", a {type(module).__name__}, cannot be '
            f"staged: {why}; exclude= leaves it to you")


def _settle(module: nn.Module) -> None:
    """bitsandbytes' 8-bit linear moves the scales from its weight to its state
    in its first pass. Do it now: a pass must not keep staged tensors in it."""
    move = getattr(module, "init_8bit_state", None)
    weight = module._parameters.get("weight")
    if move is not None and getattr(weight, "CB", None) is not None:
        move()


def _held(module: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, Any]]:
    quantised = False
    value: Any
    for key, value in module._parameters.items():
        if value is not None:
            quantised |= type(value) is not nn.Parameter
            yield "parameter", module._parameters, key, value
    for key, value in module._buffers.items():
        if value is not None:
            yield "buffer", module._buffers, key, value
    if not quantised:
        return
    # bitsandbytes keeps scales beside its parameters, on the module.
    for key, value in list(vars(module).items()):
        if not key.startswith("_") and holds_tensors(value):
            yield "state", vars(module), key, value


def _is_alias(module: nn.Module, place: Place, value: Any,
              weights: dict[int, Weight]) -> bool:
    """Notes attributes of a parameter that the module holds too."""
    for parameter in module._parameters.values():
        if parameter is None or id(parameter) not in weights:
            continue
        for attribute, item in vars(parameter).items():
            if item is value:
                weights[id(parameter)].aliases.append(
                    Alias(place.holder, place.key, attribute))
                return True
    return False


def _weigh(name: str, kind: str, place: Place,
           value: Any) -> tuple[Weight, list[tuple[str, torch.Tensor]]]:
    parts, put_together = take_apart(value)
    tensor = isinstance(value, torch.Tensor)
    return Weight(
        name, kind, [place], [], put_together,
        dtype=value.dtype if tensor else None,
        requires_grad=tensor and value.requires_grad,
        plain=type(value) in PLAIN), parts


@dataclasses.dataclass
class _Piece:
    weight: Weight
    name: str
    tensor: torch.Tensor
    start: int  # In bytes, from its storage's start.
    end: int
    base: Stored | None = None
    base_start: int = 0


def _store(found: list[tuple[Weight, str, torch.Tensor]]) -> None:
    """Gives each piece its stored bytes: its own, or those it overlaps."""
    pieces = []
    by_storage: dict[int, list[_Piece]] = {}
    for weight, name, tensor in found:
        start = int(tensor.storage_offset()) * tensor.element_size()
        piece = _Piece(weight, name, tensor, start, start + span_bytes(tensor))
        pieces.append(piece)
        if piece.end == piece.start:
            _share([piece])
        else:
            by_storage.setdefault(tensor.untyped_storage()._cdata,
                                  []).append(piece)
    for several in by_storage.values():
        run: list[_Piece] = []
        end = 0
        for piece in sorted(several, key=lambda piece: piece.start):
            if run and piece.start >= end:
                _share(run)
                run = []
            end = max(end if run else 0, piece.end)
            run.append(piece)
        _share(run)
    for piece in pieces:
        assert piece.base is not None
        piece.weight.parts.append(Part(
            piece.base, piece.tensor.dtype, tuple(piece.tensor.shape),
            tuple(piece.tensor.stride()), piece.start - piece.base_start))


def _share(run: list[_Piece]) -> None:
    """One stored tensor for pieces that overlap."""
    start = min(piece.start for piece in run)
    end = max(piece.end for piece in run)
    whole = next((piece for piece in run
                  if piece.start == start and piece.end == end), None)
    if whole is not None:
        name, tensor = whole.name, whole.tensor
    else:
        start -= start % 16  # Aligned for views of every element type.
        name = run[0].name + "..."
        tensor = torch.empty(0, dtype=torch.uint8, device=run[0].tensor.device)
        tensor.set_(run[0].tensor.untyped_storage(), start, (end - start,),
                    (1,))
    base = Stored(name, tensor, tensor.to("meta") if tensor.is_meta else
                  torch.empty_strided(tensor.shape, tensor.stride(),
                                      dtype=tensor.dtype, device="meta"),
                  tensor.device)
    for piece in run:
        piece.base, piece.base_start = base, start


def copy_of(tensor: torch.Tensor,
            device: torch.device | None = None) -> torch.Tensor:
    """With the same attributes and strides: clone() and to() keep those only
    without shared elements or gaps."""
    to = device or tensor.device
    count = span_bytes(tensor) // tensor.element_size()
    flat = tensor.detach().as_strided((count,), (1,)).to(to, copy=True)
    made = torch.empty(0, dtype=tensor.dtype, device=to).set_(
        flat.untyped_storage(), 0, tensor.shape, tensor.stride())
    made.__dict__.update(tensor.__dict__)
    return made
