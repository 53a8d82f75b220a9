"""Weights that are read in place, and their pieces.

A pass touches experts and embeddings in part. Such a weight is in no group: it
has pieces, each a group of the model by itself.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from typing import Callable, Iterable, Iterator, Union

import torch
from torch import nn

from ..._errors import InvalidArgument, Unimplemented
from ..._session import Session
from .casting import Pattern, Patterns, as_patterns, matches, matching_modules
from .inventory import Stored, Weight
from .layout import GroupSpec
from .others import Modules

log = logging.getLogger("hoist.nn")

# "auto", patterns as for `exclude`, or None for no weights.
InPlaceOption = Union[Patterns, None]

_PAGE = 2 << 20  # The unit of a device's mappings.
_MOST_UNITS = 4  # In a piece that is cut between units; else pages are cut.
# A smaller embedding costs less as a resident than its pieces would.
_LEAST_EMBEDDING = 32 << 20


@dataclasses.dataclass
class PieceSpec(GroupSpec):
    """A group that is a piece of a weight: some of its elements."""

    whole: Stored | None = None
    start: int = 0
    count: int = 0

    @property
    def stored(self) -> list[Stored]:
        """Of the weight's bytes, while the module has them."""
        whole = self.whole
        assert whole is not None
        tensor = None if whole.tensor is None else (
            whole.tensor.detach().reshape(-1)[
                self.start:self.start + self.count])
        return [Stored(self.name, tensor, torch.empty(
            self.count, dtype=whole.meta.dtype, device="meta"), whole.device)]


@dataclasses.dataclass
class InPlaceWeight:
    """One weight. A model has thousands of pieces: none has an object here."""

    weight: Weight
    modules: list[nn.Module]  # Their calls touch it.
    units: int

    @property
    def stored(self) -> Stored:
        return self.weight.parts[0].stored

    def cuts(self) -> Iterator[tuple[str, int, int]]:
        """The pieces in order, by its present name and type: each one's group,
        first element, and number of elements."""
        stored, elements = self.stored, self.stored.meta.numel()
        step = (piece_bytes(stored.nbytes // self.units)
                // stored.meta.dtype.itemsize)
        for number, at in enumerate(range(0, elements, step)):
            yield f"{stored.name}#{number}", at, min(step, elements - at)


def pieces_of(weights: Iterable[InPlaceWeight]) -> list[PieceSpec]:
    """To be handed over."""
    none = Modules()  # A weak dictionary is slow to make for each.
    return [PieceSpec(name, triggers=none, whole=one.stored, start=start,
                      count=count)
            for one in weights for name, start, count in one.cuts()]


def piece_bytes(unit_bytes: int) -> int:
    """The size of pieces for units of `unit_bytes`: whole pages, and whole
    units where few of them fill pages; else nearly a unit, in whole pages."""
    together = math.lcm(max(unit_bytes, 1), _PAGE)
    if together <= _MOST_UNITS * unit_bytes:
        return together
    return max(1, round(unit_bytes / _PAGE)) * _PAGE


def choose(root: nn.Module, specs: list[GroupSpec], option: InPlaceOption,
           session: Session, refuse: Callable[[Weight], str | None] =
           lambda weight: None) -> list[InPlaceWeight]:
    """Takes the weights that are to be read in place out of the groups.

    refuse: the reason against one, in addition to those of the weight itself.
    InvalidArgument: a pattern without a weight, or an unsuitable weight.
    Unimplemented: patterns, but hoistd cannot read in place; "auto" then
    changes nothing.
    """
    if option is None:
        return []
    try:
        session.check_in_place()
    except Unimplemented as error:
        if option != "auto":
            raise Unimplemented(f"in_place={option!r}: {error}") from None
        log.info("weights are staged whole, and not read in place: %s", error)
        return []
    names = {module: name for name, module in root.named_modules()}
    patterns = None if option == "auto" else as_patterns("in_place", option)
    named = set() if patterns is None else matching_modules(root, patterns)
    chosen: list[InPlaceWeight] = []
    for spec in specs:
        for weight in list(spec.weights):
            wanted = (_is_touched_in_part(weight, names) if patterns is None
                      else _is_named(root, weight, named, patterns))
            if not wanted:
                continue
            why = (_why_not(weight, spec)
                   or refuse(weight))
            if why is None:
                spec.weights.remove(weight)
                chosen.append(_of(weight, names))
            elif patterns is not None:
                raise InvalidArgument(
                    f'in_place={option!r} means "{weight.name}", which cannot '
                    f"be read in place: {why}")
    if patterns is not None and not chosen:
        raise InvalidArgument(f"in_place={option!r} means none of the module's "
                              "parameters")
    specs[:] = [spec for spec in specs if spec.weights]
    return chosen


def _is_named(root: nn.Module, weight: Weight, modules: set[nn.Module],
              patterns: Iterable[Pattern]) -> bool:
    return weight.kind == "parameter" and (
        any(place.module in modules for place in weight.places)
        or matches(weight.name, root,
                   [one for one in patterns if isinstance(one, str)]))


def _is_touched_in_part(weight: Weight, names: dict[nn.Module, str]) -> bool:
    modules = [place.module for place in weight.places]
    if weight.kind != "parameter" or not all(
            isinstance(module, nn.Module) for module in modules):
        return False
    if all(isinstance(module, nn.Embedding) for module in modules):
        return weight.parts[0].stored.nbytes >= _LEAST_EMBEDDING
    module = modules[0]
    assert module is not None
    if _expert(names.get(module, "")):
        return True
    shape = weight.parts[0].shape
    return (len(shape) == 3 and shape[0] > 1
            and "expert" in f"{names.get(module, '')} {type(module).__name__}"
            .lower())


def _expert(name: str) -> bool:
    """An element of a list of experts, or a part of one."""
    return re.search(r"(^|\.)experts\.\d+(\.|$)", name) is not None


def _why_not(weight: Weight, spec: GroupSpec) -> str | None:
    if not weight.plain or len(weight.parts) != 1:
        return "it is no plain tensor"
    part = weight.parts[0]
    whole = (part.offset_bytes == 0 and part.dtype == part.stored.meta.dtype
             and part.shape == tuple(part.stored.meta.shape))
    if not whole or not part.stored.meta.is_contiguous():
        return "it is a view, or not contiguous"
    if part.stored.nbytes == 0:
        return "it is empty"
    if part.stored.name in spec.storage:
        return "storage_dtype= stores it as another type; add it to skip="
    return None


def _of(weight: Weight, names: dict[nn.Module, str]) -> InPlaceWeight:
    modules = [place.module for place in weight.places
               if place.module is not None]
    shape = weight.parts[0].shape
    units = 1
    if all(isinstance(module, nn.Embedding) for module in modules) or (
            len(shape) == 3 and not _expert(names.get(modules[0], ""))):
        units = shape[0]
    return InPlaceWeight(weight, modules, units)
