"""Functions that torch.compile leaves alone, as torch.compiler.disable does,
but without importing torch._dynamo, which takes as long as torch itself."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled code breaks its graph and calls the function as it is."""
    if "torch._dynamo" in sys.modules or not _MARKS:
        return torch.compiler.disable(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    _never_compile(run.__code__)
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run


try:
    # torch 2.7 and newer; older ones pay for the import.
    from torch._C._dynamo.eval_frame import (  # type: ignore[import]
        _FrameAction, _FrameExecStrategy, set_code_exec_strategy)

    _MARKS = True

    def _never_compile(code: Any) -> None:
        set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP,
                                                        _FrameAction.SKIP))
except ImportError:
    _MARKS = False

    def _never_compile(code: Any) -> None:
        raise NotImplementedError
