"""Two modules, tensor by tensor."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from ._recipes import Held, held_by


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences, one sentence each; and the number of comparisons."""

    tensors: int
    nbytes: int
    differences: tuple[str, ...]


def compare(wanted: nn.Module, given: nn.Module) -> Comparison:
    """Compares names, ties, kinds, shapes, strides, types and bytes of all
    parameters and buffers; no bytes if neither has memory."""
    want = {held.names: held for held in held_by(wanted)}
    have = {held.names: held for held in held_by(given)}
    differences = [
        *(f"{', '.join(names)}: is not there"
          for names in sorted(want.keys() - have.keys())),
        *(f"{', '.join(names)}: is there, and should not be"
          for names in sorted(have.keys() - want.keys())),
    ]
    nbytes = 0
    for names in sorted(want.keys() & have.keys()):
        why = _difference(want[names], have[names])
        if why is not None:
            differences.append(f"{', '.join(names)}: {why}")
        nbytes += want[names].tensor.nbytes
    return Comparison(len(want.keys() & have.keys()), nbytes,
                      tuple(differences))


def _difference(want: Held, have: Held) -> str | None:
    for what, one, other in (
            ("is a parameter", want.is_parameter, have.is_parameter),
            ("type", want.tensor.dtype, have.tensor.dtype),
            ("shape", tuple(want.tensor.shape), tuple(have.tensor.shape)),
            ("strides", want.tensor.stride(), have.tensor.stride())):
        if one != other:
            return f"{what}: {other}, not {one}"
    if want.tensor.is_meta and have.tensor.is_meta:
        return None
    differ = _bytes(want.tensor) != _bytes(have.tensor)
    count = int(differ.sum())
    return f"{count} of {differ.numel()} bytes differ" if count else None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
