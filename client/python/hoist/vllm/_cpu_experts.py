"""vLLM's fused experts on CPUs, over weights in the files' layout.

vLLM packs its experts for its kernels once. Here each call packs a copy of the
routed ones: it reads what a GPU's kernel reads, and computes the same bits as
vLLM; it is slower.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm._custom_ops import cpu_fused_moe, cpu_prepack_moe_weight
from vllm.utils.torch_utils import direct_register_custom_op

from .._errors import Unimplemented


def _read_experts(output: torch.Tensor, x: torch.Tensor, w13: torch.Tensor,
                  w2: torch.Tensor, b13: torch.Tensor | None,
                  b2: torch.Tensor | None, weights: torch.Tensor,
                  chosen: torch.Tensor, activation: str, isa: str,
                  weighted: bool) -> None:
    experts, numbers = chosen.unique(return_inverse=True)
    cpu_fused_moe(output, x, cpu_prepack_moe_weight(w13[experts], isa),
                  cpu_prepack_moe_weight(w2[experts], isa),
                  None if b13 is None else b13[experts],
                  None if b2 is None else b2[experts], weights,
                  numbers.to(torch.int32), activation, isa, weighted)


_library = torch.library.Library("hoist_vllm", "FRAGMENT")
direct_register_custom_op("read_experts", _read_experts,
                          mutates_args=["output"], target_lib=_library,
                          fake_impl=lambda *arguments: None)


@functools.cache
def _over_files(kernel: Any) -> type:
    class InPlaceExperts(kernel):  # type: ignore[misc]
        """For weights that are processed already, by nobody."""

        reads_files_layout = True

        def apply(self, output: torch.Tensor, hidden_states: torch.Tensor,
                  w1: torch.Tensor, w2: torch.Tensor,
                  topk_weights: torch.Tensor, topk_ids: torch.Tensor,
                  activation: Any, *_: Any, apply_router_weight_on_input: bool,
                  **__: Any) -> None:
            torch.ops.hoist_vllm.read_experts(
                output, hidden_states, w1, w2, self.w1_bias, self.w2_bias,
                topk_weights, topk_ids, activation.value, self.isa,
                apply_router_weight_on_input)

    return InPlaceExperts


def read_where_they_lie(name: str, layer: Any) -> None:
    """Before the layer's weights, unquantised ones, are processed.
    Unimplemented: vLLM pads them."""
    method = layer.quant_method
    wanted = method.experts_cls._padded_intermediate_size(layer.moe_config)
    if wanted != layer.intermediate_size_per_partition:
        raise Unimplemented(
            f'{name} takes no "in_place" on CPUs, as their kernel pads its '
            f"experts from {layer.intermediate_size_per_partition} rows to "
            f"{wanted}")
    method.experts_cls = _over_files(method.experts_cls)
