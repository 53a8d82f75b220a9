"""Which weights go into which group, and when each group is needed.

From here on a group is the one that hoistd knows by its name. Some are
*pinned*: a group that is needed while others come and go has a lease for the
attachment's life instead of a turn in the plan's ring.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterable

import torch
from torch import nn

from ..._runs import runs_of
from .casting import Pattern, matches, may_be_cast, matching_modules
from .grouping import Groups, ModuleGroup, group_modules
from .inventory import Stored, Weight, take_inventory
from .others import Modules


@dataclasses.dataclass
class GroupSpec:
    """A group's weights, and the modules that cannot run without them."""

    name: str
    weights: list[Weight] = dataclasses.field(default_factory=list)
    triggers: Modules = dataclasses.field(default_factory=Modules)
    pinned: bool = False
    # The block that it is a part of, whose parts are needed at once; "": none.
    block: str = ""
    # By name, the types of stored tensors whose stored type differs from the
    # type they are computed in.
    storage: dict[str, torch.dtype] = dataclasses.field(default_factory=dict)

    @property
    def stored(self) -> list[Stored]:
        """In image order, each once."""
        found = {id(part.stored): part.stored
                 for weight in self.weights for part in weight.parts}
        return list(found.values())

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.stored)

    @property
    def in_hand(self) -> bool:
        """The module has its bytes too."""
        return all(one.tensor is not None and not one.tensor.is_meta
                   for one in self.stored)

    @property
    def modules(self) -> Modules:
        """Modules that hold the weights, or whose calls need them."""
        return Modules([*self.triggers, *(
            place.module for weight in self.weights for place in weight.places
            if place.module is not None)])


def lay_out(root: nn.Module, groups: Groups, excluded: set[nn.Module],
            in_parts: Callable[[int], bool] = lambda _: False
            ) -> list[GroupSpec]:
    """Groups in the order of the tree, each with weights.

    in_parts: whether large blocks are several groups, of a module of so many
        bytes.
    """
    weights = take_inventory(root, excluded)
    modules = group_modules(root, groups, excluded)
    group_of = {owner: group for group in modules for owner in group.owners}
    specs = {group.name: GroupSpec(group.name, triggers=Modules(group.triggers),
                                   pinned=group.shared)
             for group in modules}
    alone: dict[str, set[str]] = {group.name: set() for group in modules}
    tied: list[tuple[list[Weight], list[ModuleGroup]]] = []
    for several in _sharing(weights):
        users = list({id(group): group for weight in several
                      for place in weight.places if place.module is not None
                      for group in [group_of[place.module]]}.values())
        if len(users) == 1:
            specs[users[0].name].weights += several
        else:
            tied.append((several, users))
        for user in users:
            alone[user.name].add("own" if len(users) == 1 else
                                 several[0].name)
    for several, users in tied:
        name = f"tied.{several[0].name}"
        specs[name] = GroupSpec(name, several, Modules(
            trigger for user in users for trigger in user.triggers))
        # A user with more than these needs two groups at once.
        specs[name].pinned = any(len(alone[user.name]) > 1 for user in users)
    found = [spec for spec in specs.values() if spec.weights]
    order = {id(weight): at for at, weight in enumerate(weights)}
    found.sort(key=lambda spec: min(order[id(w)] for w in spec.weights))
    _pin_spanning(found)
    if groups == "leaf":
        _pin_small(found)
    by_block = groups == "block" or isinstance(groups, tuple)
    if by_block and in_parts(sum(spec.nbytes for spec in found)):
        return _in_parts(found)
    return found


# Bytes of a block that has parts. Below, the host time of another group's turn
# is a large part of the time to copy it.
_LARGE = 32 << 20
_PARTS = 16  # At most.


def _in_parts(specs: list[GroupSpec]) -> list[GroupSpec]:
    """A plan keeps whole groups. So with several a block it can keep a part of
    each block, and its ring need hold no more than the rest of two."""
    names = {spec.name for spec in specs}
    found = []
    for spec in specs:
        parts = [] if spec.pinned or spec.nbytes < _LARGE else _parts_of(spec)
        if len(parts) < 2:
            found.append(spec)
            continue
        for at, weights in enumerate(parts, 1):
            name = f"{spec.name}/{at}"
            while name in names:
                name += "'"
            names.add(name)
            found.append(GroupSpec(name, weights, Modules(spec.triggers),
                                   block=spec.name))
    return found


def _parts_of(spec: GroupSpec) -> list[list[Weight]]:
    """Runs of its weights, of about equal bytes; those that share bytes stay
    together."""
    runs = runs_of(_sharing(spec.weights),
                   lambda weights: GroupSpec("", weights).nbytes, _PARTS)
    return [[one for weights in run for one in weights] for run in runs]


def _sharing(weights: list[Weight]) -> list[list[Weight]]:
    """Weights that share stored bytes, in one list."""
    leader: dict[int, int] = {}

    def find(key: int) -> int:
        while leader.setdefault(key, key) != key:
            leader[key] = key = leader[leader[key]]
        return key

    for weight in weights:
        first = find(id(weight.parts[0].stored))
        for part in weight.parts[1:]:
            leader[find(id(part.stored))] = first
    found: dict[int, list[Weight]] = {}
    for weight in weights:
        found.setdefault(find(id(weight.parts[0].stored)), []).append(weight)
    return list(found.values())


def _pin_spanning(specs: list[GroupSpec]) -> None:
    """Pins groups whose modules run while other groups' modules run."""
    triggered: dict[nn.Module, list[GroupSpec]] = {}
    nbytes: dict[str, int] = {}
    for spec in specs:
        if spec.pinned:
            continue
        nbytes[spec.name] = spec.nbytes
        for trigger in spec.triggers:
            triggered.setdefault(trigger, []).append(spec)
    for module, several in triggered.items():
        # Of groups that one module needs at once, the largest may stream.
        for spec in sorted(several, key=lambda one: nbytes[one.name])[:-1]:
            spec.pinned = True
        streams = [spec for spec in several if not spec.pinned]
        for below in module.modules():
            if below is module:
                continue
            if any(other not in streams and not other.pinned
                   for other in triggered.get(below, ())):
                for spec in streams:
                    spec.pinned = True
                break


# The fraction of the largest group that small pinned groups may take.
_SMALL = 16


def _pin_small(specs: list[GroupSpec]) -> None:
    """A norm's turn costs a call as much host time as a projection's, and saves
    a thousandth of the memory: so the smallest leaves stay."""
    left = max((spec.nbytes for spec in specs), default=0) // _SMALL
    for spec in sorted(specs, key=lambda one: one.nbytes):
        left -= 0 if spec.pinned else spec.nbytes
        if left < 0:
            break
        spec.pinned = True


def _overlaps(stored: Stored) -> bool:
    """Elements share memory, so it cannot be written to."""
    return any(size > 1 and stride == 0 for size, stride in
               zip(stored.meta.shape, stored.meta.stride()))


def choose_storage(root: nn.Module, specs: Iterable[GroupSpec],
                   storage: torch.dtype, skip: Iterable[Pattern]) -> None:
    """Marks parameters to store as `storage`: those of larger floating types
    that no pattern skips by their module's name or their own, as a position
    embedding is often a parameter of the model itself."""
    # A module that names itself stands for its own weights alone.
    left_alone: set[nn.Module] = {one for one in skip
                                  if isinstance(one, nn.Module)}
    left_alone |= matching_modules(
        root, [one for one in skip if not isinstance(one, nn.Module)])
    patterns = [one for one in skip if isinstance(one, str)]
    for spec in specs:
        kept, cast = set(), {}
        for weight in spec.weights:
            skipped = any(place.module in left_alone
                          for place in weight.places)
            for part in weight.parts:
                if (weight.kind == "parameter" and weight.plain and not skipped
                        and not matches(part.stored.name, root, patterns)
                        and part.dtype == part.stored.meta.dtype
                        and not _overlaps(part.stored)
                        and may_be_cast(part.dtype, storage)):
                    cast[part.stored.name] = storage
                else:
                    kept.add(part.stored.name)
        spec.storage = {name: to for name, to in cast.items()
                        if name not in kept}
