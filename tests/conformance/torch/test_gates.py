"""The common ways into a group and out of it, in C, do what Python's do."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from typing import Any, Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist import _hot  # noqa: E402
from hoist.nn._run.hooks import Begin  # noqa: E402
from hoist.nn._show.states import IDLE, Staged  # noqa: E402
from hoist.nn._tensors import lent  # noqa: E402
from hoist.nn._tree import layout  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")

WARM = 4  # Passes, until the order is learned and all addresses are known.
BUDGET = "300KiB"  # Of 792: nothing but two blocks' ring.


class Counted:
    """The fronts of a module's hooks; how often Python was not asked, and was."""

    def __init__(self, model: nn.Module) -> None:
        self.entered: list[bool] = []  # All of a call's groups.
        self.left: list[bool] = []
        self.stages = 0
        fast = _hot.fast()
        for one in model.modules():
            for hooks, kind, ask, book in (
                    (one._forward_pre_hooks, fast.Entry, "_begin", self.entered),
                    (one._forward_hooks, fast.Exit, "_end", self.left)):
                for key, front in hooks.items():
                    if type(front) is kind:
                        hooks[key] = self._counting(front, ask, book)

    def _counting(self, front: Any, ask: str, book: list[bool]) -> Any:
        hook = front.hook
        python = getattr(type(hook), ask).__get__(hook)

        def asked(*given: Any) -> Any:
            book[-1] = False
            return python(*given)

        setattr(hook, ask, asked)

        def call(*given: Any) -> Any:
            book.append(True)
            answer = front(*given)
            if book is self.entered and book[-1]:
                self.stages += sum(type(one.state) is Staged for one in hook.groups)
            return answer

        call.hook = hook
        return call


@pytest.fixture(autouse=True)
def extension() -> None:
    if _hot.fast() is None:
        pytest.skip("there is no hoist._fast, or $HOIST_PURE_PYTHON is 1")


@pytest.fixture(params=["leaf", "block", "parts of a block"])
def model(request: Any, device: Any, monkeypatch: Any) -> Iterator[nn.Module]:
    torch.manual_seed(0)
    groups = request.param
    if groups == "parts of a block":
        monkeypatch.setattr(layout, "_LARGE", 8 << 10)
        groups = "block"
    made = Stack().to(device).requires_grad_(False)
    with torch.no_grad():
        made.expected = [made(inputs(device))]
    hoist.attach(made, BUDGET, groups=groups)
    for _ in range(WARM):
        run(made)
    yield made
    hoist.detach(made)


def inputs(device: Any) -> torch.Tensor:
    return numbers(2, WIDTH).to(device)


def run(model: nn.Module) -> None:
    device = model._hoist.parts[0].torch_device
    with torch.no_grad():
        assert_equal_outputs([model(inputs(device))], model.expected)


def begins(model: nn.Module) -> list[Begin]:
    return [hook.hook for one in model.modules()
            for hook in one._forward_pre_hooks.values()
            if isinstance(getattr(hook, "hook", None), Begin)]


def test_each_streamed_group_has_its_gate(model):
    gates = Counted(model)
    before = hoist.stats(model).stages
    for _ in range(3):
        run(model)
    streamed = hoist.stats(model).stages - before
    assert all(gates.entered) and all(gates.left)
    assert len(gates.entered) == len(gates.left)
    assert gates.stages == streamed >= 9


def test_gradients_take_pythons_way(model, device):
    x = inputs(device).requires_grad_(True)
    gates = Counted(model)
    grads = []
    for _ in range(3):
        for _ in range(2):  # A backward may have renewed the plan.
            gates.entered.clear()
            run(model)
        assert all(gates.entered)
        gates.entered.clear()
        out = model(x)
        assert not any(gates.entered)
        out.sum().backward()
        grads.append(x.grad)
        x.grad = None
        assert_equal_outputs([out.detach()], model.expected)
        gates.entered.clear()
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])


def test_a_group_without_a_usual_way_is_pythons(model, device):
    """Once it is as usual again, so is its way."""
    gates = Counted(model)
    first = begins(model)[0].groups[0]
    for unusual in ("told", "pointers", "foreign"):
        run(model)
        gates.entered.clear()
        module = next(place.module for place in first.spec.weights[0].places)
        key = first.spec.weights[0].places[0].key
        if unusual == "told":
            getattr(module, key).requires_grad_(False)
        elif unusual == "pointers":
            getattr(module, key).data_ptr()
        else:
            kept = getattr(module, key)
            module._parameters[key] = nn.Parameter(
                kept.to(device).clone(), requires_grad=False)
        run(model)
        assert False in gates.entered
        if unusual == "foreign":
            module._parameters[key] = kept
        for _ in range(3):
            gates.entered.clear()
            run(model)
        assert all(gates.entered)


class Refusing:
    """A plan's calls for one group that libhoist refuses."""

    def __init__(self, plan: Any, call: str, group: int,
                 error: BaseException) -> None:
        self._plan, self._name = plan, call
        self._call: Callable[..., Any] = getattr(plan, call)
        self._group, self._error = group, error

    def __enter__(self) -> None:
        setattr(self._plan, self._name, self._refuse)

    def __exit__(self, *_: object) -> None:
        setattr(self._plan, self._name, self._call)

    def _refuse(self, group: int, stream: Any) -> Any:
        if group != self._group:
            return self._call(group, stream)
        if self._name == "_done":
            self._call(group, stream)
        raise self._error


@pytest.mark.parametrize("call", ["_stage", "_done"])
@pytest.mark.parametrize("error", [
    hoist.FailedPrecondition, hoist.Unavailable, hoist.DeadlineExceeded,
    KeyboardInterrupt])
def test_a_refusal_leaves_what_python_leaves(model, call, error):
    plan = model._hoist.parts[0].plan
    hooks = begins(model)
    passes = hooks[0].passes
    around = passes._around
    trace = around.trace

    def refused(group: int) -> Any:
        with Refusing(plan, call, group, error("no")):
            try:
                run(model)
                raised = None
            except BaseException as found:
                raised = type(found), str(found), found.__cause__
        turns = passes.turns
        return (raised, turns.held, turns._depth, passes.current,
                [(type(one.state), one.state.running, one.state.holds)
                 for one in passes._groups])

    for at in {0, len(hooks) // 2, len(hooks) - 1}:
        group = next(one.staged.index for one in hooks[at].groups
                     if not one.bound)
        found = []
        for pythons in (True, False):
            around.trace = lambda _: trace(pythons)
            run(model)
            found.append(refused(group))
            for _ in range(2):
                run(model)
        assert found[0] == found[1]
    del around.trace
    gates = Counted(model)
    for _ in range(2):
        run(model)
    assert all(gates.entered[-len(hooks):])


def test_an_error_in_forward_leaves_what_python_leaves(model, device):
    gates = Counted(model)
    layer = model.layers[3]
    layer.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        run(model)
    del layer.forward
    passes = begins(model)[0].passes
    assert passes.turns.held == passes.turns._depth == 0
    assert not any(group.is_in_plans_place for group in passes._groups)
    gates.entered.clear()
    run(model)
    assert all(gates.entered)


def test_a_view_that_outlives_its_forward_is_refused(model):
    kept = []
    layer = model.layers[3].up
    handle = layer.register_forward_hook(
        lambda module, *_: kept.append(module.weight.detach()))
    gates = Counted(model)
    with pytest.raises(hoist.FailedPrecondition, match="a view of .*up.weight"):
        run(model)
    assert any(gates.entered)
    handle.remove()
    kept.clear()
    for _ in range(3):
        gates.entered.clear()
        run(model)
    assert all(gates.entered)


def test_the_extension_reads_torchs_counts_itself():
    assert lent.asked is None


class GivesItsWeight(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.weight


def test_a_weight_that_is_returned_is_a_copy(device):
    torch.manual_seed(0)
    layers = nn.ModuleList(GivesItsWeight(WIDTH, WIDTH) for _ in range(4))
    layers.forward = lambda x: [layer(x) for layer in layers]
    layers.to(device).requires_grad_(False)
    expected = [tuple(one.clone() for one in pair)
                for pair in layers(inputs(device))]
    hoist.attach(layers, 2 * WIDTH * (WIDTH + 1) * 4 + 8192, groups="leaf")
    with torch.no_grad():
        for _ in range(WARM):
            for found, pair in zip(layers(inputs(device)), expected):
                assert_equal_outputs(list(found), list(pair))
    hoist.detach(layers)


@pytest.mark.only_emulated("a process that has used CUDA cannot use it in its "
                           "child")
def test_a_child_of_a_fork_gets_no_turn(model):
    """Also within a pass, whose turn it has a copy of."""
    codes = []

    def fork(_: nn.Module, args: Any) -> None:
        child = os.fork()
        if child:
            codes.append(os.waitpid(child, 0)[1])
            return
        try:
            model.layers[4](*args)
        except hoist.FailedPrecondition:
            os._exit(0)
        except BaseException:
            os._exit(1)
        os._exit(2)

    layer = model.layers[3]
    handle = layer.register_forward_pre_hook(fork)
    run(model)
    handle.remove()
    assert codes == [0]


def test_threads_take_turns(model):
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                run(model)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors
    assert begins(model)[0].passes.turns.held == 0


def test_no_references_stay(device):
    def use() -> list[weakref.ref[Any]]:
        made = Stack().to(device).requires_grad_(False)
        hoist.attach(made, BUDGET, groups="leaf")
        with torch.no_grad():
            for _ in range(WARM + 2):
                made(inputs(device))
        group = begins(made)[0].groups[0]
        assert group.binding.gate is not None
        return [weakref.ref(one) for one in (
            made, group, group.binding, group.part, group.part.plan,
            made.layers[0].up._parameters["weight"])]

    shared = (IDLE, None, torch.is_grad_enabled, hoist.HoistError)
    counts = []
    for _ in range(6):
        gone = use()
        gc.collect()
        assert [one() for one in gone] == [None] * len(gone)
        counts.append([sys.getrefcount(one) for one in shared])
    assert counts[2][0] == counts[-1][0]
    assert counts[2][2:] == counts[-1][2:]
    assert abs(counts[2][1] - counts[-1][1]) < 200
