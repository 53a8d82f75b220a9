"""A recipe for each of a module's tensors: how hoistd makes it of the files."""

from __future__ import annotations

import dataclasses
import re
from types import MappingProxyType
from typing import Iterator, Mapping, Sequence

import torch
from torch import nn

from .. import _dtypes
from .._registration import Joined, Runs
from .._runs import runs_of
from ..checkpoint import FileTensor
from ._ranges import FileRange, ranges_within
from ._trace import Trace, Untraceable

# Files' tensors that the module does not use, and hoistd does not read.
UNUSED = "(unused)"
# Tensors in no layer: embeddings, heads, the last norm.
OUTSIDE = "(outside)"
# Bytes of a layer that has parts, and their number at most. Below, the turns of
# several groups take longer than their bytes.
_LARGE = 8 << 20
_PARTS = 16
_LAYER = re.compile(r"^(?:.*?\.)?\d+(?=\.)")


@dataclasses.dataclass(frozen=True)
class Held:
    """A parameter or buffer of a module, by all of its names there."""

    names: tuple[str, ...]
    tensor: torch.Tensor
    is_parameter: bool


@dataclasses.dataclass(frozen=True)
class Cut:
    """How a tensor is cut into pieces that are read in place: so many bytes
    each, over so many units that are read as a whole (experts)."""

    piece_bytes: int
    units: int

    def pieces(self, name: str, elements: int, size: int
               ) -> Iterator[tuple[str, int, int]]:
        """Of a tensor of so many elements of `size` bytes, in order: each one's
        name, first element, and number of elements."""
        step = self.piece_bytes // size
        for number, at in enumerate(range(0, elements, step)):
            yield f"{name}#{number}", at, min(step, elements - at)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A tensor that is read in place. groups: its pieces, end to end."""

    dtype: str  # safetensors' name.
    shape: tuple[int, ...]
    units: int
    groups: tuple[str, ...]


@dataclasses.dataclass
class Recipes:
    """Arguments of Session.register, and the places of the results.

    stored: for each tensor, by the first of its names in the module: its
        group's name, and its own in hoistd.
    layers: each one's groups, in order.
    pieces: by the same names, the tensors that are cut; they are not stored.
    refused: tensors that the files cannot give, by the same names, and why.
    """

    groups: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    joined: dict[str, Joined] = dataclasses.field(default_factory=dict)
    stored: dict[str, tuple[str, str]] = dataclasses.field(
        default_factory=dict)
    layers: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    pieces: dict[str, Pieces] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)


def held_by(module: nn.Module) -> list[Held]:
    """All parameters and buffers; shared ones once."""
    found: dict[int, tuple[list[str], torch.Tensor, bool]] = {}
    for is_parameter, items in (
            (True, module.named_parameters(remove_duplicate=False)),
            (False, module.named_buffers(remove_duplicate=False))):
        for name, tensor in items:
            found.setdefault(id(tensor), ([], tensor, is_parameter)
                             )[0].append(name)
    return [Held(tuple(names), tensor, is_parameter)
            for names, tensor, is_parameter in found.values()]


def group_of(names: Sequence[str]) -> str:
    """The group of a tensor, by its names in the module: its layer, the first
    module with a number as name; OUTSIDE, if it is in none, or in several."""
    found = {match.group() if match else OUTSIDE
             for match in map(_LAYER.match, names)}
    return found.pop() if len(found) == 1 else OUTSIDE


def write_recipes(module: nn.Module, trace: Trace,
                  headers: Mapping[str, FileTensor],
                  cuts: Mapping[str, Cut] = MappingProxyType({}),
                  in_parts: bool = False) -> Recipes:
    """For all parameters, and for the buffers that the loading code wrote.

    cuts: by a tensor's first name; the others are whole. in_parts: a large
    layer is several groups, so that a budget can keep some of each.
    """
    made = Recipes()
    nbytes: dict[str, int] = {}  # By the names in hoistd.
    for held in held_by(module):
        if not held.is_parameter and not trace.was_written(held.tensor):
            continue
        name = held.names[0]
        try:
            ranges = trace.ranges_of(held.tensor)
        except Untraceable as why:
            made.refused[name] = str(why)
            continue
        if not held.tensor.numel():
            continue  # It has no elements: it stays as it was made.
        if name in cuts:
            made.pieces[name] = _cut(name, held.tensor, cuts[name], ranges,
                                     headers, made)
            continue
        stored = _name(name, tuple(held.tensor.shape), ranges, headers,
                       made.joined)
        group = group_of(held.names)
        nbytes[stored] = held.tensor.nbytes
        made.stored[name] = (group, stored)
        made.groups.setdefault(group, []).append(stored)
    made.layers = {group: [group] for group, _ in made.stored.values()
                   if group != OUTSIDE}
    if in_parts:
        _part_layers(made, nbytes)
    parts = {part[0] for one in made.joined.values()
             for part in one.parts if not isinstance(part, str)}
    named = {one for group in made.groups.values() for one in group}
    rest = [one for one in headers if one not in parts and one not in named]
    if rest:
        made.groups[UNUSED] = rest
    return made


def _part_layers(made: Recipes, nbytes: Mapping[str, int]) -> None:
    for layer in made.layers:
        tensors = made.groups[layer]
        if sum(map(nbytes.__getitem__, tensors)) < _LARGE:
            continue
        runs = runs_of(tensors, nbytes.__getitem__, _PARTS)
        names = [f"{layer}/{number}" for number in range(1, len(runs) + 1)]
        del made.groups[layer]
        made.groups.update(zip(names, runs))
        made.layers[layer] = names
    group_of_each = {tensor: group for group, tensors in made.groups.items()
                     for tensor in tensors}
    made.stored = {name: (group_of_each[tensor], tensor)
                   for name, (_, tensor) in made.stored.items()}


def _cut(name: str, tensor: torch.Tensor, cut: Cut, ranges: list[FileRange],
         headers: Mapping[str, FileTensor], made: Recipes) -> Pieces:
    """Each piece is a group by itself."""
    ordered, at = [], 0
    for one in ranges:
        ordered.append((at, one))
        at += one.elements
    groups = []
    for piece, at, count in cut.pieces(name, tensor.numel(),
                                       tensor.dtype.itemsize):
        piece = _name(piece, (count,),
                      ranges_within(ordered, at, at + count), headers,
                      made.joined)
        made.groups[piece] = [piece]
        groups.append(piece)
    return Pieces(_dtypes.from_torch(tensor.dtype), tuple(tensor.shape),
                  cut.units, tuple(groups))


def _name(name: str, shape: tuple[int, ...], ranges: list[FileRange],
          headers: Mapping[str, FileTensor],
          joined: dict[str, Joined]) -> str:
    """The name in hoistd: the module's, which the files must not have."""
    size = _dtypes.torch_dtype(headers[ranges[0].tensor].dtype).itemsize
    while name in headers or name in joined:
        name += "'"
    joined[name] = Joined(shape, [_part(one, size) for one in ranges])
    return name


def _part(one: FileRange, size: int) -> tuple[str, int, int]:
    first = one.tensor, one.start * size, one.count * size
    return first if one.times == 1 else Runs(*first, one.times,
                                             one.stride * size)
