"""Wrappers of plain tensors (quantised weights), as compiled code has them.

A compiler takes a wrapper that it is given apart by itself, and would hand
operators that write to what is in it copies. So compiled code is given the
plain tensors, and makes the wrapper of them once the group is staged. What the
module has meanwhile is the idle weight, which is its true value at any time.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import Any, Callable, Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# Where to put what: `holder[key] = value`.
Swap = tuple[dict[str, Any], str, Any]
# What a wrapper is made of, but for the bytes; and what makes it of those.
_Recipe = tuple[Any, ...]
_Build = Callable[..., Any]

# Blocks that are alike share code: functions are compared by identity.
_known: collections.deque[tuple[_Recipe, _Build]] = collections.deque(maxlen=64)


@dataclasses.dataclass(eq=False)
class Rebuilt:
    """A weight that code makes by itself: holder[key] while its group is
    staged."""

    holder: dict[str, Any]
    key: str
    idle: Any  # There before and after.
    build: _Build
    begin: int  # Its plain tensors, of those that the code is given.
    end: int


def is_possible() -> bool:
    """With a torch that was run; others copy, or may do."""
    version: Any = torch.__version__
    return bool(version >= (2, 11))


@dataclasses.dataclass(eq=False)
class Taken:
    plain: list[torch.Tensor]
    build: _Build


def take_plain(value: Any, kind: type[torch.Tensor]) -> Taken | None:
    """The plain tensors of a wrapper, made of that type, and what compiled code
    makes the wrapper of them with. None: it cannot."""
    found: list[torch.Tensor] = []
    try:
        recipe = _recipe_of(value, found)
    except _Other:
        return None
    return Taken([torch.Tensor._make_subclass(kind, one, False)
                  for one in found], _shared(recipe))


def take_weights(swaps: list[Swap], idle: list[Swap], kind: type[torch.Tensor]
                 ) -> tuple[list[torch.Tensor], dict[int, Rebuilt]] | None:
    """Of a group's weights at an address, what compiled code is given: each
    tensor once. The wrappers among `swaps` give way to the idle ones; what code
    makes of them goes by their places. None: it cannot be given them.

    kind: the type that all tensors have that are no wrappers.
    """
    weights: list[torch.Tensor] = []
    rebuilt: dict[int, Rebuilt] = {}
    for value in {id(one): one for _, _, one in swaps}.values():
        if type(value) is kind:
            weights += [value] * (value.numel() > 0)
            continue
        taken = take_plain(value, kind)
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
    """There is more to it than plain tensors and what says how they go
    together."""


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
    with contextlib.suppress(Exception):  # A context that does not compare.
        for known, build in _known:
            if known == recipe:
                return build

    def make(*found: torch.Tensor) -> Any:
        return _make(recipe, iter(found))

    torch.compiler.allow_in_graph(make)
    _known.append((recipe, make))
    return make
