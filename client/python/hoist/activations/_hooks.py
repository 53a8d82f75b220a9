"""Hooks around the forwards of a worker's modules."""

from __future__ import annotations

import sys
from typing import Any, Callable

from torch import nn
from torch.utils.hooks import RemovableHandle

from .._eager import eager
from .._errors import FailedPrecondition

Call = Callable[[nn.Module], None]


def compile_anew() -> None:
    """Code that was compiled before hooks were added or removed would ignore
    the change: torch does not guard hooks."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        getattr(dynamo, "reset_code_caches", dynamo.reset)()


class _Hook:
    """Compiled code breaks its graph here. A copy of its module has it too, and
    so belongs to the same Offload."""

    def __init__(self, call: Call) -> None:
        self._call = call

    @eager
    def __call__(self, module: nn.Module, *args: Any) -> None:
        self._call(module)

    def __deepcopy__(self, memo: object) -> _Hook:
        return self

    def __reduce__(self) -> Any:
        raise FailedPrecondition(
            "a module whose activations are offloaded cannot be pickled; save "
            "its state_dict(), or close() the Offload first")


class Hooks:
    """The hooks of one Offload, in any number of modules."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def add(self, module: nn.Module, begin: Call, end: Call) -> None:
        """Calls `begin` before each forward of the module, after present hooks,
        and `end` after it, before present hooks, also if it raises."""
        self._handles += [
            module.register_forward_pre_hook(_Hook(begin)),
            module.register_forward_hook(_Hook(end), prepend=True,
                                         always_call=True)]

    def remove(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
