"""A group's weights at one address, in the form that modules hold."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator

import torch
from torch.utils._python_dispatch import (_disable_current_modes,
                                          is_traceable_wrapper_subclass)

from ..._errors import FailedPrecondition
from ..._hot import Swap
from .._tensors.lent import Lent
from .._tree.inventory import Stored, Weight
from .._tree.layout import GroupSpec


@dataclasses.dataclass
class Shown:
    """Values and their places."""

    address: int
    swaps: list[Swap]
    casts: list[tuple[torch.Tensor, torch.Tensor]]  # To, from.
    # Those that need gradients, by their weights' names; see grade.
    graded: list[tuple[str, torch.Tensor]]
    # Tensors that autograd may keep for a backward, with version checks.
    kept: list[torch.Tensor] = dataclasses.field(default_factory=list)
    # A weight that a graph keeps past torch's hooks (bitsandbytes').
    past_hooks: str | None = None
    lent: Lent = dataclasses.field(default_factory=Lent)


class _Lends(torch.autograd.Function):
    """Writes nothing: its outputs are its inputs."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor,
                value: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:
        return None, None


_root = torch.zeros((), requires_grad=True, device="cpu")


def grade(value: torch.Tensor, name: str) -> None:
    """Gives a transient weight the requires_grad of the module's own, since
    torch chooses kernels by it (matmul folds for weights that need grad).

    It is no leaf. A graph keeps its leaves, and so would keep bytes that are
    soon another group's; of this weight it keeps the preceding node. autocast
    also keeps casts of leaves, until its context ends.
    """
    with torch.inference_mode(False), torch.enable_grad():
        _Lends.apply(_root, value)
    refuse_gradient(value, name)


def end_grade(value: torch.Tensor) -> None:
    """Clears requires_grad. Graphs with the weight are unchanged."""
    value.detach_()
    value._backward_hooks = None  # They were its node's.


def refuse_gradient(value: torch.Tensor, name: str) -> None:
    """Makes a backward raise at a transient weight, or at an output of a graph
    that hides it: the weight's gradient would be lost with the tensor."""

    def refuse(_: Any) -> None:
        raise FailedPrecondition(
            f'"{name}" lives in hoist, where it is shared and read-only, and '
            "a gradient came for it; " + FREEZE)

    value.register_hook(refuse)


FREEZE = ("model.requires_grad_(False) freezes what is hoist's, before attach "
          "or after; modules that are to be trained are left to you by "
          "exclude=, or by adding them after attach (adapters)")


def goes_past_hooks(weight: Weight, value: Any) -> bool:
    """Libraries with state beside a weight's elements keep both in their nodes'
    attributes, invisible to hooks."""
    return (weight.kind == "state" or bool(weight.aliases)
            or len(weight.parts) > 1) and not is_traceable_wrapper_subclass(
                value)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Within it, hoist makes tensors of its own: none of inference mode, and
    none that a mode around the forward (a selective checkpoint) sees."""
    with _disable_current_modes(), torch.inference_mode(False):
        yield


def is_lent(weight: Weight) -> bool:
    """Recurrent modules renew lists of their weights."""
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


# The destination of casts.


def scratch_places(spec: GroupSpec) -> tuple[dict[str, int], int]:
    """The offset of each cast tensor, by stored name; and the total bytes."""
    found, at = {}, 0
    for stored in spec.stored:
        if stored.name in spec.storage and stored.nbytes:
            found[stored.name] = at
            at += -(-stored.nbytes // 256) * 256
    return found, at
