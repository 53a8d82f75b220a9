"""Workers and hoistd in namespaces of their own: whose death is seen, and what
it gives back.

namespaces_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH,
root and unshare(1); skipped elsewhere.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import RealDaemon  # noqa: E402

HOISTD = os.path.abspath(sys.argv.pop(1))
HOISTCTL = pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"
# Five times the second that is stated, on a machine that is busy.
BACK_WITHIN = 5.0

WORKER = """
import sys, hoist
session = hoist.connect(sys.argv[1], connect_deadline=60)
for group in range(4):
    model = session.publish("own", f"g{group}", {"w": bytearray(range(256)) * 256})
lease = session.stage(model["g0"])
plan = session.set_plan(model, order=list(model), budget=3 << 16)
for group in model:
    with plan.use(group) as tensors:
        pass
print("ready", flush=True)
sys.stdin.read()
"""


def can(*flags):
    return subprocess.run(["unshare", *flags, "true"],
                          capture_output=True).returncode == 0


PID = ("--pid", "--fork", "--mount-proc", "--kill-child")


class Enclosed(RealDaemon):
    """A hoistd that numbers processes for itself."""

    def kept(self, keeper):
        return ["unshare", *PID]

    def hoistd(self):
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
        return int(children.read_text())

    def ctl(self, *arguments):
        """From within: outside of hoistd's namespaces nobody is an admin."""
        return subprocess.run(
            ["nsenter", f"--target={self.hoistd()}", "--pid", "--mount",
             HOISTCTL, "--socket", self.grpc_socket, *arguments],
            check=True, capture_output=True, text=True).stdout

    def stop(self):
        # unshare(1) heeds no SIGTERM while its child lives.
        os.kill(self.hoistd(), signal.SIGTERM)
        self.process.wait(timeout=60)
        return super().stop()


@unittest.skipUnless(os.geteuid() == 0 and can(*PID),
                     "needs root, and unshare of namespaces")
class Namespaces(unittest.TestCase):
    def start(self, kind=RealDaemon):
        self.daemon = kind(HOISTD)
        self.addCleanup(self.daemon.stop)
        hoist.connect(self.daemon.socket, connect_deadline=60).close()
        self.before = self.ledger()

    def ledger(self):
        """All that is given out, once what the dead published is dropped."""
        models = json.loads(self.daemon.ctl("models", "--json"))["models"]
        for model in models:
            try:
                # Who is root in another namespace is nobody here.
                self.daemon.ctl("evict", f"{model['owner_uid']}:own",
                                "--forget")
            except subprocess.CalledProcessError:
                pass  # In use.
        status = self.daemon.status()
        return [status["sessions"], status["leases"], status["models"],
                [(tier["tier"], tier["used_bytes"], tier["leased_bytes"])
                 for tier in status["tiers"]]]

    def worker(self, *namespaces):
        command = [sys.executable, "-c", WORKER, self.daemon.socket]
        if namespaces:
            command = ["unshare", *namespaces, *command]
        started = subprocess.Popen(command, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True,
                                   start_new_session=True)
        self.addCleanup(self.end, started)
        self.assertEqual(started.stdout.readline(), "ready\n",
                         self.daemon.log_text())
        return started

    def end(self, started):
        try:
            os.killpg(started.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        started.wait()
        started.stdin.close()
        started.stdout.close()

    def assert_all_back(self):
        end = time.monotonic() + BACK_WITHIN
        while (now := self.ledger()) != self.before:
            self.assertLess(time.monotonic(), end,
                            f"{now} is left, not {self.before}")

    def session(self):
        (found,) = json.loads(
            self.daemon.ctl("sessions", "--json"))["sessions"]
        return found

    def assert_its_death_gives_all_back(self, started):
        self.assertNotEqual(self.ledger(), self.before)
        self.end(started)
        self.assert_all_back()

    def test_a_worker_in_namespaces_of_its_own(self):
        self.start()
        for namespaces in (PID, ("--mount",), ("--user", "--map-root-user"),
                           ("--user", "--map-root-user", *PID),
                           ("--ipc", "--uts", "--net", "--mount", *PID)):
            with self.subTest(namespaces):
                if not can(*namespaces):
                    self.skipTest("no such namespace here")
                started = self.worker(*namespaces)
                # From outside it has a number of ours.
                self.assertTrue(os.path.exists(
                    f"/proc/{self.session()['pid']}/status"))
                self.assert_its_death_gives_all_back(started)

    def test_a_worker_that_hoistd_has_no_number_for(self):
        self.start(Enclosed)
        started = self.worker()
        self.assertEqual(self.session()["pid"], 0)
        (line,) = [line for line in self.daemon.ctl("sessions").splitlines()
                   if " socket " in line]
        self.assertIn(" outside ", line)
        self.assertIn("outside of hoistd's pid namespace",
                      self.daemon.log_text())
        self.assert_its_death_gives_all_back(started)

    def test_its_death_is_seen_though_its_socket_lives(self):
        """By the pidfd, which needs no number."""
        if not hasattr(os, "pidfd_open") or not self.peer_pidfd():
            self.skipTest("this kernel has no SO_PEERPIDFD (Linux 6.5)")
        self.start(Enclosed)
        kept = WORKER.replace("print(", "import os\nif os.fork() == 0: "
                              "os.close(1); import signal; signal.pause()\n"
                              "print(")
        # A child that libhoist knows nothing of keeps the socket open.
        kept = kept.replace("os.fork()", "__import__('ctypes').CDLL(None)"
                            ".syscall(57)")
        started = subprocess.Popen(
            [sys.executable, "-c", kept, self.daemon.socket], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True)
        self.addCleanup(self.end, started)
        self.assertEqual(started.stdout.readline(), "ready\n")
        started.kill()
        started.wait()
        self.assert_all_back()

    @staticmethod
    def peer_pidfd():
        import socket
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                os.close(ours.getsockopt(socket.SOL_SOCKET, 77))
            except OSError:
                return False
        return True


if __name__ == "__main__":
    unittest.main()
