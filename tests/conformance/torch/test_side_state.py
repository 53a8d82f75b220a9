"""What quantisers keep beside parameters comes along: bitsandbytes' scales and
codes, GGUF's types."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes, tensors_in  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 128


class Rows(nn.Module):
    """Pairs of what `make` makes, in blocks."""

    def __init__(self, make: Callable[[int, int], nn.Module],
                 blocks: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(make(WIDTH, 2 * WIDTH), nn.ReLU(),
                          make(2 * WIDTH, WIDTH)) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def four_bits(device: torch.device, kind: str, double: bool,
              repacked: bool = False) -> nn.Module:
    """repacked: where bitsandbytes' first pass on a CPU turns the weights into
    another form, let it."""
    bnb = pytest.importorskip("bitsandbytes")
    module = Rows(lambda inner, outer: bnb.nn.Linear4bit(
        inner, outer, quant_type=kind, compress_statistics=double,
        compute_dtype=torch.bfloat16))
    for layer in module.modules():
        if not repacked and hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    return module.eval().requires_grad_(False).to(device)


def eight_bits(device: torch.device, threshold: float = 6.0) -> nn.Module:
    bnb = pytest.importorskip("bitsandbytes")
    module = Rows(lambda inner, outer: bnb.nn.Linear8bitLt(
        inner, outer, has_fp16_weights=False, threshold=threshold))
    return module.eval().requires_grad_(False).to(device)


def an_input(device: torch.device) -> torch.Tensor:
    return torch.randn(3, WIDTH, dtype=torch.bfloat16, device=device)


def attach_and_compare(module: nn.Module, x: torch.Tensor, expected: Any,
                       **options: Any) -> None:
    """Three passes, and three at every other place that bytes can lie at."""
    hoist.attach(module, 0.6, **options)
    assert hoist.stats(module).streamed_bytes > 0
    for budget in (0.6, 1.0, 0.7):
        hoist.set_budget(module, budget)
        for _ in range(3):
            assert_equal_outputs(module(x), expected, f"budget {budget}")
    hoist.check(module)


@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes_four_bits_equal_the_resident(hoistd, device, kind,
                                                   double):
    module, x = four_bits(device, kind, double), an_input(device)
    kept = module.layers[1][0].weight.quant_state
    assert kept.nested is double and (kept.state2 is not None) is double
    stored = [one.clone() for one in tensors_in(vars(kept))]
    expected = module(x)
    attach_and_compare(module, x, expected)
    hoist.detach(module)
    state = module.layers[1][0].weight.quant_state
    assert state.blocksize == kept.blocksize and state.shape == kept.shape
    assert_equal_outputs(list(tensors_in(vars(state))), stored)
    assert_equal_outputs(module(x), expected)


@pytest.mark.parametrize("ran", [True, False], ids=["after a pass", "fresh"])
def test_weights_that_bitsandbytes_repacks_equal_the_resident(hoistd, device,
                                                              ran):
    torch.manual_seed(3)
    module, x = four_bits(device, "nf4", True, repacked=True), an_input(device)
    torch.manual_seed(3)
    expected = (module if ran else four_bits(device, "nf4", True, True))(x)
    attach_and_compare(module, x, expected)
    hoist.detach(module)
    assert_equal_outputs(module(x), expected)


def test_a_four_bit_state_is_on_the_device_and_shared_with_the_module(
        hoistd, device):
    module, x = four_bits(device, "nf4", True), an_input(device)
    module(x)
    hoist.attach(module, 0.6)
    seen = []

    def look(layer: nn.Module, args: Any) -> None:
        state = layer.weight.quant_state
        seen.append((
            layer.quant_state is state,
            {one.device.type for one in tensors_in(vars(state))},
            state.state2 is not None and isinstance(
                state.state2.absmax, torch.Tensor),
            type(layer.weight).__name__, layer.weight.quant_type))

    for block in module.layers:
        block[0].register_forward_pre_hook(look)
    module(x)
    assert seen == [(True, {device.type}, True, "Params4bit", "nf4")] * 4


def test_four_bit_scales_and_codes_are_hoists_too(hoistd, device, session):
    module = four_bits(device, "nf4", True)
    before = sum(one.nbytes for one in state_tensors(module))
    assert before > 0
    hoist.attach(module, 0.6)
    names = {info.name for group in session.model(hoist.stats(module).model)
             for info in group.tensors}
    for part in ("absmax", "code", "offset", "state2.absmax", "state2.code"):
        assert f"layers.2.0.weight.quant_state.{part}" in names


def state_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    for one in module.modules():
        if hasattr(one, "quant_state"):
            yield from tensors_in(vars(one.quant_state))


@pytest.mark.parametrize("threshold", [6.0, 0.0])
@pytest.mark.parametrize("ran", [True, False], ids=["after a pass", "fresh"])
def test_bitsandbytes_eight_bits_equal_the_resident(hoistd, device, threshold,
                                                    ran):
    torch.manual_seed(3)
    module, x = eight_bits(device, threshold), an_input(device)
    if ran:
        expected = module(x)
    else:
        torch.manual_seed(3)
        expected = eight_bits(device, threshold)(x)
    scales = expected_scales(module)
    attach_and_compare(module, x, expected)
    seen = []
    module.layers[3][0].register_forward_hook(lambda layer, args, out: (
        seen.append((layer.state.SCB.clone(), layer.state.CB.clone(),
                     layer.weight.data.clone(), layer.state.CB.device.type))))
    module(x)
    (scb, cb, data, where), = seen
    assert where == device.type
    assert same_bytes(cb, data) and same_bytes(scb, scales)
    idle = module.layers[3][0].state
    assert same_bytes(idle.SCB, scales) and same_bytes(idle.CB, cb)
    hoist.detach(module)
    assert same_bytes(module.layers[3][0].state.SCB, scales)
    assert_equal_outputs(module(x), expected)


def expected_scales(module: nn.Module) -> torch.Tensor:
    layer = module.layers[3][0]
    found = layer.weight.SCB if layer.state.SCB is None else layer.state.SCB
    return found.clone()


@pytest.fixture
def gguf_module(device: torch.device) -> Callable[[str], nn.Module]:
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("diffusers")
    import numpy
    from diffusers.quantizers.gguf import utils

    def make(kind: str) -> nn.Module:
        quantisation = getattr(gguf.GGMLQuantizationType, kind)
        generator = numpy.random.default_rng(0)

        def linear(inner: int, outer: int) -> nn.Module:
            made = utils.GGUFLinear(inner, outer,
                                    compute_dtype=torch.float32)
            values = generator.standard_normal(
                (outer, inner), dtype=numpy.float32) / 8
            made.weight = utils.GGUFParameter(
                torch.from_numpy(gguf.quantize(values, quantisation)),
                quant_type=quantisation)
            return made

        return Rows(linear).requires_grad_(False).to(device)
    return make


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "BF16"])
def test_gguf_weights_keep_type_and_shape(hoistd, device, gguf_module, kind):
    module = gguf_module(kind)
    x = torch.randn(3, WIDTH, device=device)
    expected = module(x)
    assert torch.isfinite(expected).all()
    before = module.layers[2][0].weight
    facts = (type(before), before.quant_type, before.quant_shape,
             before.shape, before.dtype)
    del before
    seen = []

    def look(layer: nn.Module, args: Any) -> None:
        weight = layer.weight
        seen.append((type(weight), weight.quant_type, weight.quant_shape,
                     weight.shape, weight.dtype))

    module.layers[2][0].register_forward_pre_hook(look)
    attach_and_compare(module, x, expected)
    assert set(seen) == {facts}
    hoist.detach(module)
    after = module.layers[2][0].weight
    assert (type(after), after.quant_type, after.quant_shape, after.shape,
            after.dtype) == facts
    assert_equal_outputs(module(x), expected)
