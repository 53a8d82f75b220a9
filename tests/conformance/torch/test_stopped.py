"""hoistd is stopped (SIGSTOP), and alive: no call waits longer than hoist.detach
and hoist/c/plan.h promise, and attached modules go on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import signal
import subprocess
import sys
import time
from typing import Iterator

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist.nn import IdleTensor  # noqa: E402
from passes import assert_passes, make, references  # noqa: E402
from real_daemon import RealDaemon, halt, until  # noqa: E402

pytestmark = pytest.mark.real_time

# Five times what is stated: 5 s for the GPU, and 5 s for hoistd.
BOUND = 50.0


@contextlib.contextmanager
def stopped(daemon: RealDaemon) -> Iterator[None]:
    try:
        halt(daemon.process.pid)
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < BOUND


def assert_own(case, model, device, expected) -> None:
    """Detached, with all that it had."""
    assert not any(isinstance(one, IdleTensor) for one in model.parameters())
    again = references(case, model, device)
    for ours, theirs in zip(again, expected):
        assert_equal_outputs(ours, theirs)


def used(daemon: RealDaemon) -> int:
    return daemon.tier("DEVICE")["leased_bytes"]


def test_what_was_handed_over_stays_attached_and_goes_on(make_hoistd, device):
    case, model = make("transformer")
    expected = references(case, model, device)
    daemon = make_hoistd()
    hoist.attach(model, 0.6)
    assert_passes(case, model, device, expected)
    with stopped(daemon), bounded():
        with pytest.raises(hoist.DeadlineExceeded, match="no sign of life"):
            hoist.detach(model)
    assert_passes(case, model, device, expected)
    hoist.detach(model)
    assert_own(case, model, device, expected)


def test_what_is_in_files_is_detached(make_hoistd, device, tmp_path):
    case, model = make("transformer")
    expected = references(case, model, device)
    path = tmp_path / "model.safetensors"
    safetensors.save_model(model, str(path))
    daemon = make_hoistd()
    model = hoist.load(lambda: case.make().eval(), path, 0.6)
    assert_passes(case, model, device, expected)
    with stopped(daemon), bounded():
        hoist.detach(model)
    assert_own(case, model, device, expected)
    # What it gave back meanwhile, hoistd takes when it goes on.
    until(lambda: not used(daemon))


def test_files_that_are_gone_are_no_loss(make_hoistd, device, tmp_path):
    case, model = make("transformer")
    expected = references(case, model, device)
    path = tmp_path / "model.safetensors"
    safetensors.save_model(model, str(path))
    daemon = make_hoistd()
    model = hoist.load(lambda: case.make().eval(), path, 0.6)
    # hoistd has read all of it: a file that was renamed is another to it.
    assert_passes(case, model, device, expected)
    path.rename(tmp_path / "away")
    with stopped(daemon), bounded():
        with pytest.raises(hoist.DeadlineExceeded):
            hoist.detach(model)
    assert_passes(case, model, device, expected)


def test_a_module_that_is_let_go_of_is_given_back_later(make_hoistd, device):
    case, model = make("transformer")
    expected = references(case, model, device)
    daemon = make_hoistd()
    hoist.attach(model, 0.6)
    assert_passes(case, model, device, expected)
    with stopped(daemon), bounded():
        del model
        gc.collect()
    until(lambda: not used(daemon))


def test_a_pass_waits_for_it_and_is_right(make_hoistd, device):
    case, model = make("transformer")
    expected = references(case, model, device)
    daemon = make_hoistd()
    hoist.attach(model, 0.6)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with stopped(daemon):
            passing = pool.submit(assert_passes, case, model, device, expected)
            # It runs out of what was there already, and waits.
            concurrent.futures.wait([passing], timeout=0.5)
        passing.result()
    assert_passes(case, model, device, expected)


WORKER = """
import os, sys, torch, hoist
torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
device = sys.argv[1]
hoist.attach(model, 0.6)
session = hoist.connect()
leased = session.publish(str(os.getpid()), "g", {"w": torch.ones(64)})
lease = session.stage(leased["g"])
plan = session.set_plan(leased, order=list(leased))
with torch.no_grad():
    model(torch.ones(1, 64, device=device))
print("ready", flush=True)
sys.stdin.readline()
"""


def test_interpreters_end(make_hoistd, device):
    """All at once, since each takes the seconds that are stated."""
    daemon = make_hoistd()
    workers = {last: subprocess.Popen(
        [sys.executable, "-c", WORKER + last, str(device)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for last in ("", "lease.release()", "plan.close()", "session.close()",
                     "raise SystemExit(0)")}
    for worker in workers.values():
        assert worker.stdout.readline() == "ready\n"
    with stopped(daemon):
        with bounded():
            for worker in workers.values():
                worker.stdin.write("go\n")
                worker.stdin.flush()
            for worker in workers.values():
                worker.communicate()
        assert {last: one.returncode for last, one in workers.items()} == (
            dict.fromkeys(workers, 0))
    until(lambda: int(daemon.status()["sessions"]) == 0)
    assert used(daemon) == 0
