"""Compiled modules: equal to the compiled resident, compiled once; and CUDA
graphs that hold stagings."""

from __future__ import annotations

import shutil
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import CountingBackend, fresh_compiler  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import WIDTH, Block, Stack, Transformer, numbers  # noqa: E402
from passes import attached, group_names  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

Backend = Any


def whole(module: nn.Module, backend: Backend) -> Callable[..., Any]:
    return torch.compile(module, backend=backend)


def in_place(module: nn.Module, backend: Backend) -> Callable[..., Any]:
    module.compile(backend=backend)
    return module


def blocks_in_place(module: nn.Module, backend: Backend) -> Callable[..., Any]:
    for block in module.layers:
        block.compile(backend=backend)
    return module


def blocks_wrapped(module: nn.Module, backend: Backend) -> Callable[..., Any]:
    for at, block in enumerate(module.layers):
        module.layers[at] = torch.compile(block, backend=backend)
    return module


WAYS = {"whole": whole, "in place": in_place,
        "blocks in place": blocks_in_place, "blocks": blocks_wrapped}


def a_model(device: torch.device) -> nn.Module:
    torch.manual_seed(5)
    return Transformer(4).to(device).eval()


def tokens(device: torch.device) -> torch.Tensor:
    return torch.arange(14, device=device).reshape(2, 7)


def compiled_resident(device: torch.device, way: Any,
                      backend: Backend = "aot_eager") -> torch.Tensor:
    with fresh_compiler():
        return way(a_model(device), backend)(tokens(device))


@pytest.mark.parametrize("idle", ["cpu", "slot"])
@pytest.mark.parametrize("way", WAYS)
def test_attached_then_compiled_equals_and_is_compiled_once(hoistd, device,
                                                            way, idle):
    with torch.no_grad():
        expected = compiled_resident(device, WAYS[way])
        with fresh_compiler():
            check_compiled(WAYS[way], idle, True, device, expected)


@pytest.mark.parametrize("idle", ["cpu", "slot"])
@pytest.mark.parametrize("way", WAYS)
def test_compiled_then_attached_equals_and_is_compiled_once(hoistd, device,
                                                            way, idle):
    with torch.no_grad():
        expected = compiled_resident(device, WAYS[way])
        with fresh_compiler():
            check_compiled(WAYS[way], idle, False, device, expected)


def check_compiled(way: Any, idle: str, attach_first: bool,
                   device: torch.device, expected: torch.Tensor) -> None:
    module, counting = a_model(device), CountingBackend()
    if attach_first:
        hoist.attach(module, 0.8, idle=idle)
        compiled = way(module, counting)
    else:
        compiled = way(module, counting)
        hoist.attach(module, 0.8, idle=idle)
    for _ in range(4):  # Warm-up: the order is learned, too.
        assert_equal_outputs(compiled(tokens(device)), expected, "warm-up")
    warm = counting.compilations
    before = hoist.stats(module)
    for _ in range(20):
        assert_equal_outputs(compiled(tokens(device)), expected)
    assert counting.compilations == warm > 0
    after = hoist.stats(module)
    assert after.passes - before.passes == 20
    assert after.streamed_bytes > 0 and after.unplanned == before.unplanned
    hoist.check(module)


@pytest.mark.parametrize("idle", ["cpu", "slot"])
def test_a_new_budget_does_not_recompile_more_than_once(hoistd, device, idle):
    with torch.no_grad(), fresh_compiler():
        module, counting = a_model(device), CountingBackend()
        expected = module(tokens(device))
        hoist.attach(module, 0.8, idle=idle)
        compiled = torch.compile(module, backend=counting)
        for _ in range(4):
            compiled(tokens(device))
        first = counting.compilations
        for budget in (1.0, 0.8, 0.9, 0.8):
            hoist.set_budget(module, budget)
            for _ in range(3):
                assert_equal_outputs(compiled(tokens(device)), expected)
        assert counting.compilations <= 2 * first


def test_after_detach_compiled_code_uses_the_own_weights(hoistd, device):
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        expected = module(tokens(device))
        hoist.attach(module, 0.8)
        compiled = torch.compile(module, backend="aot_eager")
        assert_equal_outputs(compiled(tokens(device)), expected)
        hoist.detach(module)
        for block in module.layers:
            block.up.bias.zero_()
        changed = module(tokens(device))
        assert not torch.equal(changed, expected)
        assert_equal_outputs(compiled(tokens(device)), changed)


@pytest.mark.skipif(shutil.which("c++") is None
                    and shutil.which("g++") is None,
                    reason="inductor needs a C++ compiler for CPU code")
@pytest.mark.parametrize("way", sampled(
    ["whole", "blocks in place", "blocks"], "blocks in place"))
def test_inductors_code_equals_the_residents(hoistd, device, way):
    def make() -> nn.Module:
        torch.manual_seed(5)
        return Stack(3, 32).to(device).eval()

    x = numbers(2, 5, 32).to(device)
    with torch.no_grad():
        plain = make()(x)
        with fresh_compiler():
            # By blocks in every case: how much is fused must not differ.
            expected = blocks_in_place(make(), "inductor")(x)
        with fresh_compiler():
            module, counting = make(), CountingBackend("inductor")
            hoist.attach(module, 0.8, idle="slot")
            compiled = WAYS[way](module, counting)
            # It runs as it is written until the order is known.
            assert_equal_outputs(compiled(x), plain, "first")
            for _ in range(3):
                assert_equal_outputs(compiled(x), expected, "warm-up")
            warm = counting.compilations
            for _ in range(5):
                assert_equal_outputs(compiled(x), expected)
            assert counting.compilations == warm > 0


@pytest.mark.only_cuda("CUDA graphs")
@pytest.mark.parametrize("idle", ["cpu", "slot"])
def test_a_captured_pass_is_replayed_between_ordinary_ones(hoistd, device,
                                                           idle):
    torch.manual_seed(5)
    module = nn.Sequential(*(Block() for _ in range(6))).to(device).eval()
    inputs = [numbers(4, WIDTH, seed=seed).to(device) for seed in range(4)]
    x = inputs[0].clone()
    with torch.no_grad():
        expected = [module(one) for one in inputs]
        hoist.attach(module, 0.6, idle=idle)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                module(x)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        assert hoist.stats(module).streamed_bytes > 0
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = module(x)
        for at in (1, 2, 3):
            x.copy_(inputs[at])
            graph.replay()
            torch.cuda.synchronize()
            assert_equal_outputs(out, expected[at], f"replay {at}")
            assert_equal_outputs(module(inputs[0]), expected[0],
                                 f"pass after replay {at}")
    torch.cuda.synchronize()
    hoist.check(module)


def test_a_plan_that_a_graph_was_captured_with_is_not_made_anew(
        hoistd, device, monkeypatch):
    """Item 20: though a later pass stages what it does not have."""
    from hoist.nn._api.attachment import attachment_of
    from hoist.nn._show.device_part import DevicePart

    torch.manual_seed(0)
    model = Stack(4).to(device)
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = model(x)
        for captures in (False, True):
            with attached(model, 1.0):
                order = group_names(model)
            with attached(model, 1.0, order=order[1:]):
                part = attachment_of(model).parts[0]
                plan = part.plan.info.id
                with monkeypatch.context() as patch:
                    patch.setattr(DevicePart, "is_capturing",
                                  lambda _: captures)
                    model.layers[1](x)
                for _ in range(2):
                    assert torch.equal(model(x), expected)
                assert (part.plan.info.id == plan) == captures


@pytest.mark.parametrize("call", ["attach", "look-alike"])
def test_a_compiled_module_comes_back_as_it_was_given(hoistd, device, call):
    with torch.no_grad(), fresh_compiler():
        compiled = torch.compile(a_model(device), backend="aot_eager")
        expected = compiled(tokens(device))
        if call == "attach":
            assert hoist.attach(compiled, 0.9) is compiled
        else:
            assert hoist.compat.cpu_offload(compiled, budget=0.9) is compiled
        assert_equal_outputs(compiled(tokens(device)), expected)
        with hoist.stage(compiled) as same:
            assert same is compiled
        if call == "attach":
            assert hoist.detach(compiled) is compiled
        else:
            hoist.compat.remove_hook_from_submodules(compiled)
        with pytest.raises(hoist.NotFound):
            hoist.stats(compiled)
        assert_equal_outputs(compiled(tokens(device)), expected)


def test_a_compiled_module_is_loaded_by_the_names_of_what_it_compiles(
        hoistd, device, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    with torch.no_grad(), fresh_compiler():
        resident = a_model(device)
        safetensors.save_model(resident, tmp_path / "a.safetensors")
        compiled = torch.compile(
            hoist.nn._store.building.build_on_meta(lambda: Transformer(4)).eval(),
            backend="aot_eager")
        assert hoist.load(compiled, tmp_path, 0.9) is compiled
        assert_equal_outputs(compiled(tokens(device)),
                             resident(tokens(device)))
