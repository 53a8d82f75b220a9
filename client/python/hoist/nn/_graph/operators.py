"""Staging as a pair of operators, for code that is compiled to one graph.

`hoist::stage` precedes the readers of a group's weights; `hoist::read` and
`hoist::done` follow them. All declare writes to the weights and to a token that
all groups of a plan share, and `read` declares that it reads the results: so a
compiler can move no reader out, and no group past another. None really writes.
inductor computes deferred values just after the first write to a weight: so
`read`, which does nothing, is needed. At run time the operators check what the
compiler cannot know: that the weights lie at the group's address, and are no
copies of the compiler's.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Protocol, Sequence

import torch

from ..._eager import eager
from ..._errors import FailedPrecondition
from .._tensors.rebuilt import Rebuilt
from .readers import watch

Tensors = Sequence[torch.Tensor]


class Staged(Protocol):
    """The group behind a pair of operators."""

    def stage(self, weights: Tensors) -> None:
        """Stages it for later work on the current stream."""

    def read(self, weights: Tensors, outputs: Tensors) -> None:
        """These outputs were computed with it."""

    def done(self, weights: Tensors, last: bool) -> None:
        """Work on the stream so far contains its last reader. `last` is False
        if it is staged again at once."""

    def misplaced(self) -> None:
        """Code was compiled that reads it before `stage` or after `done`."""


@dataclasses.dataclass(eq=False)
class Operands:
    """The operators' arguments for a group. Compiled code has them as inputs,
    so that equal groups share it."""

    token: torch.Tensor
    tag: torch.Tensor  # Its address identifies the group.
    weights: list[torch.Tensor]  # At every stage, their addresses are:
    addresses: list[int]
    rebuilt: list[Rebuilt]  # For some of them.

    def lie_in_place(self, weights: Tensors) -> bool:
        return [weight.data_ptr() for weight in weights] == self.addresses


_called: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_LIBRARY = torch.library.Library("hoist", "DEF")
_ARGUMENTS = "Tensor(a!) token, Tensor tag, Tensor(b!)[] weights"


def _define(name: str, arguments: str, call: Any, fake: Any) -> None:
    _LIBRARY.define(f"{name}({arguments}) -> ()")
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, call, key)
    torch.library.register_fake(f"hoist::{name}", fake, lib=_LIBRARY)


def _find(tag: torch.Tensor) -> Staged:
    found: Staged | None = _called.get(tag.data_ptr())
    if found is None:
        raise FailedPrecondition(
            "compiled code stages a group of a module that is attached no "
            "more, or has copies of what it was given, as inductor's freezing "
            "makes them; call the module, not what was compiled of it, and "
            "compile it without freezing")
    return found


@eager
def _stage(token: torch.Tensor, tag: torch.Tensor, weights: Tensors) -> None:
    _find(tag).stage(weights)


@eager
def _read(token: torch.Tensor, tag: torch.Tensor, weights: Tensors,
          outputs: Tensors) -> None:
    _find(tag).read(weights, outputs)


@eager
def _done(token: torch.Tensor, tag: torch.Tensor, weights: Tensors,
          last: bool) -> None:
    _find(tag).done(weights, last)


_define("stage", _ARGUMENTS, _stage, lambda token, tag, weights: None)
_define("read", f"{_ARGUMENTS}, Tensor[] outputs", _read,
        lambda token, tag, weights, outputs: None)
_define("done", f"{_ARGUMENTS}, bool last", _done,
        lambda token, tag, weights, last: None)


def stage(of: Operands | None) -> None:
    """Called by code that is being compiled."""
    assert of is not None
    torch.ops.hoist.stage(of.token, of.tag, of.weights)
    for one in of.rebuilt:
        one.holder[one.key] = one.build(*of.weights[one.begin:one.end])


def done(of: Operands | None, outputs: list[torch.Tensor],
         last: bool) -> None:
    """outputs: all results computed with the group, which must precede it."""
    assert of is not None
    for one in of.rebuilt:
        one.holder[one.key] = one.idle
    torch.ops.hoist.read(of.token, of.tag, of.weights, outputs)
    torch.ops.hoist.done(of.token, of.tag, of.weights, last)


class _Tokens:
    """Hands out each byte once in the process's life: a CUDA graph recorded
    for one plan is not replayed for another, since its token has another
    address."""

    _STEP = 16  # The alignment that compilers assume.
    _BYTES = _STEP << 12

    def __init__(self) -> None:
        self._blocks: dict[torch.device, tuple[torch.Tensor, int]] = {}
        self._full: list[torch.Tensor] = []

    def take(self, device: torch.device) -> torch.Tensor:
        block, at = self._blocks.get(device, (None, 0))
        with torch.inference_mode(False):
            if block is None or at == self._BYTES:
                if block is not None:
                    self._full.append(block)
                block, at = torch.zeros(self._BYTES, dtype=torch.uint8,
                                        device=device), 0
            self._blocks[device] = block, at + self._STEP
            made: Any = torch.empty(0, dtype=torch.uint8, device=device)
            taken: torch.Tensor = made.set_(block.untyped_storage(), at, (1,))
            return taken


_tokens = _Tokens()


def new_token(device: torch.device) -> torch.Tensor:
    """One for each plan, and one more for each renewal."""
    return is_static(_tokens.take(device))


def operands_of(staged: Staged, token: torch.Tensor,
                weights: list[torch.Tensor],
                rebuilt: list[Rebuilt]) -> Operands:
    """While they are referenced, the operators find `staged`."""
    with torch.inference_mode(False):
        tag = torch.zeros(1, dtype=torch.uint8, device=token.device)
    _called[tag.data_ptr()] = staged
    for weight in weights:
        is_static(weight)
    return Operands(token, is_static(tag), weights,
                    [weight.data_ptr() for weight in weights], rebuilt)


def is_static(tensor: torch.Tensor) -> torch.Tensor:
    """torch.compile's CUDA graphs use it in place, and are recorded again if
    its address changes (see torch._dynamo.mark_static_address)."""
    tensor._dynamo_static_input_type = "unguarded"  # type: ignore[attr-defined]
    return tensor


compilations = 0  # Of code with a group's weights; counted from either hook.


def keeps_weights_in_place() -> bool:
    """Asked during compilation: whether the compiler is known to pass the
    weights themselves to the operators."""
    global compilations
    compilations += 1
    from torch._dynamo.symbolic_convert import InstructionTranslator
    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:
        return False  # torch.export traces by itself.
    watch(output, _tell_misplaced)
    backend: Any = output.compiler_fn
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    if getattr(backend, "compiler_name", None) == "inductor":
        return True
    from torch._dynamo.backends import debugging
    return getattr(backend, "compiler_fn", backend) is debugging.eager


def _tell_misplaced(tag: torch.Tensor | None) -> None:
    for staged in [*_called.values()] if tag is None else [_find(tag)]:
        staged.misplaced()


# torch calls it, and treats its result as a constant.
vars(keeps_weights_in_place)["_dynamo_marked_constant"] = True
