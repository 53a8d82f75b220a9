"""What stays on the device: bound once, nothing at its calls, bytes that hold
for as long as anybody looks at them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from hoist.nn._show import tree  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import (assert_passes, attached, hooks_of,  # noqa: E402
                    least_budget, make, references)
from real_daemon import MIB  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")
NAMES = ["stack", "transformer", "twice", "nested", "shared", "image"]


def frames_of_hoist(work: Any) -> set[str]:
    """The files of the package that run meanwhile, on this thread."""
    found: set[str] = set()

    def look(frame: Any, event: str, _: Any) -> None:
        if "/python/hoist/" in frame.f_code.co_filename:
            found.add(frame.f_code.co_filename)

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("groups", ["block", "leaf", ("block", 2)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_hoist_runs_in_a_pass_that_is_all_there(device, name,
                                                           groups):
    case, model = make(name)
    expected = references(case, model, device)
    with attached(model, groups=groups):
        assert_passes(case, model, device, expected)  # Inputs are there.
        stats = hoist.stats(model)
        assert stats.bound_groups == stats.groups
        assert hooks_of(model) == 0
        with torch.no_grad():
            assert not frames_of_hoist(lambda: case.run(model, device, 0))
        assert_passes(case, model, device, expected)
    assert_passes_alone(case, model, device, expected)


def assert_passes_alone(case: Any, model: nn.Module, device: torch.device,
                        expected: list[Any]) -> None:
    assert_equal_outputs(references(case, model, device), expected)


@pytest.mark.parametrize("name", NAMES)
def test_hooks_stand_at_what_comes_and_goes_alone(device, name):
    case, model = make(name)
    expected = references(case, model, device)
    whole = sum(value.nbytes for value in model.state_dict().values())
    with attached(model, max(least_budget(model), whole * 5 // 6)):
        for _ in range(3):
            assert_passes(case, model, device, expected)
        stats = hoist.stats(model)
        assert 0 < stats.bound_groups <= stats.groups
        for group in vars(model)["_hoist"].groups:
            if group.bound:
                for weight in group.spec.weights:
                    assert same_device(weight.value, device)
        before = stats.stages
        assert_passes(case, model, device, expected[:1])
        streamed = hoist.stats(model).stages - before
        assert (streamed > 0) == (stats.bound_groups < stats.groups)


def same_device(value: Any, device: torch.device) -> bool:
    return not isinstance(value, torch.Tensor) or (
        value.device.type == device.type)


def test_a_budget_is_set_back_and_forth(device):
    case, model = make("transformer")
    expected = references(case, model, device)
    least = least_budget(model)
    with attached(model):
        for budget in (least, 1.0, 0.6, 1.0, least):
            hoist.set_budget(model, budget)
            for _ in range(3):
                assert_passes(case, model, device, expected)
            stats = hoist.stats(model)
            assert (stats.bound_groups == stats.groups) == (budget == 1.0)
        with pytest.raises(hoist.ResourceExhausted):
            hoist.set_budget(model, 64)
        assert_passes(case, model, device, expected)


# A tensor that somebody holds keeps its bytes.


def scribble(hoistd: Any, device: torch.device) -> None:
    """Other weights lie wherever there is room on the device; there is no more
    of it than they take."""
    model = Stack(6, 256).eval()
    with attached(model, None, deadline=5), torch.no_grad():
        for _ in range(2):
            model(numbers(2, 256).to(device))
        assert hoist.stats(model).resident_bytes > 2 * MIB


@pytest.mark.hoistd(pool=8 * MIB)
@pytest.mark.parametrize("what", ["budget", "detach", "collected", "evicted"])
@pytest.mark.parametrize("how", ["weight", "view"])
def test_what_is_held_keeps_its_bytes(hoistd, device, what, how):
    case, model = make("stack")
    expected = references(case, model, device)
    own = model.layers[0].up.weight.detach().clone().to(device)
    hoist.attach(model)
    held = model.layers[0].up.weight
    if how == "view":
        held, own = held.t()[3:], own.t()[3:]
    assert held.device.type == device.type
    if what == "budget":
        hoist.set_budget(model, least_budget(Stack(6)))
        for _ in range(2):
            assert_passes(case, model, device, expected)
    elif what == "detach":
        hoist.detach(model)
    elif what == "collected":
        del model
        gc.collect()
    elif what == "evicted":
        name = hoist.stats(model).model
        with contextlib.suppress(subprocess.CalledProcessError):  # In use.
            hoistd.ctl("evict", name, "--tier", "device")
    scribble(hoistd, device)
    assert torch.equal(held, own)
    assert hoistd.tier("DEVICE")["leased_bytes"] > 0
    if what == "budget":
        assert_passes(case, model, device, expected)
    if what in ("budget", "evicted"):
        hoist.detach(model)
        scribble(hoistd, device)
        assert torch.equal(held, own)
    del held
    gc.collect()
    hoist.attach(Stack(2))  # What was let go of is given back by now.
    gc.collect()
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


# Writes.

WRITES = {
    "add_": lambda w: w.add_(1), "iadd": lambda w: w.__iadd__(1),
    "data": lambda w: w.data.mul_(2), "setitem": lambda w: w.__setitem__(0, 1),
    "assigned": lambda w: setattr(w, "data", torch.zeros_like(w)),
    "copied": lambda w: w.copy_(torch.zeros_like(w)),
    "init": lambda w: nn.init.normal_(w), "detached": lambda w:
    w.detach().zero_(), "set_": lambda w: w.set_(torch.zeros_like(w)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_is_refused(device, write):
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model):
        with torch.no_grad(), pytest.raises(hoist.FailedPrecondition,
                                            match="hoist.detach"):
            write(model.layers[1].down.weight)
        assert_passes(case, model, device, expected)


@pytest.mark.parametrize("budget", ["least", 1.0])
def test_arrays_of_it_are_read_only(device, budget):
    """What NumPy is given of a weight's memory, before passes and after."""
    np = pytest.importorskip("numpy")
    case, model = make("stack")
    model.requires_grad_(False)
    with attached(model, least_budget(model) if budget == "least" else 1.0):
        for _ in range(2):
            weight = model.layers[1].down.weight
            for one in (weight, weight.detach(), weight.data):
                if one.device.type != "cpu":
                    continue  # NumPy sees copies alone.
                for array in (one.numpy(), np.asarray(one)):
                    with pytest.raises(ValueError, match="read-only"):
                        array[0] = 1
            case.run(model, device, 0)


class Projects(nn.Module):
    """A method reads the root's own weights after a forward, as CLIP's do."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Stack(6)
        self.projection = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.shift = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) @ self.projection * self.scale.exp() + (
            self.shift * 2)


@torch.no_grad()
def test_a_roots_own_weights_are_on_the_device_outside_of_passes(device):
    model = Projects()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device).encode(x)
    with attached(model, least_budget(model)):
        for _ in range(3):
            for one in (model.projection, model.scale, model.shift):
                assert isinstance(one, hoist.nn._tensors.resident.ResidentParameter)
                assert one.device.type == device.type
            assert same_bytes(model.encode(x), expected)
            assert same_bytes(model(x), expected)


def test_it_is_a_parameter_like_any_other(device):
    _, model = make("stack")
    own = copy.deepcopy(model.state_dict())
    with attached(model):
        weight = model.layers[0].up.weight
        assert isinstance(weight, nn.Parameter) and weight.requires_grad
        assert "Parameter containing" in repr(weight)
        made = copy.deepcopy(weight)
        assert type(made) is nn.Parameter
        with torch.no_grad():
            made += 1  # Its own memory.
        for key, value in model.state_dict().items():
            assert same_bytes(value.cpu(), own[key].cpu()), key
        with pytest.raises(hoist.FailedPrecondition, match="cannot be repl"):
            model.layers[0].up.weight = nn.Parameter(torch.zeros(2))


def test_a_parameter_is_made_of_it(device):
    """Of the same bytes, which are kept, and as little to be written to."""
    _, model = make("stack")
    value = model.layers[0].up.weight.detach().clone()
    with attached(model):
        made = nn.Parameter(model.layers[0].up.weight)
        frozen = nn.Parameter(model.layers[0].up.weight, requires_grad=False)
        assert made.requires_grad and not frozen.requires_grad
        other = nn.Linear(1, 1, bias=False)
        other.weight = made
        with torch.no_grad(), pytest.raises(hoist.FailedPrecondition):
            other.weight.add_(1)
    for one in (other.weight, frozen):
        assert same_bytes(one.detach().cpu(), value.cpu())


class Detaches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.up.weight.detach(),
                                    self.up.bias.data)


@torch.no_grad()
def test_what_is_compiled_may_detach_it(device):
    model = nn.Sequential(Detaches(), Detaches()).to(device)
    x = numbers(2, WIDTH).to(device)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    expected = compiled(x)
    with attached(model, 1.0):
        assert_equal_outputs(compiled(x), expected)
        assert_equal_outputs(compiled(x), expected)


def test_a_cast_bias_is_no_other_value(device):
    """bitsandbytes assigns biases of its inputs' type in forward."""
    _, model = make("stack")
    with attached(model):
        bias = model.layers[0].up.bias
        bias.data = bias.data.to(torch.float16)
        assert model.layers[0].up.bias.dtype == torch.float16


# hoistd's end.


def test_a_module_that_is_all_there_goes_on_without_hoistd(make_hoistd,
                                                           device):
    """Its bytes are its own mapping's; and detach needs nobody."""
    daemon = make_hoistd()
    case, model = make("transformer")
    expected = references(case, model, device)
    own = {key: value.clone() for key, value in model.state_dict().items()}
    hoist.attach(model, stage_deadline=1.0)
    assert_passes(case, model, device, expected)
    daemon.kill()
    for _ in range(2):
        assert_passes(case, model, device, expected)
    with pytest.raises(hoist.Unavailable):
        hoist.set_budget(model, 0.5)
    assert_passes(case, model, device, expected)
    hoist.detach(model)
    for key, value in model.state_dict().items():
        assert same_bytes(value, own[key]), key
    assert_passes_alone(case, model, device, expected)


# What comes to the tree.


class Slices(nn.Module):
    """Each slice of a ModuleList registers its modules, as transformers'
    decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Stack(4).layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:3]:
            x = layer(x)
        return self.layers[3](x)


@torch.no_grad()
@pytest.mark.parametrize("part", [0.6, 1.0])
def test_a_pass_does_not_walk_the_tree(device, monkeypatch, part):
    model = Slices().eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    walks: list[int] = []
    visit = tree.Tree._visit
    with attached(model, part):
        for _ in range(2):
            assert_equal_outputs(model(x), expected)
        monkeypatch.setattr(tree.Tree, "_visit", lambda self: (
            walks.append(1), visit(self))[1])
        for _ in range(3):
            assert_equal_outputs(model(x), expected)
        assert not walks
        if part < 1.0:
            model.layers[1].more = nn.Linear(WIDTH, WIDTH)
            assert_equal_outputs(model(x), expected)
            assert len(walks) == 1
            assert model.layers[1].more.weight.device.type == device.type
            model.layers[1].more.inner = nn.Linear(2, 2)  # Known since then.
            assert_equal_outputs(model(x), expected)
            assert len(walks) == 2


# Threads.


@torch.no_grad()
def test_budgets_change_while_another_thread_runs(device):
    """It is in the middle of a pass, which nothing of hoist stands in."""
    model = Stack(6).eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    least = least_budget(model)
    inside, go_on = threading.Event(), threading.Event()
    outputs: list[torch.Tensor] = []

    def wait(*_: Any) -> None:
        inside.set()
        assert go_on.wait(60)

    @torch.no_grad()
    def run() -> None:
        outputs.append(model(x))

    with attached(model):
        assert_equal_outputs(model(x), expected)
        handle = model.layers[2].up.register_forward_pre_hook(wait)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert inside.wait(60)
        handle.remove()
        hoist.set_budget(model, least)
        go_on.set()
        thread.join(60)
        assert not thread.is_alive()
        assert_equal_outputs(outputs[0], expected)
        for _ in range(2):
            assert_equal_outputs(model(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("how", ["raised", "from outside"])
@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt,
                                 asyncio.CancelledError])
@pytest.mark.parametrize("what", ["pass", "detach", "budget"])
def test_a_thread_that_ends_within_a_pass_leaves_no_lock(device, end, what,
                                                         how):
    """Torch runs no hooks of a call that SystemExit leaves. From outside it
    comes anywhere, also in hoist's own code."""
    model = Stack(6).eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    hoist.attach(model, least_budget(model))
    assert_equal_outputs(model(x), expected)

    ended: list[bool] = []

    def leave(*_: Any) -> None:
        if how == "raised":
            raise end
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threading.get_ident()), ctypes.py_object(end))

    @torch.no_grad()
    def run() -> None:
        try:
            model(x)
        except end:
            ended.append(True)

    handle = model.layers[3].register_forward_pre_hook(leave)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert ended
    handle.remove()
    if what == "budget":
        hoist.set_budget(model, 0.7)
    if what != "detach":
        for _ in range(2):
            assert_equal_outputs(model(x), expected)
    hoist.detach(model)
    assert_equal_outputs(model.to(device)(x), expected)


# Compiled.


@torch.no_grad()
def test_what_is_all_there_compiles_to_one_graph(device):
    model = Stack(4).eval()
    x = numbers(2, WIDTH).to(device)
    with attached(model):
        model(x)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(3):
            assert torch.allclose(compiled(x), model(x), atol=1e-5)


# Traced.


def by_export(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.export.export(model, (x,)).module()


def by_trace(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.jit.trace(model, (x,))


def by_make_fx(model: nn.Module, x: torch.Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx
    return make_fx(model)(x)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trace", [by_export, by_trace, by_make_fx])
def test_a_trace_is_right_or_refused(device, trace):
    """It would keep addresses of a ring, and compute with what lies there."""
    model = Stack(4).eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    with attached(model, least_budget(model)):
        for _ in range(2):
            assert_equal_outputs(model(x), expected)
        with pytest.raises(hoist.FailedPrecondition, match="set_budget"):
            trace(model, x)
        with pytest.raises(hoist.FailedPrecondition, match="set_budget"):
            trace(model.layers[0], x)
        assert_equal_outputs(model(x), expected)  # It left nothing behind.
        hoist.set_budget(model, 1.0)
        model(x)
        try:
            assert_equal_outputs(trace(model, x)(x), expected)
        except TypeError as error:  # FX may know no subclass of Parameter.
            assert trace is by_export, error
            assert "Multiple dispatch failed" in str(error)
    assert_equal_outputs(trace(model.to(device), x)(x), expected)


@torch.no_grad()
def test_another_thread_may_compile_meanwhile(device):
    """torch.compiler.is_compiling() may be true of this one too, then: it is
    with torch 2.13."""
    model = Stack(4).eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    compiles, over = threading.Event(), threading.Event()

    def backend(graph: Any, inputs: Any) -> Any:
        compiles.set()
        assert over.wait(60)
        return graph.forward

    other = threading.Thread(
        target=torch.compile(lambda x: x + 1, backend=backend), args=(x,))
    with attached(model, least_budget(model)):
        other.start()
        assert compiles.wait(60)
        try:
            for _ in range(3):
                assert_equal_outputs(model(x), expected)
        finally:
            over.set()
            other.join()


@torch.no_grad()
@pytest.mark.parametrize("part", ["model", "block"])
def test_fake_tensors_are_refused_and_leave_nothing_behind(device, part):
    model = Stack(4).eval()
    own = {name: one.clone() for name, one in model.named_parameters()}
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    with attached(model, least_budget(model)):
        for _ in range(2):
            assert_equal_outputs(model(x), expected)
        with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(
                hoist.FailedPrecondition, match="fake tensors"):
            (model if part == "model" else model.layers[1])(x)
        for name, one in model.named_parameters():
            assert same_bytes(one.cpu(), own[name]), name
        assert_equal_outputs(model(x), expected)
        hoist.check(model)
