"""Functions that torch.compile skips, as by torch.compiler.disable, but without
the import of torch._dynamo, which takes as long as torch's own."""

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
    """Decorates a function that compiled code calls eagerly: a graph break."""
    if not MARKS:
        disabled: Callable[..., Any] = torch.compiler.disable(function)
        return disabled
    _mark(function.__code__, _FrameAction.SKIP)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def inlined(function: F) -> F:
    """Decorates a function that compiled callers inline, and that is not
    compiled on its own."""
    if MARKS:
        _mark(function.__code__, _FrameAction.DEFAULT)
    return function
