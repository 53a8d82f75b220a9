"""Attention and expert layers: their names, and where vLLM makes them."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.model_loader import utils


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


@contextlib.contextmanager
def experts_on(where: str) -> Iterator[None]:
    """Models within have their experts' weights there: on "meta", or in the
    host's memory ("cpu"). vLLM processes the latter's on the device, one layer
    at a time, and puts them back; the device memory of the layer before is
    given back then, which torch would keep."""
    choose, can_pin = RoutedExperts._get_quant_method, (
        utils.is_pin_memory_available)

    def chosen(*args: Any, **kwargs: Any) -> Any:
        method = choose(*args, **kwargs)
        create, process = (method.create_weights,
                           method.process_weights_after_loading)

        def create_weights(*args: Any, **kwargs: Any) -> None:
            with torch.device(where):
                create(*args, **kwargs)

        def process_weights(layer: Any) -> None:
            torch.accelerator.empty_cache()
            process(layer)

        method.create_weights = create_weights
        if where == "cpu":
            method.process_weights_after_loading = process_weights
        return method

    RoutedExperts._get_quant_method = chosen
    # torch rounds pinned memory up to a power of two.
    utils.is_pin_memory_available = lambda: False
    try:
        yield
    finally:
        RoutedExperts._get_quant_method = choose
        utils.is_pin_memory_available = can_pin
