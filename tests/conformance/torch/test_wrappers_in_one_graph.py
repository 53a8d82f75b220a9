"""Compiled modules whose weights are wrappers (torchao's Int8 and Float8, and a
wrapper in a wrapper): one graph, which makes them of the staged bytes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import fresh_compiler, plenty_of_code  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist.nn._tensors import rebuilt  # noqa: E402
from sampled import sampled  # noqa: E402
from subclasses import (  # noqa: E402
    TORCHAO, WIDTH, Stack, inner_tensors, nested)
from test_one_graph import (  # noqa: E402
    WARM, WAYS, compiled, graphs, inductor, stages_of)
from test_subclasses import first_line, linears  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

pytestmark = pytest.mark.skipif(not rebuilt.is_possible(),
                                reason="needs torch 2.11")
KINDS = ["nested", "int8", "float8 e4m3"]


def make(kind: str, device: torch.device, blocks: int = 6,
         cls: type[nn.Module] = Stack) -> Any:
    """Without biases: no plain weight tells one code from another."""
    torch.manual_seed(1)
    module = cls(torch.float32 if kind == "nested" else torch.bfloat16, blocks)
    module = module.to(device).requires_grad_(False)
    for one in linears(module):
        one.bias = None
    if kind == "nested":
        for one in linears(module):
            nested(one)
        return module
    pytest.importorskip("torchao")
    try:
        TORCHAO[kind](module)
    except Exception as error:  # torchao's own, of any kind.
        pytest.skip(f"torchao: {first_line(error)}")
    return module


def numbers(kind: str, device: torch.device) -> torch.Tensor:
    return torch.randn(4, WIDTH, device=device, dtype=torch.float32
                       if kind == "nested" else torch.bfloat16)


def assert_true(module: nn.Module, own: list[torch.Tensor]) -> None:
    found = [inner for one in linears(module)
             for inner in inner_tensors(one.weight)]
    assert_equal_outputs([one.to(own[0].device) for one in found], own)


def own_of(module: nn.Module) -> list[torch.Tensor]:
    return [inner.clone() for one in linears(module)
            for inner in inner_tensors(one.weight)]


# Of one graph by inductor, leaves once: what differs by them, eager shows.
@pytest.mark.parametrize("backend, groups, way", sampled([
    *(("eager", groups, way) for groups in ("block", "leaf") for way in WAYS),
    *(pytest.param("inductor", groups, way, marks=inductor.marks)
      for groups, way in (*(("block", way) for way in WAYS),
                          ("leaf", "whole")))],
    ("eager", "leaf", "blocks"), ("eager", "block", "in place"),
    ("inductor", "block", "blocks")))
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_one_graph_and_are_compiled_once(hoistd, device, kind, way,
                                                  backend, groups):
    x = numbers(kind, device)
    with fresh_compiler(), torch.no_grad():
        plain = make(kind, device)
        expected = plain(x)
        expected_compiled = compiled(plain, way, backend)(x).clone()
    with fresh_compiler(), torch.no_grad():
        module = make(kind, device)
        own = own_of(module)
        hoist.attach(module, 0.5, groups=groups)
        code = compiled(module, way, backend)
        counters.clear()
        assert_equal_outputs(code(x), expected)
        assert graphs() == 0
        found = code(x).clone()
        if backend == "eager":
            assert_equal_outputs(found, expected)
        else:  # Kernels end where groups do, and so may be others.
            torch.testing.assert_close(found, expected_compiled, rtol=2e-2,
                                       atol=2e-2)
        warm = graphs()
        for _ in range(4):
            again, stages = stages_of(code, x)
            assert_equal_outputs(again, found)
            assert_true(module, own)
        assert graphs() == warm <= (3 if way == "blocks" else 1)
        stats = hoist.stats(module)
        assert stages == stats.groups - stats.bound_groups > 2
        assert stats.unplanned == stats.skipped == 0
        assert not counters["graph_break"]
        hoist.check(module)
        hoist.detach(module)
        torch.testing.assert_close(code(x), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("config", sampled(TORCHAO, "int8 dynamic", "intx int4"))
def test_each_that_torch_compiles_alone_is_one_graph(hoistd, device, config):
    x = numbers(config, device)
    with fresh_compiler(), torch.no_grad():
        plain = make(config, device, 4)
        try:
            expected = compiled(plain, "whole")(x)
        except Exception as error:
            pytest.skip(f"the resident one is not: {first_line(error)}")
    with fresh_compiler(), torch.no_grad():
        module = make(config, device, 4)
        hoist.attach(module, 0.6)
        code = compiled(module, "whole")
        for _ in range(WARM + 2):
            assert_equal_outputs(code(x), expected)
        hoist.check(module)


@pytest.mark.parametrize("kind, way", sampled([
    *((kind, way) for kind in KINDS for way in ("whole", "blocks")),
    ("nested", "in place")],  # Its guards are those of the whole.
    ("nested", "blocks"), ("int8", "blocks")))
def test_code_of_others_is_not_used(hoistd, device, kind, way):
    """Nor theirs for others: no guard of torch's sees a hook."""
    x = numbers(kind, device)
    with fresh_compiler(), torch.no_grad(), plenty_of_code():
        module = make(kind, device)
        code = compiled(module, way)
        expected = code(x)
        for budget, groups in ((0.6, "block"), (0.5, "leaf"), (1.0, "block"),
                               (0.5, ("block", 2))):
            hoist.attach(module, budget, groups=groups)
            for _ in range(WARM + 2):
                assert_equal_outputs(code(x), expected)
            hoist.set_budget(module, 0.8)
            for _ in range(WARM + 2):
                assert_equal_outputs(code(x), expected)
            hoist.check(module)
            hoist.detach(module)
            assert_equal_outputs(code(x), expected)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_that_breaks_leaves_nothing_in_the_module(hoistd, device, kind,
                                                          groups, error):
    def stop(*_: Any) -> None:
        torch._dynamo.graph_break()
        if fails:
            raise error

    fails = False
    x = numbers(kind, device)
    with fresh_compiler(), torch.no_grad():
        module = make(kind, device)
        expected, own = module(x), own_of(module)
        for layer in module.layers:
            layer.up.register_forward_hook(stop)
        try:
            assert_equal_outputs(torch.compile(module, backend="eager")(x),
                                 expected)
        except torch._dynamo.exc.InternalTorchDynamoError as failed:
            pytest.skip(f"of the resident one, torch: {first_line(failed)}")
        torch._dynamo.reset()
        hoist.attach(module, 0.5, groups=groups)
        code = torch.compile(module, backend="eager")
        for _ in range(WARM + 2):
            assert_equal_outputs(code(x), expected)
            assert_true(module, own)
        if error is not None:
            fails = True
            with pytest.raises(error):
                code(x)
            fails = False
            hoist.set_budget(module, 0.6)
            assert_true(module, own)
        for _ in range(WARM + 2):
            assert_equal_outputs(code(x), expected)
            assert_true(module, own)
        hoist.check(module)


def test_one_that_is_read_outside_of_its_calls_is_true(hoistd, device):
    class Looks(Stack):
        def forward(self, x: torch.Tensor, looks: bool = False) -> torch.Tensor:
            kept = []
            for layer in self.layers:
                x = layer(x)
                if looks:
                    kept.append(self.layers[0].up.weight.inner.raw.sum())
            return x, kept

    x = numbers("nested", device)
    with fresh_compiler(), torch.no_grad():
        module = make("nested", device, cls=Looks)
        expected = module(x), module(x, True)
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend="eager")
        for _ in range(WARM + 1):
            assert_equal_outputs(code(x)[0], expected[0][0])
        for _ in range(3):
            try:
                assert_equal_outputs(code(x, True), expected[1])
            except hoist.FailedPrecondition as error:
                assert "in pieces" in str(error)
        assert_equal_outputs(code(x, True), expected[1])


def test_what_is_put_in_their_place_is_computed_with(hoistd, device):
    x = numbers("nested", device)
    with fresh_compiler(), torch.no_grad():
        module = make("nested", device)
        expected = module(x)
        other = make("nested", device).layers[3].up
        nested(other)
        given = {"layers.3.up.weight": other.weight}
        wanted = torch.func.functional_call(module, given, (x,))
        assert not torch.equal(wanted, expected)
        hoist.attach(module, 0.5)
        code = torch.compile(module, backend="eager")
        for _ in range(WARM + 1):
            assert_equal_outputs(code(x), expected)
        for _ in range(2):
            assert_equal_outputs(
                torch.func.functional_call(code, {
                    f"_orig_mod.{name}": one for name, one in given.items()},
                    (x,)), wanted)
            assert_equal_outputs(code(x), expected)
        hoist.check(module)


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_other_threads_read_true_weights_in_the_middle_of_a_pass(
        hoistd, device, groups):
    """By leaf, hooks are operators of the blocks' code; by block, around it."""
    class Stops(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:4]:
                x = layer(x)
            if looks:
                thread = threading.Thread(target=look)
                thread.start()
                thread.join(60)
            for layer in self.layers[4:]:
                x = layer(x)
            return x

    def look() -> None:
        seen.append(own_of(module))

    x, seen, looks = numbers("nested", device), [], False
    with fresh_compiler(), torch.no_grad():
        module = make("nested", device, cls=Stops)
        expected, own = module(x), own_of(module)
        hoist.attach(module, 0.5, groups=groups)
        compiled(module, "blocks")
        counters.clear()
        for _ in range(WARM + 1):
            assert_equal_outputs(module(x), expected)
        assert 0 < graphs() <= 3
        looks = True
        assert_equal_outputs(module(x), expected)
        (found,) = seen
        assert_equal_outputs([one.to(device) for one in found], own)
        hoist.check(module)


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_a_call_that_is_not_compiled_leaves_others_their_weights(
        hoistd, device, groups):
    """Of a block within a pass of compiled ones."""
    x, seen = numbers("nested", device), []
    with fresh_compiler(), torch.no_grad():
        module = make("nested", device)
        expected, own = module(x), own_of(module)
        hoist.attach(module, 0.5, groups=groups)
        for at in (0, 2, 3, 5):
            module.layers[at].compile(backend="eager", fullgraph=True)
        for _ in range(WARM + 1):
            assert_equal_outputs(module(x), expected)
            assert_true(module, own)
        look = module.layers[4].register_forward_pre_hook(
            lambda *_: seen.append(own_of(module.layers[1])))
        assert_equal_outputs(module(x), expected)
        look.remove()
        assert len(seen) == 1
        assert_equal_outputs([one.to(device) for one in seen[0]], own[4:8])
        hoist.check(module)
