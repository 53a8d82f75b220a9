"""Quantised weights that are tensor subclasses are taken apart, stored as plain
tensors, and put together once."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import CountingBackend, fresh_compiler  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from sampled import sampled  # noqa: E402
from subclasses import (  # noqa: E402
    TORCHAO, WIDTH, ManyBytes, Opaque, Packed, Scaled, Stack, inner_tensors,
    nested)
from torch import nn  # noqa: E402

# One of each layout that a CPU has operators for.
OFTEN = ("float8 e4m3", "int8 dynamic", "intx int3 groups",
         "int4 tiles by hand", "nvfp4")


def quantised(config: str, device: torch.device) -> Stack:
    """Skips what torchao cannot make here, and says torchao's reason."""
    pytest.importorskip("torchao")
    module = Stack(torch.bfloat16).to(device).requires_grad_(False)
    try:
        TORCHAO[config](module)
    except Exception as error:  # torchao's own, of any kind.
        pytest.skip(f"torchao: {first_line(error)}")
    kind = type(module.layers[0].up.weight)
    assert kind not in (nn.Parameter, torch.Tensor), "nothing was quantised"
    return module


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def linears(module: nn.Module) -> list[nn.Linear]:
    return [one for one in module.modules() if isinstance(one, nn.Linear)]


@pytest.mark.parametrize("config", sampled(TORCHAO, *OFTEN))
def test_a_torchao_linear_equals_the_resident(hoistd, device, config):
    module = quantised(config, device)
    x = torch.randn(32, WIDTH, dtype=torch.bfloat16, device=device)
    with torch.no_grad():
        try:
            expected = module(x)
        except Exception as error:
            pytest.skip(f"torchao has no kernel here: {first_line(error)}")
        hoist.attach(module, 0.6)
        for _ in range(3):
            assert_equal_outputs(module(x), expected)
        assert hoist.stats(module).streamed_bytes > 0
        hoist.check(module)
        hoist.detach(module)
        assert_equal_outputs(module(x), expected)


@pytest.mark.parametrize("config", sampled(TORCHAO, *OFTEN))
def test_a_torchao_weight_is_whole_in_every_pass(hoistd, device, config):
    made = linears(quantised(config, device))
    before = [(type(one.weight), vars(one.weight).keys(),
               [inner.clone() for inner in inner_tensors(one.weight)])
              for one in made]
    module = ManyBytes(made)
    del made
    hoist.attach(module, 0.6)
    for _ in range(3):
        for (_, _, expected), got in zip(before, module()):
            assert_equal_outputs(got, expected)
            assert {one.device.type for one in got} == {device.type}
    hoist.detach(module)
    for (kind, attributes, expected), layer in zip(before, module.layers):
        assert type(layer.weight) is kind
        assert vars(layer.weight).keys() == attributes
        assert_equal_outputs(list(inner_tensors(layer.weight)), expected)


@pytest.mark.parametrize("config", ["float8 e4m3", "int8", "intx int4",
                                    "nvfp4", "mx fp8", "int4 plain by hand"])
def test_an_idle_torchao_weight_has_its_type_and_true_bytes(hoistd, device,
                                                            config):
    module = quantised(config, device)
    weight = module.layers[1].up.weight
    kind, shape = type(weight), weight.shape
    expected = [one.clone() for one in inner_tensors(weight)]
    del weight
    hoist.attach(module, 0.6)
    idle = module.layers[1].up.weight
    assert type(idle) is kind and idle.shape == shape
    assert_equal_outputs([one.clone() for one in inner_tensors(idle)],
                         expected)


def nested_stack(device: torch.device) -> Stack:
    module = Stack().to(device).requires_grad_(False)
    for one in linears(module):
        nested(one)
    return module


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_a_subclass_in_a_subclass_is_rebuilt_with_its_context(
        hoistd, device, groups):
    module = nested_stack(device)
    x = torch.randn(3, WIDTH, device=device)
    expected = module(x)
    assert torch.isfinite(expected).all() and expected.abs().max() > 0
    hoist.attach(module, 0.6, groups=groups)
    seen = []
    module.layers[2].up.register_forward_pre_hook(
        lambda one, args: seen.append(one.weight))
    for _ in range(3):
        assert_equal_outputs(module(x), expected)
    for weight in seen:
        assert type(weight) is Scaled and type(weight.inner) is Packed
        assert weight.shift == 0.001
    hoist.detach(module)
    assert type(module.layers[2].up.weight.inner) is Packed
    assert_equal_outputs(module(x), expected)


def test_an_outer_subclass_stores_only_the_innermost_tensors(hoistd, device,
                                                             session):
    module = nested_stack(device)
    hoist.attach(module, 0.6)
    model = session.model(hoist.stats(module).model)
    names = {info.name for info in model["layers.0"].tensors}
    assert names == {
        "layers.0.up.weight.inner.raw", "layers.0.up.weight.scale",
        "layers.0.up.bias", "layers.0.down.weight.inner.raw",
        "layers.0.down.weight.scale", "layers.0.down.bias"}


def test_a_subclass_is_asked_for_no_copy_and_for_no_pinning(hoistd, device):
    module = nested_stack(device)
    x = torch.randn(3, WIDTH, device=device)
    module(x)
    Scaled.operators.clear()
    module(x)
    of_a_pass = set(Scaled.operators)
    assert of_a_pass
    Scaled.operators.clear()
    hoist.attach(module, 0.6)
    for _ in range(3):
        module(x)
    with hoist.stage(module):
        pass
    hoist.detach(module)
    detach = torch.ops.aten.detach.default  # What nn.Parameter() asks for.
    assert Scaled.operators - of_a_pass <= {detach}


def test_a_wrapper_that_does_not_flatten_is_refused_by_name(hoistd, device):
    module = Stack().to(device).requires_grad_(False)
    x = torch.randn(3, WIDTH, device=device)
    weight = nn.Parameter(Opaque(torch.randn(WIDTH, 2 * WIDTH, device=device)),
                          requires_grad=False)
    module.layers[1].down.weight = weight
    expected = module(x)
    with pytest.raises(hoist.Unimplemented, match="Opaque.*exclude"):
        hoist.attach(module, 0.6)
    assert module.layers[1].down.weight is weight
    assert_equal_outputs(module(x), expected)
    hoist.attach(module, 0.9, exclude=[r"^layers\.1\.down$"])
    assert module.layers[1].down.weight is weight
    assert_equal_outputs(module(x), expected)


class Watch:
    """What a layer's weight is, each time that the layer runs."""

    def __init__(self, layer: nn.Linear) -> None:
        self.places: set[tuple[int, ...]] = set()
        self.objects: list[Any] = []
        self.runs = 0
        layer.register_forward_pre_hook(self)

    def __call__(self, layer: nn.Linear, args: Any) -> None:
        self.runs += 1
        self.places.add(tuple(
            one.data_ptr() for one in inner_tensors(layer.weight)))
        if not any(ref() is layer.weight for ref in self.objects):
            self.objects.append(weakref.ref(layer.weight))


KINDS = {"plain": lambda device: Stack().to(device).requires_grad_(False),
         "nested": nested_stack,
         "float8": lambda device: quantised("float8 e4m3", device),
         "int8": lambda device: quantised("int8", device)}


@pytest.mark.parametrize("idle", ["cpu", "slot"])
@pytest.mark.parametrize("kind", KINDS)
def test_data_pointers_and_objects_stay_for_a_thousand_stagings(
        hoistd, device, kind, idle):
    module = KINDS[kind](device)
    dtype = module.layers[0].up.bias.dtype
    x = torch.randn(2, WIDTH, dtype=dtype, device=device)
    expected = module(x)
    hoist.attach(module, 0.6, idle=idle)
    for _ in range(3):
        module(x)  # It learns the order, once.
    watches = [Watch(layer.up) for layer in module.layers]
    before = hoist.stats(module)
    for _ in range(250):
        out = module(x)
    gc.collect()
    after = hoist.stats(module)
    assert_equal_outputs(out, expected)
    assert after.stages - before.stages == 1000
    assert after.streamed_bytes > 0 and after.unplanned == before.unplanned
    for watch in watches:
        assert watch.runs == 250
        assert len(watch.places) == 1
        assert len(watch.objects) == 1
        assert watch.objects[0]() is not None


@pytest.mark.parametrize("kind", ["nested", "float8", "int8"])
def test_compiled_subclasses_are_not_recompiled_after_warm_up(
        hoistd, device, kind):
    module = KINDS[kind](device)
    x = torch.randn(2, WIDTH, dtype=module.layers[0].up.bias.dtype,
                    device=device)
    with fresh_compiler(), torch.no_grad():
        expected = torch.compile(module, backend="aot_eager")(x)
        torch._dynamo.reset()
        hoist.attach(module, 0.6, idle="slot")
        counting = CountingBackend()
        compiled = torch.compile(module, backend=counting)
        for _ in range(3):
            assert_equal_outputs(compiled(x), expected)
        warm = counting.compilations
        assert warm > 0
        for _ in range(10):
            assert_equal_outputs(compiled(x), expected)
        assert counting.compilations == warm
