"""Limits and seccomp profiles of whoever starts hoistd: it serves, or refuses
with what is lacking, at its start and at each request. It never just ends.

limits_test.py HOIST-KEEPER HOISTD [unittest options]; needs HOIST_LIBRARY,
PYTHONPATH.
"""

import contextlib
import ctypes
import errno
import os
import pathlib
import platform
import re
import resource
import signal
import struct
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

KEEPER = os.path.abspath(sys.argv.pop(1))
HOISTD = os.path.abspath(sys.argv.pop(1))
NOBODY_ELSE = 60123  # A user who has no other process.
X86 = {"io_uring_enter": 426, "getrandom": 318, "clone3": 435}
EXIT_REFUSED = (1, 75)


def deny(call, error):
    """From now on, and after exec: `call` is refused with `error`."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, X86[call]),
            (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7FFF0000)]
    text = b"".join(struct.pack("HBBI", *one) for one in code)
    program = ctypes.create_string_buffer(text, len(text))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
    filters = Program(len(code), ctypes.addressof(program))
    if (libc.prctl(38, 1, 0, 0, 0) != 0 or
            libc.prctl(22, 2, ctypes.byref(filters)) != 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def limit_tasks(pid, tasks):
    """The soft limit of another user's process, to 1000 at the most."""
    subprocess.run(
        ["prlimit", f"--pid={pid}", f"--nproc={tasks}:1000"],
        user=NOBODY_ELSE, group=NOBODY_ELSE, extra_groups=[], check=True)


def user_of(process):
    """Of a folder of /proc; None when it has ended."""
    with contextlib.suppress(OSError):
        return process.stat().st_uid
    return None


def tasks_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


class Limits(unittest.TestCase):
    def begin(self, limits, keeper=None, **options):
        """Whether it serves; else it has refused, and says why."""
        self.daemon = RealDaemon(HOISTD, keeper=keeper, limits=limits,
                                 **options)
        self.addCleanup(self.daemon.stop)

        def outcome():
            if self.daemon.process.poll() is not None:
                return "refused"
            try:
                return self.daemon.status() and "serves"
            except subprocess.CalledProcessError:
                return None
        if until(outcome) == "serves":
            return True
        self.assertIn(self.daemon.process.returncode, EXIT_REFUSED,
                      self.daemon.log_text()[-2000:])
        return False

    def work(self):
        path = self.daemon.path / "m.safetensors"
        tensors = block_model(2)
        write_safetensors(path, tensors)
        with hoist.connect(self.daemon.socket, connect_deadline=60,
                           call_deadline=60) as session:
            model = session.register(path, "files")
            for group in model:
                with session.stage(group, deadline=30) as lease:
                    for tensor in group.tensors:
                        self.assertEqual(lease[tensor.name].numpy().tobytes(),
                                         tensors[tensor.name][2])

    def refused(self, pattern):
        self.assertRegex(self.daemon.log_text(), pattern)

    # --- Files and descriptors ----------------------------------------------

    def file_limit(self, bytes_):
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE,
                                          (bytes_, bytes_))

    def test_a_pool_beyond_the_limit_of_a_file(self):
        self.assertFalse(self.begin(self.file_limit(16 * MIB)))
        self.refused("cannot start.*RLIMIT_FSIZE")

    def test_a_slab_beyond_the_limit_of_a_file(self):
        self.assertTrue(self.begin(self.file_limit(40 * MIB), host=32 * MIB,
                                   pool=256 * MIB, slab=64 * MIB))
        path = self.daemon.path / "m.safetensors"
        write_safetensors(path, block_model(12, 8 * MIB))
        with hoist.connect(self.daemon.socket, connect_deadline=60) as session:
            leases = contextlib.ExitStack()
            # Each new slab is as large as all before it.
            with self.assertRaisesRegex(hoist.HoistError, "RLIMIT_FSIZE"):
                for group in session.register(path, "files"):
                    leases.enter_context(session.stage(group, deadline=10))
            leases.close()
        self.assertIsNone(self.daemon.process.poll())

    def test_a_soft_limit_of_a_file_is_none(self):
        def soft():
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
        self.assertTrue(self.begin(soft))
        self.work()

    def test_few_descriptors(self):
        for limit in (16, 24, 64, 100):
            for keeper in (None, KEEPER):
                with self.subTest(limit=limit, keeper=bool(keeper)):
                    self.assertFalse(self.begin(
                        lambda limit=limit: resource.setrlimit(
                            resource.RLIMIT_NOFILE, (limit, limit)), keeper))
                    self.refused(f"may have {limit} descriptors")

    def test_the_fewest_descriptors_are_enough(self):
        self.assertTrue(self.begin(
            lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
            KEEPER))
        self.work()

    # --- Threads -------------------------------------------------------------

    def as_somebody(self, tasks):
        def limits():
            resource.setrlimit(resource.RLIMIT_NPROC, (tasks, tasks))
            os.setgroups([])
            os.setgid(NOBODY_ELSE)
            os.setuid(NOBODY_ELSE)
        return limits

    def begin_as_somebody(self, tasks, keeper=None):
        until(lambda: not any(  # The last one's helpers end a little later.
            NOBODY_ELSE == user_of(one)
            for one in pathlib.Path("/proc").glob("[0-9]*")))
        return self.begin(self.as_somebody(tasks), keeper, owner=NOBODY_ELSE)

    @unittest.skipIf(os.getuid() != 0, "needs root, to be another user")
    def test_each_number_of_threads_at_the_start(self):
        self.assertTrue(self.begin_as_somebody(1000))
        enough = tasks_of(self.daemon.process.pid) + 8
        self.daemon.stop()
        for tasks in range(1, enough, 2):
            with self.subTest(tasks=tasks):
                if not self.begin_as_somebody(tasks):
                    self.refused("cannot start|start a thread|fork")
                self.daemon.process.kill()
                self.daemon.process.wait()

    @unittest.skipIf(os.getuid() != 0, "needs root, to be another user")
    def test_no_thread_is_left_when_a_worker_comes(self):
        self.assertTrue(self.begin_as_somebody(1000))
        pid = self.daemon.process.pid
        hoist.connect(self.daemon.socket, connect_deadline=60).close()
        limit_tasks(pid, 1)
        with self.assertRaisesRegex(hoist.ResourceExhausted, "TasksMax"):
            self.work()
        self.assertIsNone(self.daemon.process.poll(),
                          self.daemon.log_text()[-2000:])
        limit_tasks(pid, 1000)
        self.work()

    @unittest.skipIf(os.getuid() != 0, "needs root, to be another user")
    def test_a_keeper_that_starts_nothing_ends(self):
        self.assertFalse(self.begin_as_somebody(1, KEEPER))
        self.refused("fork.*TasksMax")

    @unittest.skipIf(os.getuid() != 0, "needs root, to be another user")
    def test_a_keeper_of_something_goes_on_trying(self):
        self.assertTrue(self.begin_as_somebody(1000, KEEPER))
        with hoist.connect(self.daemon.socket, connect_deadline=60) as session:
            session.publish("m", "g", {"w": bytearray([7] * MIB)})
        keeper = self.daemon.process.pid
        limit_tasks(keeper, 1)
        os.kill(int(self.daemon.status()["pid"]), signal.SIGKILL)
        until(lambda: re.search("fork.*TasksMax", self.daemon.log_text()))
        limit_tasks(keeper, 1000)
        self.daemon.until_served()
        self.assertIsNone(self.daemon.process.poll())
        with hoist.connect(self.daemon.socket, connect_deadline=60) as session:
            with session.stage(session.model("m")["g"], deadline=30) as lease:
                self.assertEqual(set(bytes(lease["w"].numpy())), {7})

    # --- Memory --------------------------------------------------------------

    def address_limit(self, bytes_):
        return lambda: resource.setrlimit(resource.RLIMIT_AS,
                                          (bytes_, bytes_))

    def test_each_limit_of_addresses(self):
        for mib in (64, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768,
                    1024, 1536, 2048):
            with self.subTest(mib=mib):
                self.assertFalse(self.begin(self.address_limit(mib * MIB)))
                self.refused("cannot start|no memory left")

    def test_enough_addresses_are_enough(self):
        self.assertFalse(self.begin(self.address_limit(2048 * MIB)))
        least = re.search("RLIMIT_AS.*needs ([0-9]+) ", self.daemon.log_text())
        self.assertTrue(self.begin(self.address_limit(
            int(least[1]) + 64 * MIB)))
        self.work()

    # --- Seccomp -------------------------------------------------------------

    @unittest.skipIf(platform.machine() != "x86_64", "knows its numbers")
    def test_calls_that_are_denied(self):
        for call in X86:
            for error in (errno.EPERM, errno.ENOSYS):
                with self.subTest(call, error=errno.errorcode[error]):
                    if self.begin(lambda call=call, error=error: deny(
                            call, error)):
                        self.work()
                    else:
                        self.refused("cannot start")
                    self.assertIn(self.daemon.process.poll(),
                                  (None, *EXIT_REFUSED))


if __name__ == "__main__":
    unittest.main()
