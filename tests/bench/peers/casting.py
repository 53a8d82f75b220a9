"""Which weights are stored in fp8, as diffusers' layerwise casting has it."""

from __future__ import annotations

import re

import torch
from torch import nn

STORAGE = torch.float8_e4m3fn
# diffusers.hooks.layerwise_casting.DEFAULT_SKIP_MODULES_PATTERN
SKIP = ("pos_embed", "patch_embed", "norm", "^proj_in$", "^proj_out$")


def stored_in_fp8(module: nn.Module) -> dict[str, nn.Parameter]:
    """The linear layers' parameters whose module no pattern names."""
    return {f"{name}.{own}": weight
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear) and
            not any(re.search(pattern, name) for pattern in SKIP)
            for own, weight in part.named_parameters(recurse=False)}


def cast_as_stored(module: nn.Module) -> None:
    """Each weight becomes what it is after a round trip through storage."""
    for weight in stored_in_fp8(module).values():
        weight.data = weight.data.to(STORAGE).to(weight.dtype)


def stored_bytes(module: nn.Module) -> int:
    """The module's bytes in storage; a weight may be on meta."""
    saved = sum(weight.nbytes - weight.numel()
                for weight in stored_in_fp8(module).values())
    return sum(weight.nbytes for weight in module.parameters()) - saved
