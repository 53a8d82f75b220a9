"""The loader of `--load-format hoist`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pkgutil
import time
from typing import Any, Iterator

import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import utils
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import (
    initialize_model, process_weights_after_loading)
from vllm.model_executor.offloader import (NoopOffloader, get_offloader,
                                           set_offloader)
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

from .._errors import InvalidArgument, Unimplemented
from ..serving._binding import bind, refuse_to_write, settle_the_rest
from ..serving._guard import Guard
from ..serving._meta import build_on_meta
from ._cpu import kernels_over_shared_memory
from ._finding import Finding
from ._idle import rest_when_idle
from ._layers import experts_on, layers_of_its_own
from ._offload import PlanOffloader
from ._options import Options
from ._processing import let_finish, why_not_shared

_log = logging.getLogger("hoist.vllm")


class HoistModelLoader(BaseModelLoader):  # type: ignore[misc]
    """Loads no weights: hoistd has them, or reads the files."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self.options = Options.of(load_config.model_loader_extra_config or {})

    def download_model(self, model_config: ModelConfig) -> None:
        """As vLLM's own loader."""
        self._of_disk().download_model(model_config)

    def get_external_weight_memory(self, vllm_config: VllmConfig) -> int:
        """The weights' bytes on the device that are not this process's; they
        are there from here on, so that vLLM's measure of free memory is right.
        0 with a budget, or if the first engine has to make the weights: vLLM
        then measures the difference after loading."""
        model_config = vllm_config.model_config
        if self.options.budget is not None:
            return 0
        self._refuse_offloading()
        device = self._device(vllm_config)
        with set_current_vllm_config(vllm_config), \
                set_default_torch_dtype(model_config.dtype), \
                layers_of_its_own(vllm_config, keep=False):
            model, _ = _made(device, vllm_config, model_config)
            if self._why_not_shared(model, vllm_config) is not None:
                return 0
            return Finding(self.options, self._of_disk(), vllm_config,
                           model_config, "", device).take_early(model)

    def _device(self, vllm_config: VllmConfig) -> torch.device:
        return torch.device(self.load_config.device
                            or vllm_config.device_config.device)

    def load_weights(self, model: nn.Module,
                     model_config: ModelConfig) -> None:
        """FailedPrecondition: vLLM is about to write to a model's weights."""
        refuse_to_write()

    # What reload_weights calls, before it touches a layer.
    get_all_weights = load_weights

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig,
                   prefix: str = "") -> nn.Module:
        """The model over hoistd's memory.

        Unimplemented: layers whose weights cannot be shared, by name. All other
        refusals of hoistd are raised too; unless the options say so, the files
        are never read here instead.
        """
        device = self._device(vllm_config)
        self._refuse_offloading()
        if (self.options.budget is not None and self.options.in_place is None
                and not isinstance(get_offloader(), PlanOffloader)):
            set_offloader(PlanOffloader())  # A draft's layers go there too.
        begin = time.perf_counter()
        with set_default_torch_dtype(model_config.dtype):
            model, lost = _made(device, vllm_config, model_config, prefix)
            built = time.perf_counter()
            why = self._why_not_shared(model, vllm_config)
            if why is not None:
                return self._private(vllm_config, model_config, prefix, why)
            finding = Finding(self.options, self._of_disk(), vllm_config,
                              model_config, prefix, device)
            if self.options.in_place is not None:
                from ._experts import FusedExperts  # Of few models.
                finding.experts = FusedExperts(model, vllm_config, device,
                                               self.options.cpu_kernels)
            weights = finding.weights_of(model)
            bind(model, weights.tensors)
            settle_the_rest(model, device, lost | finding.trace.written)
            bound = time.perf_counter()
            with Guard(weights.spans()):
                self._finish(model, model_config, device)
        model.hoist_weights = weights  # The leases live as long as the model.
        model.load_weights = refuse_to_write
        if self.options.idle_after is not None:
            rest_when_idle(weights, self.options.idle_after, device,
                           pkgutil.resolve_name(
                               vllm_config.parallel_config.worker_cls))
        _log.info("%s: %.1f MiB of hoistd's on %s, shared and read-only; the "
                  "module was made in %.0f ms, and bound in %.0f ms",
                  weights.name, weights.nbytes / 2**20,
                  weights.device.name, (built - begin) * 1e3,
                  (bound - built) * 1e3)
        made: nn.Module = model.eval()
        return made

    def _why_not_shared(self, model: nn.Module,
                        vllm_config: VllmConfig) -> str | None:
        return why_not_shared(model, vllm_config.parallel_config.enable_eplb)

    def _refuse_offloading(self) -> None:
        """InvalidArgument: vLLM was asked to offload weights of its own."""
        if not isinstance(get_offloader(), (NoopOffloader, PlanOffloader)):
            raise InvalidArgument(
                "vLLM's own offloading moves weights that are not this "
                "process's to move; give hoist a budget instead: "
                "--model-loader-extra-config '{\"budget\": 0.7}'")

    def _finish(self, model: nn.Module, model_config: ModelConfig,
                device: torch.device) -> None:
        """Finishes layers, whose weights are processed already."""
        let_finish(model)
        with contextlib.ExitStack() as stack:
            stack.enter_context(weights_already_processed())
            if device.type == "cpu" and self.options.cpu_kernels == "shared":
                stack.enter_context(kernels_over_shared_memory())
            process_weights_after_loading(model, model_config, device)

    def _private(self, vllm_config: VllmConfig, model_config: ModelConfig,
                 prefix: str, why: str) -> nn.Module:
        if self.options.unsupported == "refuse":
            raise Unimplemented(
                f"hoistd cannot hold {model_config.model}: {why}; "
                '--model-loader-extra-config \'{"unsupported": "private"}\' '
                "loads its files into each engine, as --load-format auto does")
        _log.warning("%s is loaded into this process, shared with nobody, as "
                     "was asked for: %s", model_config.model, why)
        with layers_of_its_own(vllm_config, keep=True):
            made: nn.Module = DefaultModelLoader(self._of_disk()).load_model(
                vllm_config, model_config, prefix)
            return made

    def _of_disk(self) -> LoadConfig:
        """The configuration for vLLM's own loader, without hoist's."""
        return dataclasses.replace(self.load_config, load_format="auto",
                                   model_loader_extra_config={})


def _made(device: torch.device, vllm_config: VllmConfig,
          model_config: ModelConfig, prefix: str = ""
          ) -> tuple[Any, frozenset[int]]:
    """As build_on_meta. Only the constructor runs with `device` as default, as
    vLLM does it: torch asks for the default at each of its functions. Of
    experts some methods fill all with zeros, which takes their whole memory."""
    with device, experts_on("meta"), _without_metadata_for_reloading():
        return build_on_meta(lambda: initialize_model(
            vllm_config=vllm_config, model_config=model_config,
            prefix=prefix))


@contextlib.contextmanager
def _without_metadata_for_reloading() -> Iterator[None]:
    """vLLM notes each layer's parameters as they are made, for reload_weights,
    which hoist refuses. That takes as long as to make the layers."""
    noted = utils.record_metadata_for_reloading
    utils.record_metadata_for_reloading = lambda model: None
    try:
        yield
    finally:
        utils.record_metadata_for_reloading = noted
