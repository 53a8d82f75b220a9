"""Functions that torch.compile leaves alone: as torch.compiler.disable does,
but without importing torch._dynamo, which takes as long as torch itself."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

try:
    # torch 2.7 and newer; older ones pay for the import.
    from torch._C._dynamo.eval_frame import (
        _FrameAction, _FrameExecStrategy, set_code_exec_strategy)

    MARKS = True

    def _mark(code: Any, callees: Any) -> None:
        set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP,
                                                        callees))
except ImportError:
    MARKS = False


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates what compiled code is to call as it is, breaking its graph."""
    if not MARKS:
        disabled: Callable[..., Any] = torch.compiler.disable(function)
        return disabled
    _mark(function.__code__, _FrameAction.SKIP)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def inlined(function: F) -> F:
    """Decorates what is a part of the compiled code that calls it, and is not
    compiled where no such code does."""
    if MARKS:
        _mark(function.__code__, _FrameAction.DEFAULT)
    return function
