"""Compiled modules in one graph: staging is a part of the code, and what the
code cannot do right is an error or is compiled in pieces."""

from __future__ import annotations

import operator
import shutil
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import CountingBackend, fresh_compiler  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from families import FAMILIES  # noqa: E402
from hoist.nn import _passes, _turns  # noqa: E402
from models import (WIDTH, Block, Sometimes, Stack, Transformer,  # noqa: E402
                    TwiceInAPass, numbers)
from test_families import smallest  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

pytestmark = pytest.mark.skipif(not hoist.nn._compiled.can_wait(),
                                reason="needs torch 2.7")
inductor = pytest.param("inductor", marks=pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None,
    reason="inductor needs a C++ compiler for CPU code"))
WAYS = ("whole", "in place", "blocks")
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


def plenty_of_code() -> Any:
    """One function may be compiled more often than is sensible."""
    return torch._dynamo.config.patch(recompile_limit=64)


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


@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("way", ["whole", "in place"])
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
@pytest.mark.parametrize("family, groups", [
    *((family, "block") for family in ("llama", "qwen3_moe", "bert", "t5",
                                       "flux", "sd3", "wan", "unet")),
    *((family, "leaf") for family in ("qwen3_moe", "bert", "sd3", "unet"))])
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


@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("way", WAYS)
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
@pytest.mark.parametrize("backend", ["eager", inductor])
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


# What a compiler cannot do right.


class Returns(Block):
    """A view of its weight, beside what it computes."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.up.bias.view(-1)


class Looks(nn.Module):
    """At the weight of a block that is not running, when it is told to."""

    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.layers = nn.ModuleList(block() for _ in range(6))

    def forward(self, x: torch.Tensor, looks: bool = False) -> torch.Tensor:
        bias = 0.0
        for layer in self.layers:
            x = layer(x)
            if isinstance(x, tuple):
                x, view = x
                bias = bias + view.sum()
        if looks:
            bias = self.layers[0].up.weight.sum()
        return x + bias


@pytest.mark.parametrize("what", ["a view is returned", "read elsewhere"])
def test_weights_that_leave_their_calls_are_an_error_and_then_right(
        hoistd, device, what):
    module = Looks(Returns if what == "a view is returned" else Block)
    module = module.to(device).eval()
    args = (numbers(2, WIDTH).to(device), what == "read elsewhere")
    with torch.no_grad(), fresh_compiler():
        expected = module(*args)
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend="eager")
        for _ in range(1 if what == "a view is returned" else WARM):
            code(args[0])  # These do not show it.
        with pytest.raises(hoist.FailedPrecondition, match="in pieces"):
            code(*args)
        for _ in range(3):  # The weight is read on the CPU then.
            torch.testing.assert_close(code(*args), expected)
        hoist.check(module)


def test_a_view_that_is_kept_is_an_error(hoistd, device):
    class Keeps(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if keeps:
                self.turned = self.up.weight.t()
            return super().forward(x)

    keeps = False
    module = nn.Sequential(*(Keeps() for _ in range(6))).to(device).eval()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad(), fresh_compiler():
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend="eager")
        for _ in range(WARM):
            code(x)
        keeps = True
        with pytest.raises(hoist.FailedPrecondition, match="view"):
            code(x)


@pytest.mark.parametrize("way", WAYS)
def test_a_compiler_that_copies_weights_is_given_pieces(hoistd, device, way):
    ids = tokens(device)
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        expected = module(ids)
        hoist.attach(module, 0.7)
        code = compiled(module, way, CountingBackend("aot_eager"))
        if way != "blocks":  # Their hooks are in the graph.
            code = compiled(module, way, "aot_eager")
            code(ids)
            with pytest.raises(torch._dynamo.exc.Unsupported):
                code(ids)
            module.compile(backend="aot_eager")
            code = module
        for _ in range(WARM + 2):
            assert_equal_outputs(code(ids), expected)
        hoist.check(module)


def test_a_block_that_runs_twice_in_a_row_breaks_the_graph(hoistd, device):
    """One stage does for both calls: a graph would have two."""
    with torch.no_grad(), fresh_compiler():
        module = TwiceInAPass().to(device).eval()
        x = numbers(2, WIDTH).to(device)
        expected = module(x)
        hoist.attach(module, 0.8)
        code = torch.compile(module, backend="eager")
        seen = [stages_of(code, x) for _ in range(WARM + 3)]
        assert all(torch.equal(found, expected) for found, _ in seen)
        assert len({stages for _, stages in seen[1:]}) == 1


# Code of one is not used for another: hooks are guarded by nobody.


@pytest.mark.parametrize("way", WAYS)
def test_code_that_was_compiled_without_hooks_is_not_used_with_them(
        hoistd, device, way):
    ids = tokens(device)
    with torch.no_grad(), fresh_compiler(), plenty_of_code():
        module = a_model(device)
        code = compiled(module, way)
        expected = code(ids)
        for budget, groups in ((0.7, "block"), (0.5, "leaf"), (1.0, "block"),
                               (0.6, ("block", 2))):
            hoist.attach(module, budget, groups=groups)
            for _ in range(WARM + 2):
                assert_equal_outputs(code(ids), expected)
            hoist.check(module)
            hoist.detach(module)
            assert_equal_outputs(code(ids), expected)


def test_parts_that_were_compiled_in_other_groups_are_not_used(hoistd, device):
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x) + 1

    x = numbers(2, WIDTH).to(device)
    with torch.no_grad(), fresh_compiler(), plenty_of_code():
        module = nn.Sequential(*(Half() for _ in range(6))).to(device).eval()
        for half in module:
            half.block.compile(backend="eager")
        expected = module(x)
        for groups in ("block", "leaf", "block", "leaf"):
            hoist.attach(module, 0.5, groups=groups)
            for _ in range(WARM + 2):
                assert_equal_outputs(module(x), expected)
            hoist.detach(module)


# Passes that do not go as usual.


def stance() -> str:
    return str(torch._dynamo.eval_frame._stance.stance)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_fails_leaves_the_next_one_right(hoistd, device, way):
    ids = tokens(device)
    wrong = torch.full_like(ids, 7).float()
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        expected = module(ids)
        hoist.attach(module, 0.7)
        code = compiled(module, way)
        for _ in range(WARM + 1):
            with pytest.raises(Exception):
                code(wrong)
            assert stance() == "default"
            assert_equal_outputs(code(ids), expected)
            assert stance() == "default"
            state = module.state_dict()["layers.3.up.weight"]
            assert not state.is_meta
        hoist.check(module)


class CutShort(Stack):
    """Between two blocks, once it is told to."""

    error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:3]:
            x = layer(x)
        error, self.error = self.error, None
        if error is not None:
            raise error
        for layer in self.layers[3:]:
            x = layer(x)
        return x


@pytest.mark.parametrize("then", ["call", "set_budget", "stage"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_weights_are_true_after_a_pass_that_was_cut_short(hoistd, device, error,
                                                          then):
    """Torch calls no hooks then, and all weights are shown in their slots."""
    with torch.no_grad(), fresh_compiler():
        module = CutShort(6).to(device).eval()
        own = {name: one.clone() for name, one in module.named_parameters()}
        x = numbers(2, WIDTH).to(device)
        expected = module(x)
        hoist.attach(module, 0.5)
        compiled(module, "blocks")
        for _ in range(WARM + 1):
            assert_equal_outputs(module(x), expected)
        module.error = error
        with pytest.raises(error):
            module(x)
        for name, one in module.state_dict().items():
            assert torch.equal(one.to(device), own[name]), name
        if then == "call":
            assert_equal_outputs(module(x), expected)
        elif then == "set_budget":
            hoist.set_budget(module, 0.6)
        else:
            with hoist.stage(module.layers[0]):
                pass
        for name, one in module.named_parameters():
            assert torch.equal(one.to(device), own[name]), name
        assert_equal_outputs(module(x), expected)
        hoist.check(module)


@pytest.mark.parametrize("way", ["whole", "in place"])
def test_threads_take_turns(hoistd, device, way):
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        inputs = [tokens(device) + at for at in range(3)]
        expected = [module(one) for one in inputs]
        hoist.attach(module, 0.7)
        code = compiled(module, way)
        for _ in range(WARM):
            code(inputs[0])
    wrong: list[Any] = []

    def work(at: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    assert_equal_outputs(code(inputs[at]), expected[at])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    hoist.check(module)


@pytest.mark.parametrize("way", ["whole", "in place", "function"])
def test_a_pass_that_is_slow_to_begin_is_nobody_elses(hoistd, device, way,
                                                      monkeypatch):
    """Who waits looks whether the other still runs; it has not called any code
    of the module yet."""
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        x = tokens(device)
        expected = module(x)
        hoist.attach(module, 0.7)
        if way == "function":
            code = torch.compile(lambda x: module(x), backend="eager")
        else:
            code = compiled(module, way)
        for _ in range(WARM):
            code(x)
    refuse, take_over = _passes.refuse_training, _turns.Turns._take_over
    began: list[int] = []
    looked = threading.Event()

    def look(self: _turns.Turns) -> None:
        take_over(self)
        looked.set()

    def slow(*args: Any) -> None:
        began.append(len(began))
        if len(began) <= 2:  # Two wait, for certain.
            looked.clear()
            assert looked.wait(60)
        refuse(*args)

    monkeypatch.setattr(_passes, "refuse_training", slow)
    monkeypatch.setattr(_turns.Turns, "_take_over", look)
    wrong: list[Any] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(2):
                    assert_equal_outputs(code(x), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(began) == 6
    hoist.check(module)


def test_compiled_code_of_a_block_by_itself_is_right(hoistd, device):
    with torch.no_grad(), fresh_compiler():
        module = Stack().to(device).eval()
        x = numbers(2, WIDTH).to(device)
        one, whole = module.layers[4](x), module(x)
        hoist.attach(module, 0.5)
        compiled(module, "blocks")
        for _ in range(WARM + 1):
            assert_equal_outputs(module(x), whole)
        for layer in module.layers:
            layer.compile(backend="eager")  # Without fullgraph.
        for _ in range(2):
            assert_equal_outputs(module.layers[4](x), one)
            assert_equal_outputs(module(x), whole)


def test_attached_compiled_and_detached_by_turns(hoistd, device):
    """compile() before and after attach; detach leaves torch's own there."""
    ids = tokens(device)
    with torch.no_grad(), fresh_compiler():
        module = a_model(device)
        expected = module(ids)
        hoist.attach(module, 0.7)
        module.compile(backend="eager", fullgraph=True)
        assert_equal_outputs(module(ids), expected)
        module.compile(backend="eager", fullgraph=True)  # Again.
        for _ in range(WARM):
            assert_equal_outputs(module(ids), expected)
        hoist.detach(module)
        assert "compile" not in vars(module)
        assert not hasattr(module._compiled_call_impl, "instead_of")
        assert_equal_outputs(module(ids), expected)
        hoist.attach(module, 0.7)
        for _ in range(WARM + 1):
            assert_equal_outputs(module(ids), expected)
        hoist.check(module)


# CUDA graphs.


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Of compiled code and what runs as it is written."""
    torch.testing.assert_close(found.clone(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.only_cuda("CUDA graphs")
@pytest.mark.parametrize("way", ["whole", "in place"])
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
