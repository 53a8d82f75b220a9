"""A recipe for each of a module's tensors: how hoistd makes it of the files."""

from __future__ import annotations

import dataclasses
import re
from typing import Mapping, Sequence

import torch
from torch import nn

from .. import _dtypes
from .._registration import Joined, Runs
from ..checkpoint import FileTensor
from ._ranges import FileRange
from ._trace import Trace, Untraceable

# Files' tensors that the module does not use, and hoistd does not read.
UNUSED = "(unused)"
# Tensors in no layer: embeddings, heads, the last norm.
OUTSIDE = "(outside)"
_LAYER = re.compile(r"^(?:.*?\.)?\d+(?=\.)")


@dataclasses.dataclass(frozen=True)
class Held:
    """A parameter or buffer of a module, by all of its names there."""

    names: tuple[str, ...]
    tensor: torch.Tensor
    is_parameter: bool


@dataclasses.dataclass
class Recipes:
    """Arguments of Session.register, and the places of the results.

    stored: for each tensor, by the first of its names in the module: its
        group's name, and its own in hoistd.
    refused: tensors that the files cannot give, by the same names, and why.
    """

    groups: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    joined: dict[str, Joined] = dataclasses.field(default_factory=dict)
    stored: dict[str, tuple[str, str]] = dataclasses.field(
        default_factory=dict)
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
                  headers: Mapping[str, FileTensor]) -> Recipes:
    """For all parameters, and for the buffers that the loading code wrote."""
    made = Recipes()
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
        stored = _name(name, tuple(held.tensor.shape), ranges, headers,
                       made.joined)
        group = group_of(held.names)
        made.stored[name] = (group, stored)
        made.groups.setdefault(group, []).append(stored)
    parts = {part[0] for one in made.joined.values()
             for part in one.parts if not isinstance(part, str)}
    named = {stored for _, stored in made.stored.values()}
    rest = [one for one in headers if one not in parts and one not in named]
    if rest:
        made.groups[UNUSED] = rest
    return made


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
