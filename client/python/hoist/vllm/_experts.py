"""Fused experts that are read in place: which, when, and how often."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Iterable

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod)
from vllm.utils.torch_utils import direct_register_custom_op

from .._eager import inlined
from .._errors import InvalidArgument, Unimplemented
from .._in_place import InPlace
from ..nn._plan.in_place import Count
from ..nn._tree.pieces import piece_bytes
from ..serving._recipes import Cut, held_by
from ._offload import refuse_compiled_whole, stream_of

# What is smaller (scales, biases) is resident: it would be less than a piece.
_LEAST_BYTES = 2 << 20

# By a layer's name. vLLM knows layers by name, too.
_counts: dict[str, Count] = {}


def _count_experts(chosen: torch.Tensor, layer: str) -> None:
    _counts[layer].add(chosen)


# An operator, as CPUs' compiled code contains the routers. It declares a write,
# or compilers would drop it.
_library = torch.library.Library("hoist_vllm", "FRAGMENT")
direct_register_custom_op("count_experts", _count_experts,
                          mutates_args=["chosen"], target_lib=_library,
                          fake_impl=lambda chosen, layer: None)


class FusedExperts:
    """A model's fused experts. Routers count on the device which are read;
    passes are the model's calls.

    Threads: those that run the model.
    """

    def __init__(self, model: nn.Module, vllm_config: VllmConfig,
                 device: torch.device, cpu_kernels: str) -> None:
        """For a model without weights.

        InvalidArgument: it has none, or they exclude another option.
        Unimplemented: they cannot be read in place; says why.
        """
        self._layers = {name: one for name, one in model.named_modules()
                        if isinstance(one, MoERunner)}
        self._experts = {f"{name}.routed_experts": layer.routed_experts
                         for name, layer in self._layers.items()}
        self._name = type(model).__name__
        if not self._layers:
            raise InvalidArgument(
                f'"in_place" is for fused experts, and {self._name} has none; '
                "leave it out")
        if vllm_config.parallel_config.enable_expert_parallel:
            raise Unimplemented(
                '"in_place" excludes --enable-expert-parallel, which numbers '
                "experts by engine; leave one of them out")
        aux = getattr(vllm_config, "aux_output_config", None)
        if getattr(aux, "enable_return_routed_experts", False):
            raise InvalidArgument(
                '"in_place" excludes --enable-return-routed-experts, as a '
                "router reports its choices to one of them")
        if device.type == "cpu" and cpu_kernels == "packed":
            raise InvalidArgument(
                '"in_place" excludes "cpu_kernels": "packed", as packed experts '
                "are no longer where hoistd has them")
        for name, layer in self._layers.items():
            self._check(name, layer)
        refuse_compiled_whole(model)
        # Whether kernels take the files' layout, which vLLM's own do not.
        self.read_files = False
        if device.type == "cpu":
            from ._cpu_experts import read_where_they_lie
            for name, experts in self._experts.items():
                if type(experts.quant_method) is UnquantizedFusedMoEMethod:
                    read_where_they_lie(name, experts)
                    self.read_files = True
        # One more for invalid numbers.
        self._firsts = list(itertools.accumulate(
            (one.local_num_experts + 1 for one in self._experts.values()),
            initial=0))
        self.counts = torch.zeros(self._firsts[-1], dtype=torch.int32,
                                  device=device)

    def _check(self, name: str, layer: Any) -> None:
        if not isinstance(layer.router, BaseRouter):
            raise Unimplemented(
                f"{name} takes no \"in_place\", as its router "
                f"({type(layer.router).__name__}) does not tell which experts "
                "it chooses")
        method = layer.routed_experts.quant_method
        if method.is_monolithic:
            raise Unimplemented(
                f"{name} takes no \"in_place\", as its kernel chooses the "
                "experts itself; see --moe-backend triton")

    def cuts(self, model: nn.Module) -> dict[str, Cut]:
        """By the first name of a tensor: those of the experts, in the order of
        experts. model: as its weights lie, which vLLM may have processed."""
        made = {}
        for held in held_by(model):
            experts = self._experts.get(held.names[0].rpartition(".")[0])
            units = 0 if experts is None else experts.local_num_experts
            if (units and held.tensor.dim() > 1
                    and held.tensor.shape[0] == units
                    and held.tensor.is_contiguous()
                    and held.tensor.nbytes >= _LEAST_BYTES):
                made[held.names[0]] = Cut(
                    piece_bytes(held.tensor.nbytes // units), units)
        if not made:
            raise InvalidArgument(
                f'"in_place" is for larger experts than {self._name}\'s; '
                "leave it out")
        return made

    def first_counts(self, names: Iterable[str]) -> dict[str, int]:
        """By a tensor's name: of all of a layer, the same."""
        first = dict(zip(self._experts, self._firsts))
        return {name: first[name.rpartition(".")[0]] for name in names}

    def follow(self, model: nn.Module, tensors: InPlace) -> None:
        """From now on each call of the model is a pass."""
        one_more = torch.ones(1, dtype=torch.int32, device=self.counts.device)
        for (name, layer), first in zip(self._layers.items(), self._firsts):
            _counts[name] = Count(self.counts, first,
                                  layer.routed_experts.local_num_experts,
                                  one_more)
            layer.router.set_capture_fn(functools.partial(
                torch.ops.hoist_vllm.count_experts, layer=name))

        @inlined
        def begin(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                tensors.begin(stream_of(tensors))

        @inlined
        def end(*_: Any) -> None:
            if not torch.compiler.is_compiling():
                tensors.end()

        model.register_forward_pre_hook(begin)
        model.register_forward_hook(end)
