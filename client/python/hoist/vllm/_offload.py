"""Decoder layers whose weights come just before they are needed."""

from __future__ import annotations

from typing import Any, Generator, Mapping

import torch
from torch import nn
# Importing it registers the operators vllm::wait_prefetch and start_prefetch.
from vllm.model_executor.offloader import PrefetchOffloader  # noqa: F401
from vllm.model_executor.offloader.base import BaseOffloader

from .._errors import Unimplemented
from .._model import Group
from .._plan import Plan


class PlanOffloader(BaseOffloader):  # type: ignore[misc]
    """What vLLM asks around its decoder layers, answered by a plan of hoistd's.

    A layer is staged by the operator before it and done by the one after it:
    vLLM's own, which for compilers and CUDA graphs write to the layer's input
    and output, so that no reader of a weight leaves its layer.

    Threads: those that run the model, one at a time.
    """

    def __init__(self) -> None:
        self._layers: list[nn.Module] = []
        self._plan: Plan | None = None
        self._groups: list[Group | None] = []

    def wrap_modules(self, modules_generator: Generator[nn.Module, None, None],
                     prefix: str = "") -> list[nn.Module]:
        """vLLM's: of each list of layers that a model makes."""
        modules = list(modules_generator)
        for module in modules:
            _surround(module, len(self._layers))
            self._layers.append(module)
        return modules

    def layers_of(self, model: nn.Module) -> list[str]:
        """Names of those that were wrapped, in their order."""
        names = {id(one): name for name, one in model.named_modules()}
        return [names[id(layer)] for layer in self._layers
                if id(layer) in names]

    def follow(self, model: nn.Module, plan: Plan,
               groups: Mapping[str, Group]) -> None:
        """From now on layers are staged by the plan. groups: by the layers'
        names; those without one need no staging."""
        names = {id(one): name for name, one in model.named_modules()}
        self._plan = plan
        self._groups = [groups.get(names.get(id(layer), ""))
                        for layer in self._layers]

    def _wait_for_layer(self, layer_idx: int) -> None:
        group = self._group(layer_idx)
        if group is not None and self._plan is not None:
            self._plan.stage(group, stream=_stream(self._plan))

    def _start_prefetch(self, layer_idx: int) -> None:
        """What was computed with the layer has been launched. vLLM's own
        offloader begins to copy the next one here; hoistd has begun already."""
        group = self._group(layer_idx)
        if group is not None and self._plan is not None:
            self._plan.done(group, stream=_stream(self._plan))

    def _group(self, layer_idx: int) -> Group | None:
        # Empty until the model is bound: vLLM runs nothing before.
        return self._groups[layer_idx] if self._groups else None


def _stream(plan: Plan) -> int | None:
    if plan.device_kind == 1:  # Emulated.
        return None
    return torch.cuda.current_stream().cuda_stream


def _surround(module: nn.Module, index: int) -> None:
    theirs = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        torch.ops.vllm.wait_prefetch(_activations(args, kwargs), index)
        given = theirs(*args, **kwargs)
        torch.ops.vllm.start_prefetch(
            given[0] if isinstance(given, tuple) else given, index)
        return given

    module.forward = forward


def _activations(args: tuple[Any, ...], kwargs: Mapping[str, Any]
                 ) -> torch.Tensor:
    """What all of a layer is computed from; positions are integers."""
    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            return one
    raise Unimplemented("a decoder layer is called with no activations; start "
                        "the engine without a budget")
