"""vLLM's fused experts on CPUs, over weights in the files' layout.

vLLM's own kernels read packed copies. This one reads the routed experts alone,
as a GPU's does, and rounds as theirs do; it is slower.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import (
    CPUUnquantizedExperts)
from vllm.utils.torch_utils import direct_register_custom_op

from .._errors import Unimplemented

_ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}


def _read_experts(output: torch.Tensor, x: torch.Tensor, w13: torch.Tensor,
                  w2: torch.Tensor, b13: torch.Tensor | None,
                  b2: torch.Tensor | None, weights: torch.Tensor,
                  chosen: torch.Tensor, activation: str,
                  weighted: bool) -> None:
    made = torch.zeros(output.shape)
    for expert in chosen.unique().tolist():
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        gate, up = _linear(x[rows], w13, b13, expert).chunk(2, -1)
        inner = (_ACTIVATIONS[activation](gate) * up).to(x.dtype)
        one = _linear(inner, w2, b2, expert)
        if not weighted:
            one *= weights[rows, places, None]
        made.index_add_(0, rows, one)
    output.copy_(made)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
            expert: int) -> torch.Tensor:
    return functional.linear(x.float(), weight[expert].float(),
                             None if bias is None else bias[expert].float())


_library = torch.library.Library("hoist_vllm", "FRAGMENT")
direct_register_custom_op("read_experts", _read_experts,
                          mutates_args=["output"], target_lib=_library,
                          fake_impl=lambda *arguments: None)


class InPlaceExperts(CPUUnquantizedExperts):  # type: ignore[misc]
    """For weights that are processed already, by nobody."""

    reads_files_layout = True

    def apply(self, output: torch.Tensor, hidden_states: torch.Tensor,
              w1: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
              topk_ids: torch.Tensor, activation: Any, *_: Any,
              apply_router_weight_on_input: bool, **__: Any) -> None:
        torch.ops.hoist_vllm.read_experts(
            output, hidden_states, w1, w2, self.w1_bias, self.w2_bias,
            topk_weights, topk_ids, activation.value,
            apply_router_weight_on_input)


def read_where_they_lie(name: str, layer: Any) -> None:
    """Before the layer's weights, unquantised ones, are processed.
    Unimplemented: another activation."""
    if layer.activation.value not in _ACTIVATIONS:
        raise Unimplemented(
            f'{name} takes no "in_place" on CPUs, with its activation '
            f"({layer.activation.value})")
    layer.quant_method.experts_cls = InPlaceExperts
