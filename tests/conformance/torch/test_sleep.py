"""Modules and pipelines that sleep, and wake."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from real_daemon import MIB  # noqa: E402
from stacks import WIDTH, assert_right, stack, wanted  # noqa: E402

# A Stack of width 256 has 12.7 MiB: two do not fit.
pytestmark = [pytest.mark.real_time,
              pytest.mark.hoistd(pool=16 * MIB, host=128 * MIB)]
BUDGETS = [None, 13 * MIB, 8 * MIB]


@pytest.fixture
def x(device):
    return torch.randn(2, WIDTH, device=device)


def is_asleep(model) -> bool:
    stats = hoist.stats(model)
    return not (stats.budget_bytes or stats.bound_groups)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_sleeping_module_holds_nothing_and_wakes_with_its_next_pass(
        hoistd, x, budget):
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    before = {name: value.clone() for name, value in
              model.state_dict().items()}
    hoist.attach(model, budget)
    assert_right(model, x, want)
    had = hoist.stats(model).budget_bytes
    for _ in range(2):
        hoist.sleep(model)
        hoist.sleep(model)
        assert is_asleep(model)
        for name, value in model.state_dict().items():
            assert torch.equal(value.cpu(), before[name])
        hoist.attach(other, 15 * MIB, deadline=10)
        assert_right(other, x, others)
        hoist.detach(other)
        assert_right(model, x, want)
        assert hoist.stats(model).budget_bytes == had
    hoist.check(model)
    hoist.detach(model)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_it_wakes_before_its_pass(hoistd, x, budget):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, budget)
    assert_right(model, x, want)
    had = hoist.stats(model)
    hoist.sleep(model)
    hoist.wake(model)
    hoist.wake(model)
    assert hoist.stats(model).budget_bytes == had.budget_bytes
    assert_right(model, x, want)
    assert hoist.stats(model).bound_groups == had.bound_groups
    hoist.detach(model)


def test_one_that_finds_no_room_stays_asleep(hoistd, x):
    model, other = stack(0), stack(1)
    want = wanted(model, x)
    hoist.attach(model, 13 * MIB, deadline=1)
    hoist.sleep(model)
    hoist.attach(other, 13 * MIB)
    for _ in range(2):
        with pytest.raises(hoist.ResourceExhausted):
            hoist.wake(model)
        with pytest.raises(hoist.ResourceExhausted):
            model(x)
        assert is_asleep(model)
    hoist.sleep(other)
    assert_right(model, x, want)
    hoist.detach(model)
    hoist.detach(other)


def test_a_running_one_does_not_fall_asleep(hoistd, x):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, 8 * MIB)
    assert_right(model, x, want)
    began, goes_on = threading.Event(), threading.Event()

    def pause(*_) -> None:
        began.set()
        goes_on.wait()

    handle = model.layers[1].register_forward_hook(pause)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(assert_right(model, x, want)))
    thread.start()
    began.wait()
    sleeper = threading.Thread(target=hoist.sleep, args=(model,))
    sleeper.start()
    sleeper.join(0.3)
    assert sleeper.is_alive() and not is_asleep(model)
    goes_on.set()
    thread.join()
    sleeper.join()
    assert found == [None] and is_asleep(model)
    handle.remove()

    def from_within(*_) -> None:
        with pytest.raises(hoist.FailedPrecondition):
            hoist.sleep(model)

    handle = model.layers[1].register_forward_hook(from_within)
    assert_right(model, x, want)
    handle.remove()
    hoist.detach(model)


def test_a_backward_after_it_is_right(hoistd, x):
    model, twin = stack(), stack()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    hoist.attach(model, 8 * MIB)
    x.requires_grad_(True)
    want, = torch.autograd.grad(twin.to(x.device)(x).sum(), x)
    output = model(x)
    hoist.sleep(model)
    found, = torch.autograd.grad(output.sum(), x)
    assert_equal_outputs(found, want)
    hoist.detach(model)


@pytest.mark.parametrize("wakes", [False, True])
def test_hoistd_dies_while_it_sleeps(make_hoistd, hoist_keeper, x, wakes):
    hoistd = make_hoistd(pool=16 * MIB, host=128 * MIB, keeper=hoist_keeper)
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, 8 * MIB)
    assert_right(model, x, want)
    hoist.sleep(model)
    hoistd.kill_kept()
    if wakes:
        hoist.wake(model)
    assert_right(model, x, want)
    hoist.sleep(model)
    hoist.detach(model)


def test_a_pipeline_sleeps_and_wakes(hoistd, x):
    parts = {"text": stack(0), "image": stack(1)}
    wants = {name: wanted(model, x) for name, model in parts.items()}

    class Pipe:
        def __init__(self) -> None:
            self.components = parts
            vars(self).update(parts)

    pipe = Pipe()
    hoist.attach_pipeline(pipe, 14 * MIB)
    for _ in range(2):
        for name, model in parts.items():
            assert_right(model, x, wants[name])
        hoist.sleep(pipe)
        assert all(is_asleep(model) for model in parts.values())
        hoist.wake(pipe)
        assert sum(not is_asleep(model) for model in parts.values()) == 1
    for name, model in parts.items():
        assert_right(model, x, wants[name])
    hoist.detach(pipe)
