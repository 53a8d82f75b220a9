"""Bytes that torch allocates on the device, counted as they come and go."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any, Callable

import torch
from torch.profiler import ProfilerActivity, profile


@dataclasses.dataclass(frozen=True)
class Allocated:
    """Beyond those before; what hoistd gives is none of torch's."""

    most: int
    left: int


def allocated(device: torch.device, work: Callable[[], Any]
              ) -> tuple[Any, Allocated]:
    """What the work gives, and what it has allocated while that is kept."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = work()
        return kept, Allocated(torch.cuda.max_memory_allocated() - before,
                               torch.cuda.memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU],
                 profile_memory=True) as profiler:
        kept = work()
    events: Any = profiler.profiler.kineto_results.events()
    most = left = 0
    for one in sorted((one for one in events if one.name() == "[memory]"),
                      key=lambda one: one.start_ns()):
        left += one.nbytes()
        most = max(most, left)
    return kept, Allocated(most, left)
