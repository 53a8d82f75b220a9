"""Gates: the common ways into a group and out of it, in C.

hoist._fast stands in front of a module's hooks. It stages its groups, shows their
weights and ends the groups before them in one call, if all is as usual: in a pass
without gradients, compiled code or a CUDA graph's capture, for groups at a plan's
fixed addresses. The first group without, and those after it, are the hook's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ... import _hot, _model
from ..._errors import HoistError
from .._tensors.idle import IdleGroup
from .._tensors.lent import asked
from .device_part import DevicePart
from .shown import Shown
from .states import IDLE, Resident, Staged


def gates() -> Any:
    """The extension, which knows what gates need. None: there is none."""
    fast = _hot.fast()
    if fast is not None:
        _tell(fast)
    return fast


@functools.lru_cache(maxsize=None)
def _tell(fast: Any) -> None:
    fast.know(IDLE, Resident, torch.Tensor, HoistError, torch.is_grad_enabled,
              torch._C._current_graph_task_id, asked,
              getattr(torch._C, "_cuda_isCurrentStreamCapturing", None),
              getattr(torch._C, "_cuda_getCurrentRawStream", None))


def gate_of(group: _model.Group, part: DevicePart, idle: IdleGroup, off: Any,
            shown: Shown) -> Any:
    """The gate of a group that is staged, with these weights. None: its stages
    have more to do, or no fixed address."""
    plan, fast = part.plan, gates()
    if (fast is None or plan is None or type(plan._calls) is not fast.Calls
            or shown.casts or shown.past_hooks is not None
            or plan.kind(group) != "streamed"):
        return None
    return fast.Gate(
        shown.address, group.image_bytes, plan, plan._calls, group.index, part,
        part.staged, part.cuda_index, idle.told, idle.pointers, off, shown.swaps,
        shown, shown.lent, Staged(shown.address, None, IDLE))
