"""Plans on a GPU whose worker, kernel or daemon stops: nobody else waits.

never_hang_test.py HOISTD [unittest's arguments]

The emulated device's cases are plan_life_test.cc's; these need kernels that run
on their own. Skipped where there is no PyTorch with CUDA.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

MIB = 1 << 20
BLOCKS = 8
BLOCK_BYTES = 64 * MIB
BUDGET = 3 * BLOCK_BYTES
HOISTD = ""

try:
    import torch
    NO_GPU = "" if torch.cuda.is_available() else "PyTorch sees no GPU"
except ImportError:
    NO_GPU = "no PyTorch here"


class Daemon:
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="hoist-")
        path = pathlib.Path(self.folder.name)
        self.socket = str(path / "hoistd.sock")
        (path / "hoistd.toml").write_text(f"""
[server]
socket = "{self.socket}"
grpc_socket = "{path}/grpc.sock"
group = ""
admin_group = ""
[device]
backend = "cuda"
pool = "4GiB"
[host]
pool = "2GiB"
[log]
sink = "stderr"
""")
        self.process = subprocess.Popen(
            [HOISTD, "--config", str(path / "hoistd.toml")],
            stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.folder.cleanup()


class Worker:
    """A process that runs one of the roles below and tells each step."""

    def __init__(self, socket: str, role: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, socket],
            stdout=subprocess.PIPE, text=True)

    def next(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout: float = 60) -> int:
        return self.process.wait(timeout=timeout)


# --- The workers -----------------------------------------------------------


def tell(what: str) -> None:
    print(what, flush=True)


def make_plan(socket: str, **options):
    import hoist
    session = hoist.connect(socket, connect_deadline=60)
    torch.cuda.init()
    for number in range(BLOCKS):
        value = torch.full((BLOCK_BYTES,), number + 1, dtype=torch.uint8)
        model = session.publish("blocks", f"block.{number}", {"w": value})
    plan = session.set_plan(model, order=model.groups, budget=BUDGET, **options)
    return plan, model


def run_pass(plan, model) -> int:
    """Groups whose bytes were wrong."""
    stream = torch.cuda.current_stream()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for number, group in enumerate(model.groups):
        with plan.use(group, stream=stream) as tensors:
            wrong += (tensors["w"].torch() != number + 1).any()
    torch.cuda.synchronize()
    plan.check()
    return int(wrong.item())


def role_stream(socket: str) -> int:
    """Passes until it is killed."""
    plan, model = make_plan(socket)
    for _ in range(1_000_000):
        if run_pass(plan, model) != 0:
            return 3
        tell("pass")
    return 0


def role_endless(socket: str) -> int:
    """Holds a group under a kernel that does not end (some minutes)."""
    plan, model = make_plan(socket)
    run_pass(plan, model)
    stream = torch.cuda.current_stream()
    for group in model.groups:
        plan.stage(group, stream=stream)
        torch.cuda._sleep(1_000_000_000_000)
        plan.done(group, stream=stream)
    tell("hangs")
    torch.cuda.synchronize()
    return 0


def role_starved(socket: str) -> int:
    """Its streams wait for bytes that a cap holds back."""
    plan, model = make_plan(socket, max_bytes_per_second=1024)
    stream = torch.cuda.current_stream()
    for group in model.groups:
        plan.stage(group, stream=stream)
        plan.done(group, stream=stream)
    tell("waits")
    torch.cuda.synchronize()
    try:
        plan.check()
    except Exception as error:  # Which one is what the test looks at.
        tell(type(error).__name__)
        return 0
    tell("trusted")
    return 1


# --- The tests -------------------------------------------------------------


@unittest.skipIf(NO_GPU, NO_GPU)
class NeverHang(unittest.TestCase):
    def setUp(self) -> None:
        self.daemon = Daemon()
        self.addCleanup(self.daemon.stop)
        self.workers: list[Worker] = []

    def worker(self, role: str) -> Worker:
        worker = Worker(self.daemon.socket, role)
        self.workers.append(worker)
        self.addCleanup(worker.process.kill)
        return worker

    def expect_passes(self, worker: Worker, count: int) -> None:
        for _ in range(count):
            self.assertEqual(worker.next(), "pass")

    def test_a_kernel_that_never_ends_holds_up_nobody(self) -> None:
        endless = self.worker("endless")
        self.assertEqual(endless.next(), "hangs")
        other = self.worker("stream")
        # Kernels of two processes take turns on the GPU, so it is slow.
        self.expect_passes(other, 2)
        endless.signal(signal.SIGKILL)
        self.assertEqual(endless.end(), -signal.SIGKILL)
        self.expect_passes(other, 5)

    def test_a_worker_killed_while_its_stream_waits_is_gone(self) -> None:
        starved = self.worker("starved")
        self.assertEqual(starved.next(), "waits")
        other = self.worker("stream")
        self.expect_passes(other, 2)
        starved.signal(signal.SIGKILL)
        self.assertEqual(starved.end(), -signal.SIGKILL)
        self.expect_passes(other, 2)

    def test_a_stopped_worker_holds_up_nobody(self) -> None:
        stopped = self.worker("stream")
        self.expect_passes(stopped, 1)
        stopped.signal(signal.SIGSTOP)
        other = self.worker("stream")
        self.expect_passes(other, 5)
        stopped.signal(signal.SIGCONT)
        # What it told before it was stopped, and more.
        self.expect_passes(stopped, 20)

    def test_streams_that_wait_are_released_when_hoistd_dies(self) -> None:
        starved = self.worker("starved")
        self.assertEqual(starved.next(), "waits")
        self.daemon.kill()
        self.assertEqual(starved.next(), "Unavailable")
        self.assertEqual(starved.end(), 0)

    def test_hoistd_dies_in_the_middle_of_copies(self) -> None:
        worker = self.worker("stream")
        self.expect_passes(worker, 2)
        self.daemon.kill()
        # An error it does not catch ends it; wrong bytes would be exit code 3.
        self.assertEqual(worker.end(), 1)


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--role":
        sys.exit(globals()["role_" + sys.argv[2]](sys.argv[3]))
    HOISTD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
