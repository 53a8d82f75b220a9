"""Ends that nobody announced: interrupts, failures half-way, modules that are
let go of, forks. Nothing hangs, nothing leaks, no weight is wrong."""

from __future__ import annotations

import gc
import os
import pathlib
import threading
import traceback
import weakref

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import (WIDTH, Block, Stack, Transformer, numbers)  # noqa: E402
from passes import assert_passes, attached, make, references  # noqa: E402
from real_daemon import until  # noqa: E402
from hoist.nn._show.binding import Binding  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.filterwarnings("error::ResourceWarning")]


class Trap(nn.Module):
    """Raises what it is told to, once."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return x


class Trapped(nn.Module):
    """Blocks with a trap after the second, and weights of its own."""

    def __init__(self, own: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.trap = Trap()
        if own:
            self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for at, layer in enumerate(self.layers):
            x = layer(x)
            if at == 1:
                x = self.trap(x)
        return x * self.scale if hasattr(self, "scale") else x


@pytest.fixture(params=["cpu", "slot"])
def idle(request):
    return request.param


def run_elsewhere(work) -> None:
    """Another thread can do it, too: nobody holds a lock."""
    failed: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for a lock"
    if failed:
        raise failed[0]


def plans_and_leases(hoistd) -> tuple[int, int]:
    """What is dropped is given back by messages that nobody waits for."""
    found = hoistd.tier("DEVICE")
    return found["leased_bytes"], found["pinned_bytes"]


# Passes that are cut short.


@torch.no_grad()
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_pass_that_is_cut_short_leaves_the_next_one_right(device, idle,
                                                            error):
    model = Trapped().eval()
    x = numbers(2, WIDTH).to(device)
    with attached(model, 0.6, idle=idle):
        expected = model(x)
        for _ in range(3):
            model.trap.error = error()
            with pytest.raises(error):
                model(x)
            assert_equal_outputs(model(x), expected)
        hoist.check(model)
        run_elsewhere(torch.no_grad()(lambda: assert_equal_outputs(
            model(x), expected)))


@torch.no_grad()
@pytest.mark.parametrize("then", ["detach", "set_budget", "stage"])
def test_after_an_interrupt_all_can_be_called_at_once(device, idle, then,
                                                      hoistd):
    """A notebook's Ctrl-C: torch calls no hook of the modules that ran."""
    model = Trapped().eval()
    own = {key: value.clone() for key, value in model.state_dict().items()}
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, 0.6, idle=idle)
    expected = model(x)
    model.trap.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    if then == "set_budget":
        hoist.set_budget(model, 0.9)
        assert_equal_outputs(model(x), expected)
    elif then == "stage":
        with hoist.stage(model):
            for key, value in model.state_dict().items():
                assert same_bytes(value, own[key]), key
        assert_equal_outputs(model(x), expected)
    hoist.detach(model)
    until(lambda: plans_and_leases(hoistd) == (0, 0))
    for key, value in model.state_dict().items():
        assert same_bytes(value, own[key]), key


@torch.no_grad()
def test_a_module_that_runs_is_neither_detached_nor_planned_anew(device):
    model = Trapped().eval()

    class Detaches(nn.Module):
        def forward(self, x):
            for change in (hoist.detach, lambda m: hoist.set_budget(m, 0.9)):
                with pytest.raises(hoist.FailedPrecondition,
                                   match="between passes"):
                    change(model)
            seen.append(x)
            return x

    seen: list[object] = []
    x = numbers(2, WIDTH).to(device)
    expected = model.to(device)(x)
    model.trap = Detaches()
    with attached(model, 0.6):
        assert_equal_outputs(model(x), expected)
        # Also when a block is called by itself.
        model.layers[0].register_forward_pre_hook(
            lambda *_: [Detaches()(x)] and None)
        model.layers[0](x)
    assert len(seen) == 2


@torch.no_grad()
def test_a_module_that_calls_itself_is_one_pass(device):
    class Recursive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(WIDTH))
            self.layers = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            x = self.layers[depth](x) * self.scale
            if depth:
                x = self(x, depth - 1) + self.layers[depth](x)
            return x - self.scale

    import copy
    model = Recursive().eval()
    whole = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    with attached(model, 0.6):
        for at in range(3):
            assert_equal_outputs(model(x), whole(x))
            assert hoist.stats(model).passes == at + 1
        run_elsewhere(torch.no_grad()(
            lambda: assert_equal_outputs(model(x), whole(x))))


# Failures half-way.


@torch.no_grad()
def test_a_group_that_fails_after_it_was_staged_is_ended(device, monkeypatch,
                                                         hoistd):
    """Memory runs out while views are built or weights are cast: the slot is
    given back, or the plan would wait for it."""
    case, model = make("stack")
    expected = references(case, model, device)
    build = Binding._build
    with attached(model, 0.4):
        assert_passes(case, model, device, expected)
        for fail_at in range(6):
            calls = []

            def fails(self, *args):
                calls.append(self)
                if len(calls) > fail_at:
                    raise MemoryError("none left")
                return build(self, *args)

            attachment = vars(model)["_hoist"]
            attachment.planning.forget_addresses(attachment.parts[0])
            monkeypatch.setattr(Binding, "_build", fails)
            with pytest.raises(MemoryError):
                case.run(model, device, 0)
            monkeypatch.setattr(Binding, "_build", build)
            assert_passes(case, model, device, expected)
        run_elsewhere(lambda: assert_passes(case, model, device, expected))
    until(lambda: plans_and_leases(hoistd) == (0, 0))


@torch.no_grad()
def test_an_error_of_hoistds_ends_a_pass_and_frees_other_threads(
        device, make_hoistd):
    daemon = make_hoistd()
    model = Trapped().eval()
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, 0.6, stage_deadline=5.0)  # It waits that long.
    model(x)
    daemon.kill()
    for _ in range(2):
        with pytest.raises(hoist.HoistError):
            for _ in range(3):
                model(x)
                hoist.check(model)

        def fails_here_too() -> None:
            with torch.no_grad(), pytest.raises(hoist.HoistError):
                model(x)
                hoist.check(model)

        run_elsewhere(fails_here_too)
    with pytest.raises(hoist.HoistError):
        hoist.detach(model)


def test_a_detach_that_fails_half_way_can_be_called_again(device, monkeypatch,
                                                          hoistd):
    case, model = make("transformer")
    own = {key: value.clone() for key, value in model.state_dict().items()}
    expected = references(case, model, device)
    hoist.attach(model, 0.6)
    calls = []
    right = Binding.private_weights

    def fails(self, devices):
        calls.append(self)
        if len(calls) == 4:
            raise hoist.ResourceExhausted("no space")
        return right(self, devices)

    monkeypatch.setattr(Binding, "private_weights", fails)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.detach(model)
    monkeypatch.undo()
    os.environ["HOIST_SOCKET"] = hoistd.socket
    assert_passes(case, model, device, expected)
    assert type(model.embed.weight) is not nn.Parameter
    hoist.detach(model)
    until(lambda: plans_and_leases(hoistd) == (0, 0))
    assert all(type(value) is nn.Parameter for value in model.parameters())
    for key, value in model.state_dict().items():
        assert same_bytes(value, own[key]), key


def test_an_attach_that_fails_at_its_end_undoes_all(monkeypatch, hoistd,
                                                    device):
    from hoist.nn._api import attachment
    case, model = make("transformer")
    expected = references(case, model, device)
    own = {key: value.clone() for key, value in model.state_dict().items()}
    hooks = [len(one._forward_hooks) for one in model.modules()]
    monkeypatch.setattr(attachment.registry, "watch_weights",
                        lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        hoist.attach(model, 0.6)
    monkeypatch.undo()
    assert [len(one._forward_hooks) for one in model.modules()] == hooks
    until(lambda: plans_and_leases(hoistd) == (0, 0))
    for key, value in model.state_dict().items():
        assert same_bytes(value, own[key]), key
    assert_equal_outputs(references(case, model, device), expected)
    with pytest.raises(hoist.NotFound):
        hoist.stats(model)


# Modules that are let go of.


@torch.no_grad()
def test_a_module_that_is_dropped_gives_everything_back(device, hoistd):
    """Pinned leases, the plan, and the memory of what was looked at."""
    model = Transformer().eval()
    model.head = nn.Linear(WIDTH, 50)
    model.head.weight = model.embed.weight
    hoist.attach(model, 0.9)
    assert hoist.stats(model).pinned_bytes > 0
    model(torch.zeros(1, 3, dtype=torch.long, device=device))
    model.layers[0].up.weight.sum()
    assert plans_and_leases(hoistd)[0] > 0
    gone = [weakref.ref(one) for one in model.modules()]
    gone.append(weakref.ref(vars(model)["_hoist"]))
    del model
    gc.collect()
    assert [one() for one in gone] == [None] * len(gone)
    until(lambda: plans_and_leases(hoistd) == (0, 0))


def test_what_is_dropped_is_given_back_after_the_device_is_done(device,
                                                                hoistd,
                                                                monkeypatch):
    """Leases that are collected before the GPU has read them would let hoistd
    put other bytes there."""
    model = Trapped().eval()
    # Casts: what is pinned is not bound, and its lease the module's.
    hoist.attach(model, 0.9, storage_dtype=torch.bfloat16)
    part = vars(model)["_hoist"].parts[0]
    order: list[str] = []
    lease = next(iter(part.held.leases.values()))
    release, close = type(lease).release, type(part.plan).close
    monkeypatch.setattr(type(lease), "release", lambda self: (
        order.append("release"), release(self))[1])
    monkeypatch.setattr(type(part.plan), "close", lambda self: (
        order.append("close"), close(self))[1])
    monkeypatch.setattr(torch.cuda, "synchronize",
                        lambda where=None: order.append("synchronize"))
    part.held.torch_device = torch.device("cuda", 0)
    held = part.held
    del lease, model, part
    gc.collect()
    # To close a plan waits for the GPU, before it gives anything back.
    assert order[0] == "close"
    assert order.index("synchronize") < order.index("release")
    assert set(order) == {"close", "synchronize", "release"}
    assert not held.leases and held.plan is None


def test_a_block_keeps_the_whole_and_weights_keep_their_bytes(device, hoistd):
    model = Stack().eval()
    own = model.layers[2].up.weight.detach().clone()
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = Stack.forward(model.to(device), x)
        hoist.attach(model, 0.5)
        block, weight = model.layers[1], model.layers[2].up.weight
        row = weight[3]
        layers = model.layers
        del model
        gc.collect()
        y = x
        for layer in layers:
            y = layer(y)
        assert_equal_outputs(y, expected)
        del layers, layer, block
        gc.collect()
    until(lambda: plans_and_leases(hoistd) == (0, 0))
    # What was taken out of it lives on: from the image.
    assert torch.equal(weight.clone(), own)
    assert torch.equal(row.clone(), own[3])


def test_modules_that_come_and_go_leave_nothing_behind(hoistd):
    def fds() -> int:
        return len(os.listdir("/proc/self/fd"))

    def maps() -> int:
        return len(pathlib.Path("/proc/self/maps").read_text().splitlines())

    def once() -> None:
        model = Stack(2)
        hoist.attach(model, 0.9)
        model.layers[0].up.weight.sum()
        with torch.no_grad():
            model(numbers(1, WIDTH))

    torch.manual_seed(0)
    once()
    gc.collect()
    before, mapped = fds(), maps()
    for _ in range(5):
        torch.manual_seed(0)
        once()
        gc.collect()
    until(lambda: fds() <= before)  # A thread closes those of plans.
    assert maps() <= mapped + 10
    until(lambda: plans_and_leases(hoistd) == (0, 0))


# Forks.


def in_a_child(work) -> str:
    """What it raised in a fork of this process, or "done"."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "done"
        try:
            os.close(reading)
            work()
        except BaseException as error:
            said = type(error).__name__ + ": " + str(error)
            if not isinstance(error, hoist.HoistError):
                said += traceback.format_exc()
        finally:
            os.write(writing, said.encode()[:4000])
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.mark.only_emulated("a process that has used CUDA cannot use it in its "
                           "forks")
@torch.no_grad()
def test_a_forks_child_is_refused_and_the_parent_goes_on(device):
    """Even where another thread was within a pass, whose locks the child has
    but not its thread."""
    model = Trapped().eval()
    x = numbers(2, WIDTH).to(device)
    with attached(model, 0.6):
        expected = model(x)
        inside, go_on = threading.Event(), threading.Event()

        class Waits(nn.Module):
            def forward(self, x):
                inside.set()
                assert go_on.wait(60)
                return x

        trap, model.trap = model.trap, Waits()
        thread = threading.Thread(
            target=torch.no_grad()(lambda: model(x)), daemon=True)
        thread.start()
        assert inside.wait(60)
        try:
            for work in (lambda: model(x), lambda: model.layers[0](x)):
                said = in_a_child(work)
                assert said.startswith("FailedPrecondition"), said
                assert "fork" in said
        finally:
            go_on.set()
            thread.join()
        model.trap = trap
        assert_equal_outputs(model(x), expected)
