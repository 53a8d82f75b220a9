"""vLLM's linear layers on CPUs, over memory that others read too."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch
from vllm.model_executor.layers import utils


@contextlib.contextmanager
def kernels_over_shared_memory() -> Iterator[None]:
    """Layers that are processed within compute with their weights as they lie.
    By themselves they pack a copy for oneDNN, and drop the weights."""
    theirs = utils.dispatch_cpu_unquantized_gemm

    def ours(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    utils.dispatch_cpu_unquantized_gemm = ours
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = theirs
