"""Attention and expert layers, which vLLM registers by unique names."""

from __future__ import annotations

import contextlib
from typing import Iterator

from vllm.config import VllmConfig


@contextlib.contextmanager
def layers_of_its_own(vllm_config: VllmConfig, keep: bool) -> Iterator[None]:
    """Lets a model within reuse the names of an earlier one, which vLLM would
    refuse. Afterwards vLLM knows the earlier model's layers again, or, with
    `keep`, the new one's."""
    compilation = vllm_config.compilation_config
    layers = dict(compilation.static_forward_context)
    experts = list(compilation.static_all_moe_layers)
    compilation.static_forward_context.clear()
    compilation.static_all_moe_layers.clear()
    done = False
    try:
        yield
        done = True
    finally:
        if not (done and keep):
            compilation.static_forward_context.clear()
            compilation.static_forward_context.update(layers)
            compilation.static_all_moe_layers[:] = experts
