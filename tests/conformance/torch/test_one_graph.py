"""Compiled modules in one graph: staging is a part of the code."""

from __future__ import annotations

import operator
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import fresh_compiler  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from families import FAMILIES  # noqa: E402
from models import (WIDTH, Block, Sometimes, Stack, Transformer,  # noqa: E402
                    numbers)
from sampled import sampled  # noqa: E402
from test_families import smallest  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

pytestmark = pytest.mark.skipif(not hoist.nn._graph.compiled.can_wait(),
                                reason="needs torch 2.7")
inductor = pytest.param("inductor", marks=pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None,
    reason="inductor needs a C++ compiler for CPU code"))
WAYS = ("whole", "blocks", "in place")
SAMPLED_WAYS = sampled(WAYS, "whole")  # The first test has each.
# An order that was learned, then the first graph.
WARM = 2


def compiled(module: nn.Module, way: str, backend: Any = "eager",
             **options: Any) -> Any:
    """fullgraph=True, whichever way."""
    options = dict(backend=backend, fullgraph=True, **options)
    if way == "whole":
        return torch.compile(module, **options)
    for one in [module] if way == "in place" else module.layers:
        one.compile(**options)
    return module


def a_model(device: torch.device, blocks: int = 6) -> nn.Module:
    torch.manual_seed(5)
    return Transformer(blocks).to(device).eval()


def tokens(device: torch.device, length: int = 7) -> torch.Tensor:
    return torch.arange(2 * length, device=device).reshape(2, length) % 50


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def stages_of(module: nn.Module, *args: Any) -> tuple[Any, int]:
    """What a call gives, and how many stages it was."""
    root = getattr(module, "_orig_mod", module)
    before = hoist.stats(root).stages
    return module(*args), hoist.stats(root).stages - before


@pytest.mark.parametrize("backend", ["eager", inductor])
@pytest.mark.parametrize("way", WAYS)
def test_a_module_is_one_graph_and_is_compiled_once(hoistd, device, way,
                                                    backend):
    ids = tokens(device)
    with torch.no_grad(), fresh_compiler():
        plain = a_model(device)(ids)
        expected = compiled(a_model(device), way, backend)(ids)
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        hoist.attach(module, 0.7)
        code = compiled(module, way, backend)
        counters.clear()
        # What order groups come in is not known: it runs as it is written.
        assert_equal_outputs(code(ids), plain)
        assert graphs() == 0
        found = code(ids)
        if device.type == "cuda" and backend == "inductor":
            # Kernels end where groups do, and so are others.
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            expected = found.clone()
        assert_equal_outputs(found, expected)
        warm = graphs()
        streamed = None
        for _ in range(4):
            found, stages = stages_of(code, ids)
            assert_equal_outputs(found, expected)
            assert streamed in (None, stages)
            streamed = stages
        # The embedding's dimension is another than the blocks'.
        assert graphs() == warm <= (2 if way == "blocks" else 1)
        stats = hoist.stats(module)
        assert streamed == stats.groups - stats.bound_groups > 2
        assert stats.unplanned == stats.skipped == 0
        assert not counters["graph_break"]
        hoist.check(module)
        hoist.detach(module)
        torch.testing.assert_close(code(ids), expected, rtol=1e-4, atol=1e-4)


def hooks_of(module: nn.Module) -> list[Any]:
    return [hook for one in module.modules() for hooks in (
        one._forward_pre_hooks, one._forward_hooks) for hook in hooks.values()]


@pytest.mark.parametrize("way", SAMPLED_WAYS)
def test_no_hook_is_made_anew_by_a_pass(hoistd, device, way):
    """All modules would be gone through, while a GPU that has just ended a token
    waits for the next one."""
    ids = tokens(device)
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        hoist.attach(module, 0.7)
        code = compiled(module, way)
        for _ in range(WARM + 1):
            code(ids)
        before = hooks_of(module)
        code(ids)
        after = hooks_of(module)
        assert len(after) == len(before) > 4
        assert all(map(operator.is_, after, before))


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_blocks_that_are_alike_share_code(hoistd, device, groups):
    """Of more of them than torch compiles anything anew."""
    blocks = torch._dynamo.config.recompile_limit + 4
    with torch.no_grad(), fresh_compiler():
        module = Stack(blocks).to(device).eval()
        x = numbers(2, WIDTH).to(device)
        expected = module(x)
        hoist.attach(module, 0.4, groups=groups)
        compiled(module, "blocks")
        counters.clear()
        for _ in range(WARM + 2):
            assert_equal_outputs(module(x), expected)
        assert graphs() <= 3  # All of a block streams, none of it, or some.
        stats = hoist.stats(module)
        assert stats.groups - stats.bound_groups >= blocks / 2
        hoist.check(module)


def test_what_compiled_code_is_given_stays_what_it_is(hoistd, device):
    """A CUDA graph is recorded anew for anything else."""
    def given() -> list[Any]:
        return [None if group.operands is None else [
            one.data_ptr() for one in (
                group.operands.token, group.operands.tag,
                *group.operands.weights)] for group in vars(module)[
                    "_hoist"].groups]

    with torch.no_grad(), fresh_compiler():
        module = Stack(6).to(device).eval()
        x = numbers(2, WIDTH).to(device)
        hoist.attach(module, 0.5)
        code = compiled(module, "whole")
        for _ in range(WARM):
            code(x)
        before = given()
        assert sum(one is not None for one in before) > 2
        for call in (code, module, code, module, module, code):
            call(x)
            if call is code:
                assert given() == before
        hoist.set_budget(module, 0.6)
        code(x)
        token = next(one[0] for one in before if one is not None)
        assert all(one is None or one[0] != token for one in given())


@pytest.mark.parametrize("way", sampled(["whole", "in place"], "whole"))
def test_calls_one_after_another_share_a_stage(hoistd, device, way):
    """Of two blocks that are one group."""
    with torch.no_grad(), fresh_compiler():
        module = Stack(8).to(device).eval()
        x = numbers(2, WIDTH).to(device)
        expected = module(x)
        hoist.attach(module, 0.5, groups=("block", 2))
        code = compiled(module, way)
        counters.clear()
        seen = [stages_of(code, x) for _ in range(WARM + 3)]
        assert all(torch.equal(found, expected) for found, _ in seen)
        stats = hoist.stats(module)
        assert stats.groups == 4 and graphs() == 1
        assert {stages for _, stages in seen[WARM:]} == {
            4 - stats.bound_groups}
        assert stats.skipped == stats.unplanned == 0
        hoist.check(module)


# By leaf one of a kind: decoders, encoders, image transformers, convolutions.
@pytest.mark.parametrize("family, groups", sampled([
    *((family, "block") for family in ("llama", "qwen3_moe", "bert", "t5",
                                       "flux", "sd3", "wan", "unet")),
    *((family, "leaf") for family in ("qwen3_moe", "bert", "sd3", "unet"))],
    ("bert", "leaf")))
def test_a_family_is_one_graph(hoistd, device, family, groups):
    found = FAMILIES[family]
    way = found.ways["forward"]
    module = found.make().to(device)
    with torch.no_grad(), fresh_compiler():
        plain = way(module, device)
        try:
            expected = way(compiled(module, "whole"), device)
        except torch._dynamo.exc.Unsupported as error:
            pytest.skip(f"the resident one is not one graph: {error}"[:200])
    with torch.no_grad(), fresh_compiler():
        smallest(hoist.attach, module, groups=groups)
        code = compiled(module, "whole")
        counters.clear()
        assert_equal_outputs(way(code, device), plain)
        for turn in range(3):
            assert_equal_outputs(way(code, device), expected, f"pass {turn}")
        assert graphs() == 1
        stats = hoist.stats(module)
        assert stats.bound_groups < stats.groups
        hoist.check(module)


@pytest.mark.parametrize("way", SAMPLED_WAYS)
def test_with_grad_enabled_too_and_a_backward_raises(hoistd, device, way):
    """It would come to weights of hoist's that need gradients, or leave them
    out: what stays has none either."""
    ids = tokens(device)
    with fresh_compiler():
        module = a_model(device)
        expected = module(ids)
        hoist.attach(module, 0.7)
        code = compiled(module, way)
        for _ in range(WARM + 2):
            found = code(ids)
            assert_equal_outputs(found, expected)
            weights = [*module.parameters()]
            with pytest.raises(hoist.FailedPrecondition, match="exclude="):
                found.sum().backward()
            assert all(one.grad is None for one in weights)
        stats = hoist.stats(module)
        assert 0 < stats.bound_groups < stats.groups
        with torch.no_grad():
            assert_equal_outputs(code(ids), expected.detach())


@pytest.mark.parametrize("way", SAMPLED_WAYS)
def test_a_graph_over_frozen_weights_raises_or_is_right(hoistd, device, way):
    """What needs gradients is neither an input nor the module's, so no pass is
    told. Blocks are graphs by themselves, between which are hooks."""
    class Prompted(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + prompt)

    x = numbers(2, WIDTH).to(device)
    prompt = numbers(WIDTH, seed=1).to(device).requires_grad_()
    with fresh_compiler():
        module = Prompted().to(device).eval().requires_grad_(False)
        expected = module(x)
        gradient, = torch.autograd.grad(expected.sum(), prompt)
        hoist.attach(module, 0.5)
        code = compiled(module, way)
        for turn in range(WARM + 2):
            found = code(x)
            assert_equal_outputs(found, expected)
            if way == "blocks" or turn == 0:  # That runs as it is written.
                assert torch.equal(
                    torch.autograd.grad(found.sum(), prompt)[0], gradient)
                continue
            with pytest.raises(RuntimeError, match="modified by an inplace"):
                torch.autograd.grad(found.sum(), prompt)
        hoist.check(module)


@pytest.mark.parametrize("way", SAMPLED_WAYS)
def test_budgets_change_under_compiled_code(hoistd, device, way):
    ids = tokens(device)
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        expected = module(ids)
        hoist.attach(module, 0.7)
        code = compiled(module, way)
        for budget in (0.7, 1.0, 0.8, 0.6, 1.0, 0.7):
            hoist.set_budget(module, budget)
            for _ in range(3):
                assert_equal_outputs(code(ids), expected, f"{budget}")
        hoist.check(module)


def test_shapes_and_branches_that_come_later_are_graphs_of_the_same_plan(
        hoistd, device):
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        inputs = [tokens(device, length) for length in (7, 1, 4)]
        expected = [module(one) for one in inputs]
        hoist.attach(module, 0.7)
        code = compiled(module, "whole", dynamic=False)
        for _ in range(WARM):
            code(inputs[0])
        for at in (0, 1, 2, 1, 0, 0, 2):
            assert_equal_outputs(code(inputs[at]), expected[at])


def test_blocks_may_be_left_out_of_a_graph(hoistd, device):
    with torch.no_grad(), fresh_compiler():
        module = Sometimes().to(device).eval()
        x = numbers(2, WIDTH).to(device)
        ways: list[tuple[int, ...]] = [(), (1,), (2,)]
        expected = [module(x, out) for out in ways]
        hoist.attach(module, 0.5)
        code = compiled(module, "whole", dynamic=False)
        for _ in range(WARM):
            code(x)
        for at in (0, 1, 2, 1, 0):
            assert_equal_outputs(code(x, ways[at]), expected[at])
        hoist.check(module)


@pytest.mark.parametrize("too", [True, False])
@pytest.mark.parametrize("backend", sampled(["eager", inductor], "eager"))
def test_what_is_computed_with_a_weight_and_used_later_is_right(
        hoistd, device, backend, too):
    """A compiler puts it off until it is needed, when other weights lie there.
    too: it is also a part of what the block returns; else inductor may put it
    off beyond that, which is refused."""
    class Scaled(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled = torch.relu(x * self.norm.weight + self.norm.bias)
            aside.append(scaled)
            return super().forward(x + scaled if too else x) * self.down.bias

    class Asides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Scaled() for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            aside.clear()
            for layer in self.layers:
                x = layer(x)
            return x + sum(aside)

    aside: list[torch.Tensor] = []
    x = numbers(3, WIDTH).to(device)
    with torch.no_grad(), fresh_compiler():
        torch.manual_seed(0)
        module = Asides().eval()
        for value in module.parameters():  # No norm is like another.
            value.add_(torch.randn_like(value))
        module = module.to(device)
        expected = module(x)
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend=backend, fullgraph=too)
        refused = 0
        for _ in range(WARM + 4):
            try:
                found = code(x)
            except hoist.FailedPrecondition:
                refused += 1
                continue
            assert (found - expected).norm() < 1e-3 * expected.norm()
        assert refused <= (backend == "inductor" and not too)
        assert hoist.stats(module).bound_groups < 4
        hoist.check(module)


# CUDA graphs.


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Of compiled code and what runs as it is written."""
    torch.testing.assert_close(found.clone(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.only_cuda("CUDA graphs")
@pytest.mark.parametrize("way", sampled(["whole", "in place"], "whole"))
def test_replays_call_no_python_and_are_right(hoistd, device, way):
    inputs = [tokens(device) + at for at in range(4)]
    with torch.no_grad(), fresh_compiler():
        expected = [a_model(device)(one) for one in inputs]
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        hoist.attach(module, 0.7)
        code = compiled(module, way, "inductor",
                        options={"triton.cudagraphs": True})
        for _ in range(WARM + 3):
            torch.compiler.cudagraph_mark_step_begin()
            code(inputs[0])
        for at in (0, 1, 2, 3, 0, 2):
            torch.compiler.cudagraph_mark_step_begin()
            found, stages = stages_of(code, inputs[at])
            assert_close(found, expected[at])
            assert stages == 0
        hoist.set_budget(module, 0.6)  # It is recorded anew.
        for at in (0, 1, 2, 3, 0, 1, 2):
            torch.compiler.cudagraph_mark_step_begin()
            found, stages = stages_of(code, inputs[at])
            assert_close(found, expected[at])
        assert stages == 0
        torch.cuda.synchronize()
        hoist.check(module)


@pytest.mark.only_cuda("CUDA graphs")
def test_graphs_of_one_plan_are_replayed_in_any_order(hoistd, device):
    """As prefill and decode are, of several lengths."""
    inputs = [tokens(device, length) for length in (7, 1, 4)]
    with torch.no_grad(), fresh_compiler():
        expected = [a_model(device)(one) for one in inputs]
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        hoist.attach(module, 0.7)
        code = compiled(module, "whole", "inductor", dynamic=False,
                        options={"triton.cudagraphs": True})
        replayed = 0
        for _ in range(12):
            for at in (0, 1, 1, 2, 0, 2, 1):
                torch.compiler.cudagraph_mark_step_begin()
                found, stages = stages_of(code, inputs[at])
                assert_close(found, expected[at])
                replayed += not stages
        assert replayed > 50
        torch.cuda.synchronize()
        hoist.check(module)
