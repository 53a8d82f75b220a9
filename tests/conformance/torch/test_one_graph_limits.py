"""Compiled modules: what one graph cannot do right is an error or is compiled in
pieces, code of one is not used for another, and passes may be cut short."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import (CountingBackend, fresh_compiler,  # noqa: E402
                       plenty_of_code)
from equal import assert_equal_outputs  # noqa: E402
from hoist.nn._run import passes, turns  # noqa: E402
from models import WIDTH, Block, Stack, TwiceInAPass, numbers  # noqa: E402
from sampled import sampled  # noqa: E402
from test_one_graph import (  # noqa: E402
    SAMPLED_WAYS, WARM, a_model, compiled, stages_of, tokens)
from torch import nn  # noqa: E402

pytestmark = pytest.mark.skipif(not hoist.nn._graph.compiled.can_wait(),
                                reason="needs torch 2.7")


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


def test_weights_that_leave_their_calls_are_an_error_and_then_right(
        hoistd, device):
    module = Looks(Returns).to(device).eval()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad(), fresh_compiler():
        expected = module(x)
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend="eager")
        code(x)  # This does not show it.
        with pytest.raises(hoist.FailedPrecondition, match="in pieces"):
            code(x)
        for _ in range(3):
            torch.testing.assert_close(code(x), expected)
        hoist.check(module)


def test_a_weight_that_is_read_outside_of_its_calls_is_true(hoistd, device):
    module = Looks().to(device).eval()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad(), fresh_compiler():
        expected = module(x, True)
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend="eager")
        for _ in range(WARM):
            code(x)  # These do not show it.
        for _ in range(4):  # The weight is read on the CPU then.
            torch.testing.assert_close(code(x, True), expected)
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


@pytest.mark.parametrize("way", SAMPLED_WAYS)
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


@pytest.mark.parametrize("way", SAMPLED_WAYS)
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


@pytest.mark.parametrize("way", SAMPLED_WAYS)
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


@pytest.mark.parametrize("way", sampled(["whole", "in place"], "whole"))
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


@pytest.mark.parametrize("way", sampled(["whole", "in place", "function"],
                                        "in place"))
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
    refuse, take_over = passes.refuse_training, turns.Turns._take_over
    began: list[int] = []
    looked = threading.Event()

    def look(self: turns.Turns) -> None:
        take_over(self)
        looked.set()

    def slow(*args: Any) -> None:
        began.append(len(began))
        if len(began) <= 2:  # Two wait, for certain.
            looked.clear()
            assert looked.wait(60)
        refuse(*args)

    monkeypatch.setattr(passes, "refuse_training", slow)
    monkeypatch.setattr(turns.Turns, "_take_over", look)
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


def test_freezing_is_refused_by_what_it_is(hoistd, device):
    """inductor's constants are copies, which nothing stages."""
    from torch._inductor import config
    module, ids = a_model(device), tokens(device)
    with torch.no_grad(), fresh_compiler():
        expected = module(ids)
        hoist.attach(module, 0.6)
        code = torch.compile(module)
        with config.patch(freezing=True):
            for _ in range(WARM + 1):
                with pytest.raises(hoist.FailedPrecondition,
                                   match="freezing"):
                    code(ids)
        assert_equal_outputs(module(ids), expected)
        hoist.check(module)
        hoist.detach(module)
