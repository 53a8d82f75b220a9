"""Functions that torch.compile leaves alone, as torch.compiler.disable does,
but without importing torch._dynamo, which takes as long as torch itself."""

from __future__ import annotations

from typing import Any, Callable

import torch


try:
    # torch 2.7 and newer; older ones pay for the import.
    from torch._C._dynamo.eval_frame import (
        _FrameAction, _FrameExecStrategy, set_code_exec_strategy)

    _MARKS = True

    def _never_compile(code: Any) -> None:
        set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP,
                                                        _FrameAction.SKIP))
except ImportError:
    _MARKS = False

    def _never_compile(code: Any) -> None:
        raise NotImplementedError


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates what compiled code is to call as it is, breaking its graph."""
    if not _MARKS:
        disabled: Callable[..., Any] = torch.compiler.disable(function)
        return disabled
    _never_compile(function.__code__)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
