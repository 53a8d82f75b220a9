"""How much memory a row's hoistd needs, and what its budget comes to."""

from __future__ import annotations

import re

from torch import nn

from .casting import stored_bytes
from .models import Spec, blocks_of, bytes_of

MIB = 1 << 20
_UNITS = {"K": 10, "M": 20, "G": 30}


def _units(module: nn.Module, groups: str) -> tuple[list[nn.Module], int]:
    """What is streamed one by one, and the bytes beside it."""
    if groups == "leaf":
        leaves = [part for part in module.modules()
                  if not any(True for _ in part.children())]
        own = sum(weight.nbytes for part in module.modules()
                  if part not in leaves
                  for weight in part.parameters(recurse=False))
        return leaves, own
    blocks = blocks_of(module)
    return blocks, bytes_of(module) - sum(map(bytes_of, blocks))


def budget_bytes(spec: Spec, budget: str, groups: str, fp8: bool) -> int:
    """"min": two of the largest groups, and what is beside the blocks, which is
    what two slots take; a fraction of the model, or of a mixture's experts,
    beside all else; or bytes, as "4GiB"."""
    module = spec.build()
    size = stored_bytes if fp8 else bytes_of
    if budget == "min":
        units, beside = _units(module, groups)
        return int(2 * max(map(size, units)) * 1.002) + beside + MIB // 4
    unit = re.fullmatch(r"([0-9.]+)([KMG])(i?)B", budget)
    if unit is None and spec.kind == "moe":
        experts = expert_bytes(module)
        return int((size(module) - experts) * 1.004 + experts * float(budget)
                   ) + MIB
    if unit is None:
        return int(size(module) * float(budget))
    step = 1 << _UNITS[unit[2]] if unit[3] else 1000 ** (_UNITS[unit[2]] // 10)
    return int(float(unit[1]) * step)


def expert_bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in module.parameters()
               if weight.dim() == 3)


def host_bytes(spec: Spec, fp8: bool, in_place: bool = False) -> int:
    """The host pool that holds the model, and no more than that; in_place:
    without its experts."""
    module = spec.build()
    size = bytes_of(module)
    if fp8:
        size += stored_bytes(module)  # The original stays beside it.
    if in_place:
        size -= expert_bytes(module)
    return -(-int(size * 1.004) // (2 * MIB)) * 2 * MIB + 4 * MIB


def in_place_bytes(spec: Spec) -> int:
    """What its experts take in whole pages."""
    return sum(-(-weight.nbytes // (2 * MIB)) * 2 * MIB for weight in
               spec.build().parameters() if weight.dim() == 3)


def pool_bytes(budget: int, slab: int, workers: int) -> int:
    """Device pool: the budgets in whole slabs. What is not used of it is not
    allocated."""
    return (-(-budget // slab) + 4) * slab * workers
