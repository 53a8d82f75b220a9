"""The options of hoist.attach and hoist.load, for functions that pass them on,
and what attach makes of them.

Each function takes them by name; a test holds the two equal.
"""

from __future__ import annotations

import dataclasses
from typing import (Any, Literal, Mapping, Protocol, Sequence, TypedDict,
                    TypeVar, Union, cast)

import torch
from torch import nn

from .. import _session
from .._plan import PlanTerms
from ..checkpoint import Rename
from ._budget import Budget
from ._casting import Pattern, Patterns
from ._grouping import Groups

M = TypeVar("M", bound=nn.Module)


class Pipeline(Protocol):
    """diffusers' pipelines, and what looks like them."""

    @property
    def components(self) -> Mapping[str, Any]:
        """By name; some of them are modules."""


T = TypeVar("T", bound=Union[nn.Module, Pipeline])
Where = Union[int, str, torch.device, None]  # hoistd's index, or torch's name.
Idle = Literal["cpu", "slot", "meta"]
# "auto", patterns as for `exclude`, or None: nothing is.
InPlaceOption = Union[Patterns, None]
Names = Union[str, Sequence[str]]


def as_names(given: Names) -> frozenset[str]:
    """One name, or several; a name is not taken letter by letter."""
    return frozenset([given] if isinstance(given, str) else given)


class CommonOptions(PlanTerms, total=False):
    order: Names
    exclude: Patterns
    idle: Idle
    name: str | None
    session: _session.Session | None
    progress: bool | None
    deadline: float
    in_place: InPlaceOption


class CastingOptions(TypedDict, total=False):
    storage_dtype: torch.dtype | None
    skip: Patterns


class AttachOptions(CommonOptions, CastingOptions, total=False):
    groups: Groups
    device: Where
    exclude_kwargs: Names


class LoadOptions(AttachOptions, total=False):
    dtype: torch.dtype | None
    rename: Rename


@dataclasses.dataclass(frozen=True)
class Wanted:
    """How a module is to be attached; see hoist.attach."""

    budget: Budget
    groups: Groups
    order: Names
    storage_dtype: torch.dtype | None
    skip: tuple[Pattern, ...]
    exclude: tuple[Pattern, ...]
    idle: Idle
    name: str | None
    device: Where
    session: _session.Session
    exclude_kwargs: frozenset[str]
    progress: bool | None
    deadline: float
    in_place: InPlaceOption = None
    # PlanTerms.
    stage_deadline: float = 0.0
    weight: int = 1
    priority: int = 0
    max_bytes_per_second: int = 0

    @property
    def terms(self) -> PlanTerms:
        return cast(PlanTerms, {name: getattr(self, name)
                                for name in PlanTerms.__annotations__})
