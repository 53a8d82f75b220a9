"""hoist.retry_on_oom: hoistd leaves memory to a call that lacks it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from real_daemon import MIB, Refused, until  # noqa: E402
from stacks import WIDTH, stack, wanted  # noqa: E402

# A Stack of width 256 has 12.7 MiB: the device has one and a part of another.
SIZES = {"pool": 24 * MIB, "host": 128 * MIB}
pytestmark = [pytest.mark.real_time,
              pytest.mark.usefixtures("nothing_is_compiled"),
              pytest.mark.hoistd(**SIZES)]


@pytest.fixture
def x(device):
    if device.type != "cpu":
        pytest.skip("only an emulated device's shortage is made up")
    return torch.randn(2, WIDTH, device=device)


def run(model, x):
    with torch.no_grad():
        return model(x)


def device_bytes(hoistd, field: str = "allocated_bytes") -> int:
    return hoistd.tier("DEVICE")[field]


def spared(hoistd) -> int:
    return sum(int(one.get("spared_bytes", 0))
               for one in hoistd.status()["withheld"])


def await_whole(hoistd) -> None:
    until(lambda: device_bytes(hoistd, "capacity_bytes") == 24 * MIB)
    assert spared(hoistd) == 0


class Lacks:
    """A layer of the model lacks memory while hoistd has more than it leaves
    to others. Before that `first` happens, once."""

    def __init__(self, hoistd, model, leaves: int, first=lambda: None) -> None:
        self.calls = 0
        self._hoistd = hoistd
        self._leaves = leaves
        self._first = first
        self._handle = model.layers[2].norm.register_forward_pre_hook(self)

    def __call__(self, *_) -> None:
        self.calls += 1
        if self.calls == 1:
            self._first()
        elif spared(self._hoistd) and (
                device_bytes(self._hoistd) <= 24 * MIB - self._leaves):
            return
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 8.00 MiB. GPU 0 has none.")

    def remove(self) -> None:
        self._handle.remove()


@pytest.mark.parametrize("spare", [None, "8MiB", 8 * MIB])
def test_the_second_call_has_memory_that_others_give_way_for(hoistd, x, spare):
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    hoist.attach(model)
    hoist.attach(other)
    run(model, x), run(other, x)
    assert device_bytes(hoistd) > 16 * MIB
    lacks = Lacks(hoistd, model, 8 * MIB)
    found = hoist.retry_on_oom(model, lambda: run(model, x), spare=spare)
    assert_equal_outputs(found, want)
    assert lacks.calls == 2
    lacks.remove()
    await_whole(hoistd)
    assert hoistd.counters()["lent_bytes_for_headroom"]
    assert_equal_outputs(run(other, x), others)
    assert_equal_outputs(run(model, x), want)
    hoist.detach(model)
    hoist.detach(other)


def test_a_call_that_has_memory_runs_once(hoistd, x):
    model = hoist.attach(stack())
    calls = []
    assert hoist.retry_on_oom(model, lambda: calls.append(1) or 7) == 7
    assert calls == [1]
    hoist.detach(model)


def test_the_refusal_names_what_hoistd_could_leave(make_hoistd, x):
    hoistd = make_hoistd(**SIZES)  # Without idle copies, which would go.
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, 13 * MIB)
    run(model, x)
    lacks = Lacks(hoistd, model, 8 * MIB)
    had = device_bytes(hoistd)
    with pytest.raises(hoist.ResourceExhausted) as refused:
        hoist.retry_on_oom(model, lambda: run(model, x), deadline=0.2)
    assert "with smaller budgets" in str(refused.value)
    assert isinstance(refused.value.__cause__, torch.OutOfMemoryError)
    with pytest.raises(hoist.ResourceExhausted, match="hoistd has"):
        hoist.retry_on_oom(model, lambda: run(model, x), spare=had + MIB)
    assert lacks.calls == 2, "no second call without memory for it"
    lacks.remove()
    await_whole(hoistd)
    assert_equal_outputs(run(model, x), want)
    hoist.detach(model)


def test_a_second_call_that_lacks_memory_says_so(hoistd, x):
    model = hoist.attach(stack())
    run(model, x)
    lacks = Lacks(hoistd, model, 25 * MIB)
    with pytest.raises(hoist.ResourceExhausted, match="the second call lacks"):
        hoist.retry_on_oom(model, lambda: run(model, x), spare=4 * MIB)
    assert lacks.calls == 2
    await_whole(hoistd)
    lacks.remove()
    hoist.detach(model)


def test_an_amount_that_torch_does_not_tell_is_asked_for(hoistd, x):
    model = hoist.attach(stack())

    def lack() -> None:
        raise torch.OutOfMemoryError("HIP is out of it")

    with pytest.raises(hoist.FailedPrecondition, match="spare="):
        hoist.retry_on_oom(model, lack)
    hoist.detach(model)


def test_hoistd_leaves_memory_while_it_drains(hoistd, x):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    run(model, x)
    with pytest.raises(Refused):  # Something is leased.
        hoistd.ctl("drain")
    lacks = Lacks(hoistd, model, 8 * MIB)
    try:
        found = hoist.retry_on_oom(model, lambda: run(model, x), spare=8 * MIB)
    finally:
        hoistd.ctl("drain", "--resume")
    assert_equal_outputs(found, want)
    lacks.remove()
    await_whole(hoistd)
    hoist.detach(model)


def test_a_dead_hoistd_leaves_nothing(make_hoistd, x):
    hoistd = make_hoistd(**SIZES)
    model = hoist.attach(stack())
    run(model, x)
    lacks = Lacks(hoistd, model, 8 * MIB, first=hoistd.kill)
    with pytest.raises(hoist.Unavailable) as ended:
        hoist.retry_on_oom(model, lambda: run(model, x))
    assert isinstance(ended.value.__cause__, torch.OutOfMemoryError)
    assert lacks.calls == 1
    lacks.remove()


def test_the_next_hoistd_has_a_whole_pool_and_serves_the_second_call(
        make_hoistd, hoist_keeper, x):
    hoistd = make_hoistd(**SIZES, keeper=hoist_keeper)
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    run(model, x)
    lacks = Lacks(hoistd, model, 8 * MIB, first=lambda: hoistd.kill_kept())
    found = hoist.retry_on_oom(model, lambda: run(model, x))
    assert_equal_outputs(found, want)
    lacks.remove()
    session = hoist.connect()
    with session.spare(4 * MIB):
        assert spared(hoistd)
        hoistd.kill_kept()
        await_whole(hoistd)
    session.close()
    assert_equal_outputs(run(model, x), want)
    hoist.detach(model)


def test_two_workers_lack_memory_at_once(hoistd, x):
    model = hoist.attach(stack())
    run(model, x)
    had = device_bytes(hoistd)
    with hoist.connect() as one, hoist.connect() as other:
        with one.spare(4 * MIB):
            with other.spare(4 * MIB):
                assert device_bytes(hoistd) <= had - 8 * MIB
                want = run(model, x)
                assert device_bytes(hoistd) <= had - 8 * MIB
                both = device_bytes(hoistd, "capacity_bytes")
            assert device_bytes(hoistd, "capacity_bytes") == both + 4 * MIB
            with pytest.raises(hoist.NotFound, match="no device 7"):
                one.spare(MIB, device=7).__enter__()
    await_whole(hoistd)
    assert_equal_outputs(run(model, x), want)
    hoist.detach(model)


@pytest.mark.usefixtures("x")
def test_a_spare_ends_with_its_worker(hoistd):
    model = hoist.attach(stack())
    worker = subprocess.Popen(
        [sys.executable, "-c", "import hoist, sys\n"
         f"with hoist.connect().spare({4 * MIB}):\n"
         "    print(1, flush=True)\n    sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with contextlib.closing(worker.stdin), contextlib.closing(worker.stdout):
        assert worker.stdout.readline() == b"1\n"
        assert spared(hoistd)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    await_whole(hoistd)
    hoist.detach(model)
