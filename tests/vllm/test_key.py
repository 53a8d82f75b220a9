"""What decides how weights lie, of layers without an engine around them."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from hoist.vllm._key import (environment, experts_of,  # noqa: E402
                             kernels_of, parameters_of)
from torch import nn  # noqa: E402
from vllm.model_executor.layers.fused_moe.config import (  # noqa: E402
    FusedMoEParallelConfig)
from vllm.model_executor.layers.quantization.base_config import (  # noqa: E402
    QuantizeMethodBase)


class Method(QuantizeMethodBase):

    def __init__(self, kernel):
        self.fp8_linear = kernel()

    def create_weights(self, *given, **named):
        """Not called."""

    def apply(self, *given, **named):
        """Not called."""


def experts(tp=(1, 0), ep=(1, 0), placement="linear"):
    layer = nn.Module()
    layer.moe_config = types.SimpleNamespace(
        moe_parallel_config=FusedMoEParallelConfig(
            tp_size=tp[0], tp_rank=tp[1], ep_size=ep[0], ep_rank=ep[1],
            pcp_size=1, pcp_rank=0, dp_size=2, dp_rank=0, sp_size=1,
            use_ep=ep[0] > 1, all2all_backend="", enable_eplb=False))
    layer.expert_placement_strategy = placement
    return nn.ModuleList([layer])


def test_data_parallel_engines_have_other_experts_or_parts_of_them():
    """vLLM's layers of experts are sharded over data parallel engines too."""
    said = {experts_of(model, redundant) for model, redundant in (
        (experts(), 0), (experts(tp=(2, 0)), 0), (experts(tp=(2, 1)), 0),
        (experts(ep=(2, 0)), 0), (experts(ep=(2, 1)), 0),
        (experts(ep=(2, 1), placement="round_robin"), 0),
        (experts(ep=(2, 1)), 2), (nn.Linear(1, 1), 0))}
    assert len(said) == 8


def test_a_kernel_that_a_layer_has_chosen_by_itself_is_told_apart():
    class Cutlass:
        pass

    class Marlin:
        pass

    def with_kernel(kernel):
        layer = nn.Linear(1, 1)
        layer.quant_method = Method(kernel)
        return kernels_of(nn.ModuleList([layer, nn.Linear(1, 1)]))

    assert with_kernel(Cutlass) == with_kernel(Cutlass) != with_kernel(Marlin)


def test_parameters_are_told_apart_by_name_shape_and_type():
    def made(**named):
        model = nn.Module()
        for name, tensor in named.items():
            setattr(model, name, nn.Parameter(tensor))
        return parameters_of(model)

    four = torch.empty(4, device="meta")
    said = {made(a=four), made(b=four), made(a=four, b=four),
            made(a=four[:2]), made(a=four.half())}
    assert len(said) == 5 and made(a=four) == made(a=four)


def test_vllms_variables_are_a_part_and_an_engines_number_is_none(monkeypatch):
    before = environment()
    monkeypatch.setenv("VLLM_DP_RANK", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    assert environment() == before
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM_E8M0", "0")
    assert environment() != before
