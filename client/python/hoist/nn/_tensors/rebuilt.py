"""A group's weights as compiled code gets them: plain tensors, as inputs.

Code takes its inputs before the group is staged, so it is not given the
module's tensors. It puts the weights into the module itself once the group is
staged, and takes them out afterwards. Before and after, the module has the idle
weight, which is its true value at any time. So code that stages nothing reads
true bytes too, wherever it comes from.

For a wrapper of plain tensors (quantised weights) code is given those, and
builds the wrapper: a compiler takes an input wrapper apart by itself, and would
pass copies to operators that write to its parts.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import Any, Callable, Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..._hot import Swap

# A wrapper's parts, without the bytes; and the function that rebuilds it.
_Recipe = tuple[Any, ...]
_Build = Callable[..., Any]

# Equal blocks share code: functions are compared by identity.
_known: collections.deque[tuple[_Recipe, _Build]] = collections.deque(maxlen=64)


@dataclasses.dataclass(eq=False)
class Rebuilt:
    """A weight that code puts into, or builds at, holder[key] while its group
    is staged."""

    holder: dict[str, Any]
    key: str
    idle: Any  # There before and after.
    build: _Build
    begin: int  # Its plain tensors, among the code's inputs.
    end: int


def is_possible() -> bool:
    """For wrappers, and tested versions of torch; others copy, or may copy."""
    version: Any = torch.__version__
    return bool(version >= (2, 11))


@dataclasses.dataclass(eq=False)
class Taken:
    plain: list[torch.Tensor]
    build: _Build


def _itself(weight: torch.Tensor) -> torch.Tensor:
    return weight


def take_plain(value: Any, kind: type[torch.Tensor]) -> Taken | None:
    """The wrapper's plain tensors, of type `kind`, and the function by which
    compiled code rebuilds it. None: impossible."""
    found: list[torch.Tensor] = []
    try:
        recipe = _recipe_of(value, found)
    except _Other:
        return None
    return Taken([torch.Tensor._make_subclass(kind, one, False)
                  for one in found], _shared(recipe))


def take_weights(swaps: list[Swap], idle: list[Swap], kind: type[torch.Tensor]
                 ) -> tuple[list[torch.Tensor], dict[int, Rebuilt]] | None:
    """The inputs of compiled code for a group's weights at an address, each
    tensor once. `swaps` are replaced by the idle weights, except those without
    bytes; code builds by place. None: impossible for these weights.

    kind: the type of all tensors that are no wrappers.
    """
    weights: list[torch.Tensor] = []
    rebuilt: dict[int, Rebuilt] = {}
    for value in {id(one): one for _, _, one in swaps}.values():
        if type(value) is kind and not value.numel():
            continue
        taken = (Taken([value], _itself) if type(value) is kind else
                 take_plain(value, kind))
        if taken is None:
            return None
        for at, (holder, key, one) in enumerate(swaps):
            if one is value:
                swaps[at] = idle[at]
                rebuilt[at] = Rebuilt(holder, key, idle[at][2], taken.build,
                                      len(weights),
                                      len(weights) + len(taken.plain))
        weights += taken.plain
    return weights, rebuilt


class _Other(Exception):
    """The wrapper has more than plain tensors and a recipe to join them."""


def _recipe_of(value: Any, found: list[torch.Tensor]) -> _Recipe:
    if type(value) is torch.Tensor:
        if not value.numel() or any(
                not name.startswith("_dynamo") for name in vars(value)):
            raise _Other
        found.append(value)
        return ()
    if not is_traceable_wrapper_subclass(value):
        raise _Other
    names, context = value.__tensor_flatten__()
    return (type(value), context, value.size(), value.stride(),
            [(name, _recipe_of(getattr(value, name), found))
             for name in names])


def _make(recipe: _Recipe, found: Iterator[torch.Tensor]) -> Any:
    if not recipe:
        return next(found)
    kind, context, size, stride, inner = recipe
    return kind.__tensor_unflatten__(
        {name: _make(one, found) for name, one in inner}, context, size,
        stride)


def _shared(recipe: _Recipe) -> _Build:
    with contextlib.suppress(Exception):  # A context without comparison.
        for known, build in _known:
            if known == recipe:
                return build

    def make(*found: torch.Tensor) -> Any:
        return _make(recipe, iter(found))

    torch.compiler.allow_in_graph(make)
    _known.append((recipe, make))
    return make
