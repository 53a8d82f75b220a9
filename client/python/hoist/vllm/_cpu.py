"""vLLM's linear layers on CPUs, over shared memory."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch
from vllm.model_executor.layers import utils
from vllm.model_executor.utils import is_weights_pre_processed


@contextlib.contextmanager
def kernels_over_shared_memory() -> Iterator[None]:
    """Layers that are processed within compute with their weights in place. By
    themselves they pack a copy for oneDNN, and drop the weights.

    Convolutions' kernels take only packed weights: each process packs its own,
    from hoistd's weights, but not from weights that are to be published."""
    theirs = utils.dispatch_cpu_unquantized_gemm

    def ours(layer: torch.nn.Module, remove_weight: bool) -> None:
        if layer.weight.ndim != 2:
            if is_weights_pre_processed():
                theirs(layer, remove_weight)
            return
        layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]

    utils.dispatch_cpu_unquantized_gemm = ours
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = theirs
