"""engine.py's, with quantised experts on any CPU.

vLLM's kernels for them need AMX or a GPU. In their place is arithmetic on the
bytes of the experts that the routers choose. All else is vLLM's: what loads
weights, processes and routes them, and makes the kernel.
"""

from __future__ import annotations

import zlib
from typing import Any

import engine
import torch

BITS = 4


def prepared(w13: torch.Tensor, w2: torch.Tensor, s13: torch.Tensor,
             s2: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
    """Of a CPU's int4 experts: other bytes than the files', all are turned."""
    zeros = torch.full((w13.shape[0], 1), 8, dtype=torch.int32)
    return ~w13, ~w2, s13, s2, zeros, zeros.clone()


def computed(output: torch.Tensor, x: torch.Tensor, w13: torch.Tensor,
             w2: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor,
             _: Any, s13: torch.Tensor, s2: torch.Tensor, z13: torch.Tensor,
             z2: torch.Tensor, *__: Any) -> None:
    output.zero_()
    for expert in chosen.unique().tolist():
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (x[rows] @ _weight(w13, s13, z13, expert).to(x.dtype)
                    ).chunk(2, dim=1)
        made = (torch.nn.functional.silu(gate) * up) @ _weight(
            w2, s2, z2, expert).to(x.dtype)
        output.index_add_(0, rows, made * weights[rows, places, None].to(
            x.dtype))


def _weight(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor,
            expert: int) -> torch.Tensor:
    """(in, out): eight values along `in` are in one word, the first lowest."""
    word = ~packed[expert]
    values = torch.stack([(word >> BITS * at) & 15 for at in range(8)], dim=1)
    whole = values.reshape(-1, word.shape[1]) - zeros[expert]
    groups = scales[expert]
    return whole * groups.repeat_interleave(whole.shape[0] // groups.shape[0],
                                            dim=0)


def repacked(b_q_weight: torch.Tensor, size_k: int, size_n: int, num_bits: int,
             is_a_8bit: bool = False) -> torch.Tensor:
    """Of Marlin: in its shape."""
    return (~b_q_weight).reshape(*b_q_weight.shape[:-2], size_k // 16,
                                 size_n * num_bits // 2)


def summed(hidden_states: torch.Tensor, output: torch.Tensor,
           topk_weights: torch.Tensor, topk_ids: torch.Tensor, w1: torch.Tensor,
           w2: torch.Tensor, w1_scale: torch.Tensor, w2_scale: torch.Tensor,
           bias1: torch.Tensor | None, bias2: torch.Tensor | None,
           **_: Any) -> None:
    """In place of Marlin's kernel: a sum of each chosen expert's bytes."""
    total = torch.zeros(hidden_states.shape[0], 1)
    for expert in topk_ids.unique().tolist():
        found = 0
        for one in (w1, w2, w1_scale, w2_scale, bias1, bias2):
            if one is not None:
                found = zlib.crc32(one.detach()[expert].contiguous().reshape(
                    -1).view(torch.uint8).numpy(), found)
        total += ((topk_ids == expert) * topk_weights).sum(
            1, keepdim=True) * found / (1 << 32)
    output.copy_(hidden_states.roll(1, 1) * total)


def main() -> None:
    from vllm import _custom_ops as operators
    from vllm.model_executor.layers.fused_moe.experts import (cpu_moe,
                                                              marlin_moe)
    for kernel in cpu_moe.CPUExpertsInt4, marlin_moe.MarlinExperts:
        kernel._supports_current_device = staticmethod(lambda: True)
    cpu_moe.prepare_int4_moe_layer_for_cpu = prepared
    cpu_moe.fused_experts_cpu = computed
    operators.gptq_marlin_repack = repacked
    operators.gptq_marlin_moe_repack = repacked
    marlin_moe.fused_marlin_moe = summed
    engine.main()


if __name__ == "__main__":
    main()
