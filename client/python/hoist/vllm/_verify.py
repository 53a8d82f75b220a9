"""Compares hoistd's weights with those of vLLM's own loader."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from ..serving._compared import compare
from ._cpu import kernels_over_shared_memory
from ._layers import layers_of_its_own


class Verifier:
    """Methods of a worker (`--worker-extension-cls`)."""

    def hoist_verify(self) -> dict[str, Any]:
        """Loads the files beside the worker's weights, which takes the same
        memory again. Returns a Comparison's fields."""
        worker: Any = self
        config = worker.vllm_config
        of_disk = dataclasses.replace(config.load_config, load_format="auto",
                                      model_loader_extra_config={})
        with contextlib.ExitStack() as stack:
            stack.enter_context(set_current_vllm_config(config))
            stack.enter_context(layers_of_its_own(config, keep=False))
            if worker.device.type == "cpu":
                stack.enter_context(kernels_over_shared_memory())
            wanted = DefaultModelLoader(of_disk).load_model(
                config, config.model_config)
        return dataclasses.asdict(
            compare(wanted, worker.model_runner.get_model()))
