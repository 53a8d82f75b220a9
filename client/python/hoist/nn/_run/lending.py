"""A module that hoistd may ask for its device memory: its use so far."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .turns import calls_above


class Lending:
    """Since when a module with the default budget is idle.

    A bound module's passes run no line of hoist. Its use is noted once hoistd
    has asked for the memory. Threads: any.
    """

    def __init__(self) -> None:
        self.asked = False  # Since then its use is noted.
        self._used_at = 0.0
        self._graded = False  # The last pass made a graph.
        self.hooked = False  # All hooks are back, for hoistd's ask.
        self._missed: set[int] = set()  # Threads in calls that began before.

    def watch(self) -> None:
        """Of the time before nothing is known."""
        self.asked = True
        self._used_at = time.monotonic()

    def note_use(self, output: Any) -> None:
        """A pass has ended."""
        self._used_at = time.monotonic()
        self._graded = torch.is_grad_enabled() and any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad
            for leaf in tree_leaves(output))

    def hook(self, called: list[nn.Module]) -> None:
        """All hooks are back since just now."""
        self.hooked = True
        self._missed = _callers(called)

    def misses(self, called: list[nn.Module]) -> bool:
        """Whether a call without hooks may still run; no thread has the turn."""
        self._missed &= _callers(called)
        return bool(self._missed)

    def idle_in(self, idle: float) -> float | None:
        """Seconds until it has been idle for so long; None: its memory cannot be
        taken."""
        if self._graded:
            return None
        return max(0.0, self._used_at + idle - time.monotonic())


def _callers(called: list[nn.Module]) -> set[int]:
    """Threads in a call of these; this one only if it is in two, as the end of
    its pass may be here."""
    mine = threading.get_ident()
    return {thread for thread, frame in sys._current_frames().items()
            if calls_above(frame, called) > (thread == mine)}
