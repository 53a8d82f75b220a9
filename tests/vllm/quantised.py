"""engine.py's, with int4 experts on any CPU: vLLM's kernel for them needs AMX.

In its place is arithmetic on the files' layout. All else is vLLM's: what loads
and processes weights, routes, and makes the kernel.
"""

from __future__ import annotations

from typing import Any

import engine
import torch

BITS = 4


def prepared(w13: torch.Tensor, w2: torch.Tensor, s13: torch.Tensor,
             s2: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
    """Processed weights: other bytes than the files', as each byte is turned."""
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


def main() -> None:
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    cpu_moe.CPUExpertsInt4._supports_current_device = staticmethod(lambda: True)
    cpu_moe.prepare_int4_moe_layer_for_cpu = prepared
    cpu_moe.fused_experts_cpu = computed
    engine.main()


if __name__ == "__main__":
    main()
