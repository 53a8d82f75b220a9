"""Modules compiled by torch.compile, and how to defer compilation."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any, Iterable

import torch
from torch import nn

from ..._eager import MARKS, inlined

try:
    from torch._C._dynamo import eval_frame as _eval_frame
    from torch._C._dynamo.eval_frame import (get_eval_frame_callback,
                                             set_eval_frame)
except ImportError:
    _CAN_WAIT = False
else:
    _CAN_WAIT = MARKS and hasattr(torch.compiler, "set_stance")


def can_wait() -> bool:
    """This torch can run code eagerly for a while instead of compiling it."""
    return _CAN_WAIT


def may_be_there() -> bool:
    """False: this process has given torch.compile nothing to compile that it
    still has. A look at all modules takes 0.3 us for each, in each pass."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    # Torch marks the code of each callable that it is given.
    marked = getattr(eval_frame, "always_optimize_code_objects", None)
    return eval_frame is not None and (marked is None or bool(marked.values))


def is_there(modules: Iterable[nn.Module]) -> bool:
    """Calls of one of them are compiled, as far as modules show it; after
    `may_be_there`."""
    eval_frame = sys.modules["torch._dynamo.eval_frame"]
    for module in modules:
        own = vars(module)
        if own.get("_compiled_call_impl") is not None and compiled_call(
                module) is not None:
            return True
        if isinstance(module, eval_frame.OptimizedModule) or hasattr(
                own.get("forward"), "_torchdynamo_orig_callable"):
            return True
    return False


def compiled_call(module: nn.Module) -> Any:
    """The call that module.compile() has set, behind hoist's own call; None:
    nothing."""
    found: Any = vars(module).get("_compiled_call_impl")
    while hasattr(found, "instead_of"):
        found = found.instead_of
    return found


def holds_addresses() -> bool:
    """Whether this process has compiled code or CUDA graphs. Both call no hooks
    of modules that were bound as they were made; whose weights they have is
    unknown."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and (frames.input_codes.seen
                               or frames.output_codes.seen):
        return True
    # An instance's class, as proxies have others'.
    return torch.cuda.is_initialized() and any(
        issubclass(type(one), torch.cuda.CUDAGraph)
        for one in gc.get_objects())


@inlined
def calls_from_here() -> bool:
    """Whether Python calls of this thread are about to be compiled; False
    within code that is `eager`."""
    return _CAN_WAIT and get_eval_frame_callback() not in (None, False)


class _Pauses:
    """For the whole process, like torch's setting; they can overlap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._stance: Any = None

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._stance = torch.compiler.set_stance("force_eager")
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                stance, self._stance = self._stance, None
                stance.__exit__(None, None, None)


_pauses = _Pauses()


class Pause:
    """From `begin` to `end`, calls of compiled modules run eagerly.

    That includes other threads' calls. If this thread's calls are being
    compiled already, `hold_back` before a call makes that one eager.
    """

    def __init__(self) -> None:
        self._callback: Any = None
        self.is_on = False

    def begin(self) -> None:
        if not self.is_on:
            _pauses.begin()
            self.is_on = True

    def end(self) -> None:
        if self.is_on:
            self.is_on = False
            _pauses.end()

    @inlined
    def hold_back(self) -> None:
        """This thread's next call is not compiled, until `release`."""
        if not self.is_on or not calls_from_here():
            return
        self._callback = set_eval_frame(None)
        # With fullgraph=True torch raises if a call compiled nothing.
        count = getattr(_eval_frame, "set_fullgraph_compiled_frame_count", None)
        if count is not None and count(-1) >= 0:
            count(1)

    @inlined
    def release(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            set_eval_frame(callback)
