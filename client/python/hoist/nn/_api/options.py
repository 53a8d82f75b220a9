"""The options of hoist.attach and hoist.load, for functions that pass them on,
and attach's parsed form of them.

Each function takes them by name; a test keeps the lists equal.
"""

from __future__ import annotations

import dataclasses
from typing import (Any, Literal, Mapping, Protocol, Sequence, TypedDict,
                    TypeVar, Union, cast)

import torch
from torch import nn

from ... import _session
from ..._plan import PlanTerms
from ...checkpoint import Rename
from .._plan.budget import Budget, parse
from .._store.link import default_session
from .._tree.casting import DEFAULT_SKIP, Pattern, Patterns, as_patterns
from .._tree.grouping import Groups
from .._tree.pieces import InPlaceOption
from .._tree.stacks import AheadOption

M = TypeVar("M", bound=nn.Module)


class Pipeline(Protocol):
    """diffusers' pipelines, and objects like them."""

    @property
    def components(self) -> Mapping[str, Any]:
        """By name; some of them are modules."""


T = TypeVar("T", bound=Union[nn.Module, Pipeline])
Where = Union[int, str, torch.device, None]  # hoistd's index, or torch's name.
Idle = Literal["cpu", "slot", "meta"]
HandOver = Literal["whole", "by_group"]
Names = Union[str, Sequence[str]]


def as_names(given: Names) -> frozenset[str]:
    """One name, or several; a string is one name."""
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
    ahead: AheadOption


class CastingOptions(TypedDict, total=False):
    storage_dtype: torch.dtype | None
    skip: Patterns


class HandOverOptions(TypedDict, total=False):
    hand_over: HandOver


class ModuleOptions(CommonOptions, CastingOptions, total=False):
    groups: Groups
    device: Where
    exclude_kwargs: Names


class AttachOptions(ModuleOptions, HandOverOptions, total=False):
    """hoist.attach's."""


class LoadOptions(ModuleOptions, total=False):
    dtype: torch.dtype | None
    rename: Rename


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The parsed arguments of hoist.attach."""

    budget: Budget
    session: _session.Session
    groups: Groups = "block"
    order: Names = "learn"
    storage_dtype: torch.dtype | None = None
    skip: tuple[Pattern, ...] = DEFAULT_SKIP
    exclude: tuple[Pattern, ...] = ()
    idle: Idle = "cpu"
    name: str | None = None
    device: Where = None
    exclude_kwargs: frozenset[str] = frozenset()
    progress: bool | None = None
    deadline: float = 60.0
    in_place: InPlaceOption = None
    ahead: AheadOption = None
    hand_over: HandOver = "whole"
    # PlanTerms.
    stage_deadline: float = 0.0
    weight: int = 1
    priority: int = 0
    max_bytes_per_second: int = 0

    @classmethod
    def of(cls, budget: Budget, options: ModuleOptions) -> Wanted:
        """options: attach's or load's; missing ones have attach's defaults.

        InvalidArgument: invalid `budget`, `skip` or `exclude`. Unavailable: no
        session is given, and there is no hoistd.
        """
        given: dict[str, Any] = {**options, "budget": parse(budget)}
        for name in {"skip", "exclude"} & {*given}:
            given[name] = as_patterns(name, given[name])
        if "exclude_kwargs" in given:
            given["exclude_kwargs"] = as_names(given["exclude_kwargs"])
        session = given.pop("session", None) or default_session()
        return cls(session=session, **given)

    def in_parts(self, nbytes: int) -> bool:
        """Large blocks of a module of so many bytes are several groups, so that
        device memory for a part of it pays for a part of each. Casts share one
        scratch, which a block's parts would need at once. A module that fits
        has whole blocks, as more groups take longer to wake.
        """
        return self.storage_dtype is None and (
            self.budget is not None or
            nbytes > max((one.pool_bytes for one in self.session.devices),
                         default=0))

    @property
    def terms(self) -> PlanTerms:
        return cast(PlanTerms, {name: getattr(self, name)
                                for name in PlanTerms.__annotations__})
