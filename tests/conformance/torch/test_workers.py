"""Several processes, and several threads, with the same weights."""

from __future__ import annotations

import copy
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
import worker  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import Stack, Transformer, numbers  # noqa: E402
from passes import attached, least_budget, settled  # noqa: E402
from sampled import sampled  # noqa: E402

pytestmark = pytest.mark.real_time
PASSES = 5


class Worker:
    """worker.py, as a process of its own."""

    def __init__(self, device, budget, idle="cpu") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(worker.__file__)), str(budget),
             idle, device.type],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait()}"
        return json.loads(line)

    def ask(self, line: str):
        self.say(line)
        return self.hear()

    def end(self) -> int:
        self.process.stdin.close()
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        return code


@pytest.fixture
def start(hoistd, device):
    started = []

    def make(*args, **options) -> Worker:
        started.append(Worker(device, *args, **options))
        return started[-1]

    yield make
    for one in started:
        one.process.kill()
        one.process.wait()
        one.process.stdin.close()
        one.process.stdout.close()


@pytest.fixture
def expected(device) -> str:
    return worker.digest(worker.make().to(device), device, PASSES)


def image_bytes(hoistd) -> int:
    """Of all models that hoistd has; it is one."""
    models = json.loads(hoistd.ctl("models", "--json"))["models"]
    assert len(models) == 1, models
    with hoist.connect() as session:
        return session.model(models[0]["name"]).image_bytes


@pytest.mark.parametrize("budget", sampled([None, 0.3], None), ids=str)
def test_two_workers_take_the_bytes_of_one(hoistd, start, expected, budget):
    """Item 22: in host memory, and on the device where all is resident."""
    one = start(budget)
    assert one.hear() == "attached"
    assert one.ask(f"pass {PASSES}") == expected
    alone, host = settled(hoistd), hoistd.tier("HOST")["used_bytes"]
    leased = hoistd.tier("DEVICE")["leased_bytes"]
    assert host == image_bytes(hoistd)
    two = start(budget)
    assert two.hear() == "attached"
    one.say(f"pass {PASSES}")  # Both at once.
    assert two.ask(f"pass {PASSES}") == expected
    assert one.hear() == expected
    assert hoistd.tier("HOST")["used_bytes"] == host == image_bytes(hoistd)
    stats = [one.ask("stats"), two.ask("stats")]
    assert stats[0]["model"] == stats[1]["model"]
    if budget is None:
        assert hoistd.tier("DEVICE")["leased_bytes"] == leased == host
        moved = settled(hoistd)
        assert moved["host_to_device_bytes"] == alone["host_to_device_bytes"]
    assert one.end() == two.end() == 0


@pytest.mark.parametrize("dies,budget,idle", sampled([
    ("first", None, "cpu"), ("first", 0.3, "slot"), ("second", 0.3, "cpu")],
    ("first", 0.3, "slot")))
def test_a_killed_worker_does_not_touch_the_others(hoistd, start, expected,
                                                   dies, budget, idle):
    """Item 22: SIGKILL in the middle of a pass, while the other one runs."""
    workers = [start(budget, idle=idle)]
    assert workers[0].hear() == "attached"
    workers.append(start(budget, idle=idle))
    assert workers[1].hear() == "attached"
    if dies == "first":  # It handed the weights over.
        workers.reverse()
    stays, victim = workers
    for one in workers:
        assert one.ask(f"pass {PASSES}") == expected
    stays.say(f"pass {PASSES}")
    victim.say("die")
    assert victim.process.wait(timeout=60) == -signal.SIGKILL
    for _ in range(4):
        assert stays.hear() == expected
        stays.say(f"pass {PASSES}")
    assert stays.hear() == expected
    again = start(budget, idle=idle)  # And a new one finds all it needs.
    assert again.hear() == "attached"
    assert again.ask(f"pass {PASSES}") == expected
    assert hoistd.tier("HOST")["used_bytes"] == image_bytes(hoistd)
    assert stays.end() == again.end() == 0
    late = time.monotonic() + 30  # hoistd sees the ends by itself.
    while hoistd.tier("DEVICE")["leased_bytes"]:
        assert time.monotonic() < late


def run_together(*works) -> None:
    """Each in a thread; raises what one raised."""
    raised = []

    def guarded(work) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    if torch.cuda.is_available():  # What the threads read is there.
        torch.cuda.synchronize()
    threads = [threading.Thread(target=guarded, args=(work,), daemon=True)
               for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if raised:
        raise raised[0]


def passes_of(model, whole, inputs, times):
    with torch.no_grad():
        wanted = [whole(one) for one in inputs]

    def work() -> None:
        stream = (torch.cuda.Stream() if inputs[0].is_cuda else None)
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(times):
                for one, other in zip(inputs, wanted):
                    assert_equal_outputs(model(one), other)

    return work


@pytest.mark.parametrize("idle", ["cpu", "slot"])
def test_two_threads_with_a_module_each(hoistd, device, idle):
    """Item 22, within a process: they stream at the same time."""
    models = [Transformer().eval(), Stack(5).eval()]
    wholes = [copy.deepcopy(model).to(device) for model in models]
    ids = [torch.randint(50, (2, 5)).to(device) for _ in range(3)]
    xs = [numbers(2, 4, 64, seed=at).to(device) for at in range(3)]
    with attached(models[0], least_budget(models[0]), idle=idle), attached(
            models[1], least_budget(models[1]), idle=idle):
        run_together(passes_of(models[0], wholes[0], ids, 10),
                     passes_of(models[1], wholes[1], xs, 10))


@pytest.mark.parametrize("idle", ["cpu", "slot"])
def test_threads_that_share_a_module(hoistd, device, idle):
    """Item 22, within a process: passes take turns, and parts of a module may
    be called by another thread meanwhile; weights are read by a fourth."""
    model = Stack(5).eval()
    whole = copy.deepcopy(model).to(device)
    xs = [numbers(2, 4, 64, seed=at).to(device) for at in range(3)]

    def read() -> None:
        for _ in range(5):
            for (name, ours), theirs in zip(model.named_parameters(),
                                            whole.parameters()):
                if idle == "cpu":
                    assert_equal_outputs(ours + 0, theirs + 0, name)

    with attached(model, least_budget(model), idle=idle):
        run_together(
            passes_of(model, whole, xs, 10),
            passes_of(model, whole, xs[::-1], 10),
            passes_of(model.layers[2], whole.layers[2], xs, 10))
        run_together(read, read)


def test_a_thread_may_read_weights_while_another_runs(hoistd, device):
    """Items 14 and 22: what it gets is the true value, staged or not."""
    model = Stack(5).eval()
    whole = copy.deepcopy(model)
    on_device = copy.deepcopy(model).to(device)
    xs = [numbers(2, 4, 64, seed=at).to(device) for at in range(3)]
    with attached(model, least_budget(model)):
        kept = [(layer.up.weight, other.up.weight.detach())
                for layer, other in zip(model.layers, whole.layers)]

        def read() -> None:
            for _ in range(20):
                for ours, theirs in kept:
                    assert_equal_outputs(ours.abs().sum(), theirs.abs().sum())

        run_together(passes_of(model, on_device, xs, 20), read)
