"""A group's weights at one address, as modules are to see them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator

import torch
from torch.utils._python_dispatch import (_disable_current_modes,
                                          is_traceable_wrapper_subclass)

from .._errors import FailedPrecondition
from ._inventory import Stored, Weight
from ._layout import GroupSpec
from ._lent import Lent
from ._rebuilt import Rebuilt, Swap


@dataclasses.dataclass
class Shown:
    """What to put where."""

    swaps: list[Swap]
    casts: list[tuple[torch.Tensor, torch.Tensor]]  # To, from.
    # Those that need gradients: as the module's own did, since torch chooses
    # kernels by it (matmul folds for weights that need grad).
    graded: list[torch.Tensor]
    # What autograd may keep for a backward, whose version it looks at then.
    kept: list[torch.Tensor] = dataclasses.field(default_factory=list)
    # Of a weight that a graph keeps past torch's hooks (bitsandbytes').
    past_hooks: str | None = None
    lent: Lent = dataclasses.field(default_factory=Lent)


@dataclasses.dataclass
class Placed:
    """What is shown at an address before the group is staged there."""

    address: int
    shown: Shown
    weights: list[torch.Tensor]  # Each once.
    rebuilt: dict[int, Rebuilt]  # By their places in the list of swaps.
    with_grad: bool = False


def refuse_gradient(value: torch.Tensor, name: str) -> None:
    """Of a weight that comes and goes, or of what a graph gave that hides it: a
    backward that comes there raises, since the weight's gradient would be lost
    with the tensor."""

    def refuse(_: Any) -> None:
        raise FailedPrecondition(
            f'"{name}" lives in hoist, where it is shared and read-only, and '
            "a gradient came for it; " + FREEZE)

    value.register_hook(refuse)


FREEZE = ("model.requires_grad_(False) freezes what is hoist's, before attach "
          "or after; modules that are to be trained are left to you by "
          "exclude=, or by adding them after attach (adapters)")


def goes_past_hooks(weight: Weight, value: Any) -> bool:
    """Libraries that have state beside a weight's elements keep both in their
    nodes' attributes, where no hook sees them."""
    return (weight.kind == "state" or bool(weight.aliases)
            or len(weight.parts) > 1) and not is_traceable_wrapper_subclass(
                value)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """What is made within is hoist's own: no tensor of inference mode, and nothing
    that a mode around the forward counts or keeps (a selective checkpoint's)."""
    with _disable_current_modes(), torch.inference_mode(False):
        yield


def is_lent(weight: Weight) -> bool:
    """Recurrent modules keep lists of their weights, which they renew."""
    return weight.kind == "parameter" and weight.plain and not any(
        isinstance(place.module, torch.nn.RNNBase) for place in weight.places)


def is_persistent(weight: Weight) -> bool:
    """Part of the state_dict; caches are not, and are written at any time."""
    return not any(place.module is not None and place.key in
                   place.module._non_persistent_buffers_set
                   for place in weight.places)


def empty(stored: Stored, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(stored.meta.shape, stored.meta.stride(),
                               dtype=stored.meta.dtype, device=device)


# Where weights are cast to.


def scratch_places(spec: GroupSpec) -> dict[str, int]:
    """The offset of each stored tensor that is cast, by name."""
    found, at = {}, 0
    for stored in spec.stored:
        if stored.name in spec.storage and stored.nbytes:
            found[stored.name] = at
            at += _aligned(stored.nbytes)
    return found


def scratch_bytes(spec: GroupSpec) -> int:
    return sum(_aligned(stored.nbytes) for stored in spec.stored
               if stored.name in spec.storage)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256
