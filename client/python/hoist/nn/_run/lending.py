"""A module that hoistd may ask for its device memory: its use so far."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Lending:
    """Since when a module with the default budget is idle.

    A bound module's passes run no line of hoist. Its use is noted once hoistd
    has asked for the memory. Threads: any.
    """

    def __init__(self) -> None:
        self.asked = False  # Since then its use is noted.
        self._used_at = 0.0
        self._graded = False  # The last pass made a graph.

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

    def idle_in(self, idle: float) -> float | None:
        """Seconds until it has been idle for so long; None: its memory cannot be
        taken."""
        if self._graded:
            return None
        return max(0.0, self._used_at + idle - time.monotonic())
