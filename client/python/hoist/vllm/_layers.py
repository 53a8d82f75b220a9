"""Attention and expert layers, of which vLLM knows each by one name."""

from __future__ import annotations

import contextlib
from typing import Iterator

from vllm.config import VllmConfig


@contextlib.contextmanager
def layers_of_its_own(vllm_config: VllmConfig, keep: bool) -> Iterator[None]:
    """A model that is built within may have the names of one that was built
    before: vLLM would refuse it. Afterwards vLLM knows the former one's layers
    again, or, if `keep`, those that were built within."""
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
