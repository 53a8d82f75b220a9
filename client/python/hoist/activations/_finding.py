"""Finds layers, skipped modules, and the storages of weights."""

from __future__ import annotations

from typing import Sequence

import torch
from torch import nn

from .._errors import InvalidArgument
from ..nn._tree.casting import (Patterns, as_patterns, matches,
                                matching_modules)
from ..nn._tree.grouping import blocks_of
from ..nn._tree.take_apart import PLAIN


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The model's blocks, by the rule of hoist.attach for groups.

    InvalidArgument: it has none.
    """
    found = blocks_of(model)
    if not found:
        raise InvalidArgument(
            f"{type(model).__name__} has no list of blocks; give its layers "
            "in the order that they run, offload_activations([first, ...])")
    return found


def skipped(roots: Sequence[nn.Module], skip: Patterns) -> set[nn.Module]:
    """The modules that `skip` names, outermost ones alone.

    InvalidArgument: a pattern that no module matches.
    """
    patterns = as_patterns("skip", skip)
    found = set().union(*(matching_modules(root, patterns)
                          for root in roots))
    inner = {child for one in found for child in one.children()}
    left = found - inner
    for pattern in patterns:
        if not any(matches(name, one, [pattern]) for root in roots
                   for name, one in root.named_modules()):
            raise InvalidArgument(f"skip: no module matches {pattern!r}")
    return left


def weights_of(roots: Sequence[nn.Module]) -> set[int]:
    """The addresses of parameters' and buffers' storages.

    Without wrappers' inner tensors: such a weight is recognised as a parameter.
    Also without torch.func's replacements of parameters, which have no memory;
    hooks see nothing within them.
    """
    found = set()
    for root in roots:
        for module in root.modules():
            for one in (*module._parameters.values(),
                        *module._buffers.values()):
                if one is not None and type(one) in PLAIN and (
                        one.layout == torch.strided
                        and not _is_of_transform(one)):
                    found.add(one.untyped_storage()._cdata)
    return found


def _is_of_transform(tensor: torch.Tensor) -> bool:
    found: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return found
