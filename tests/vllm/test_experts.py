"""What can be read in place, and what is refused, of layers without an engine."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("vllm")

import hoist  # noqa: E402
import torch  # noqa: E402
from hoist.vllm import _kernels  # noqa: E402
from hoist.vllm._cpu_experts import read_where_they_lie  # noqa: E402
from hoist.vllm._experts import FusedExperts  # noqa: E402
from hoist.vllm._key import kernels_of  # noqa: E402
from hoist.vllm._processing import why_not_shared  # noqa: E402
from torch import nn  # noqa: E402
from vllm.model_executor.layers.fused_moe.experts import (  # noqa: E402
    gpt_oss_triton_kernels_moe as triton)
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import (  # noqa: E402
    BatchedMarlinExperts, MarlinExperts)
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import (  # noqa: E402
    Mxfp4MoeBackend)
from vllm.model_executor.layers.fused_moe.router.base_router import (  # noqa: E402
    BaseRouter)
from vllm.model_executor.layers.fused_moe.runner.moe_runner import (  # noqa: E402
    MoERunner)
from vllm.model_executor.layers.quantization.mxfp4 import (  # noqa: E402
    GptOssMxfp4MoEMethod, Mxfp4MoEMethod)

MIB = 1 << 20


class Router(BaseRouter):
    """Of no layer."""

    def __init__(self):
        """It needs nothing."""

    routing_method_type = _compute_routing = None


class Runner(MoERunner):
    """Of experts of `MIB` bytes each, and of scales that are a tenth of that."""

    def __init__(self, method, experts=4, scale=MIB // 10):
        nn.Module.__init__(self)
        self.router = Router()
        self.routed_experts = nn.Module()
        self.routed_experts.quant_method = method
        self.routed_experts.local_num_experts = experts
        for name, nbytes in ("w2_weight", MIB), ("w2_weight_scale", scale):
            self.routed_experts.register_parameter(name, nn.Parameter(
                torch.empty(experts, nbytes, dtype=torch.uint8, device="meta"),
                requires_grad=False))


def method(of=GptOssMxfp4MoEMethod, backend=Mxfp4MoeBackend.MARLIN,
           experts=MarlinExperts):
    made = object.__new__(of)
    made.mxfp4_backend, made.experts_cls, made.moe_kernel = (
        backend, experts, None)
    return made


def model(*given, **named):
    return nn.ModuleDict({"layer": Runner(*given, **named)})


def experts_of(whole, device="meta", cpu_kernels="shared", **of):
    config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(
            enable_expert_parallel=of.get("parallel", False)),
        aux_output_config=types.SimpleNamespace(
            enable_return_routed_experts=of.get("exported", False)))
    return FusedExperts(whole, config, torch.device(device), cpu_kernels)


def test_of_experts_what_fills_pieces_is_cut_and_small_scales_are_not():
    whole = model(method())
    assert experts_of(whole).cuts(whole).keys() == {
        "layer.routed_experts.w2_weight"}
    whole = model(method(), scale=MIB // 2)
    cuts = experts_of(whole).cuts(whole)
    assert {one.units for one in cuts.values()} == {4} and len(cuts) == 2
    assert set(experts_of(whole).first_counts(cuts).values()) == {0}


def test_what_is_not_in_the_order_of_experts_is_resident():
    whole = model(method(), scale=MIB)
    routed = whole["layer"].routed_experts
    routed.w2_weight_scale = nn.Parameter(
        torch.empty(MIB, 4, dtype=torch.uint8, device="meta").t(),
        requires_grad=False)
    routed.register_parameter("others", nn.Parameter(
        torch.empty(3, MIB, device="meta"), requires_grad=False))
    assert experts_of(whole).cuts(whole).keys() == {
        "layer.routed_experts.w2_weight"}


def test_experts_of_less_than_a_piece_are_told():
    whole = model(method(), experts=1)
    with pytest.raises(hoist.InvalidArgument, match="larger experts"):
        experts_of(whole).cuts(whole)


def test_expert_parallelism_is_told():
    with pytest.raises(hoist.Unimplemented, match="--enable-expert-parallel"):
        experts_of(model(method()), parallel=True)


def test_an_export_of_routed_experts_is_told():
    with pytest.raises(hoist.InvalidArgument,
                       match="--enable-return-routed-experts"):
        experts_of(model(method()), exported=True)


def test_a_model_that_is_compiled_whole_is_told():
    class Whole(nn.ModuleDict):
        def __call__(self):
            """As vLLM's decorator makes it."""

    with pytest.raises(hoist.Unimplemented, match="compiles all of it"):
        experts_of(Whole({"layer": Runner(method())}))


def test_a_router_that_does_not_tell_its_choice_is_told():
    whole = model(method())
    whole["layer"].router = object()
    with pytest.raises(hoist.Unimplemented, match="does not tell which"):
        experts_of(whole)


def test_experts_that_a_cpus_kernel_pads_are_told():
    class Padding:
        @staticmethod
        def _padded_intermediate_size(config):
            return 64

    layer = types.SimpleNamespace(
        quant_method=types.SimpleNamespace(experts_cls=Padding),
        moe_config=None, intermediate_size_per_partition=60)
    with pytest.raises(hoist.Unimplemented, match="from 60 rows to 64"):
        read_where_they_lie("layer", layer)


@pytest.mark.parametrize("of", [GptOssMxfp4MoEMethod, Mxfp4MoEMethod])
def test_swizzled_weights_are_told_with_the_option_for_plain_ones(of):
    swizzled = model(method(of, Mxfp4MoeBackend.TRITON,
                            triton.OAITritonExperts))
    assert "--moe-backend marlin" in why_not_shared(swizzled, balanced=False)
    assert why_not_shared(model(method(of)), balanced=False) is None


def test_kernels_of_other_forms_are_told():
    said = {_kernels.why_not_made(method(experts=experts)) for experts in (
        triton.OAITritonMxfp4ExpertsMonolithic, BatchedMarlinExperts, None)}
    assert len(said) == 3 and None not in said
    with pytest.raises(hoist.Unimplemented, match="chooses the experts itself"):
        experts_of(model(method(
            experts=triton.OAITritonMxfp4ExpertsMonolithic)))


def test_a_kernels_name_is_a_part_of_the_key_of_published_weights():
    marlin, emulated = (kernels_of(model(method(backend=one))) for one in (
        Mxfp4MoeBackend.MARLIN, Mxfp4MoeBackend.EMULATION))
    assert marlin != emulated


def test_engines_with_other_cuda_graphs_share_published_weights():
    def key(largest):
        graphs = method()
        graphs.max_capture_size = largest
        return kernels_of(model(graphs))

    assert key(1024) == key(0)


class Kernel:
    def __init__(self, scale, size=1):
        self.scale, self.size = scale, size


@pytest.fixture
def processed(monkeypatch):
    """A model that vLLM has loaded, and the same before."""
    monkeypatch.setattr(_kernels, "_make", lambda made, layer: setattr(
        made, "moe_kernel", Kernel(layer.w2_weight_scale)))
    loaded = model(method())
    layer = loaded["layer"].routed_experts
    layer.quant_method.moe_kernel = Kernel(layer.w2_weight_scale)
    return loaded, model(method())


def test_a_kernel_that_is_as_vllm_has_made_it_is_no_difference(processed):
    assert _kernels.why_kernels_differ(*processed) is None


@pytest.mark.parametrize("change, says", [
    (lambda layer, of: setattr(of, "w2_precision_config", object()),
     "the method's w2_precision_config"),
    (lambda layer, of: setattr(layer, "workspace", torch.ones(1)),
     "the layer's workspace"),
    (lambda layer, of: setattr(of.moe_kernel, "size", 2), "in another way"),
    (lambda layer, of: setattr(of.moe_kernel, "scale", torch.ones(1)),
     "in another way")])
def test_what_processing_keeps_elsewhere_is_told(processed, change, says):
    loaded, before = processed
    layer = loaded["layer"].routed_experts
    change(layer, layer.quant_method)
    why = _kernels.why_kernels_differ(loaded, before)
    assert why.startswith("layer.routed_experts (GptOssMxfp4MoEMethod)")
    assert says in why
