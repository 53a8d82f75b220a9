"""hoistd is stopped, and every verb of hoistctl ends within its --timeout.

stopped_ctl_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH.
"""

import contextlib
import json
import pathlib
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, halt,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
HOISTCTL = pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"
PATIENCE = 120  # Seconds; hoistctl's own default is 5.
NO_DAEMON = 3
MODEL = ["--tier", "device"]
VERBS = {
    "status": [], "top": [], "models": [], "groups": ["m"], "sessions": [], "plans": [],
    "explain": ["m"], "end": ["7"], "sleep": ["7"], "wake": ["7"], "watch": [], "load": ["/some/model"], "check": [], "pin": ["m", *MODEL],
    "unpin": ["m", *MODEL], "evict": ["m"],
    "share": ["--loads", "0", "--max-rate", "1GB"], "drain": [],
    "config": [], "doctor": ["--no-disk"], "reload": [], "log-level": ["info"],
    "trace": ["record", "--out", "-"], "features": [],
}
LOCAL = {"version", "help", "completion", "schema"}


class DescriptorTable(unittest.TestCase):
    """A table that grows stops all threads that want a descriptor, for as long
    as the kernel likes: five seconds and more on a busy machine."""

    def test_it_is_large_from_the_start_on(self):
        daemon = RealDaemon(HOISTD)
        self.addCleanup(daemon.stop)
        hoist.connect(daemon.socket, connect_deadline=60).close()
        before = self.size(daemon)
        _, most = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        self.assertGreaterEqual(before, min(most, 65536))
        for _ in range(20):  # Connections' descriptors have high numbers.
            daemon.ctl("status")
        self.assertEqual(self.size(daemon), before)

    def size(self, daemon):
        status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
        return int(re.search(r"^FDSize:\s+(\d+)$", status, re.MULTILINE)[1])


class Stopped(unittest.TestCase):
    def setUp(self):
        self.daemon = RealDaemon(HOISTD)
        self.addCleanup(self.daemon.stop)
        self.path = self.daemon.path / "m.safetensors"
        write_safetensors(self.path, {"w": ("U8", [MIB], bytes(MIB))})
        with hoist.connect(self.daemon.socket, connect_deadline=60) as session:
            session.register(self.path, "m")
        # Behind the test's own end, whatever becomes of it.
        self.addCleanup(self.go_on)

    def go_on(self):
        self.daemon.process.send_signal(signal.SIGCONT)

    @contextlib.contextmanager
    def stopped(self):
        halt(self.daemon.process.pid)
        yield
        self.go_on()

    def start(self, *words):
        return subprocess.Popen(
            [HOISTCTL, "--socket", self.daemon.grpc_socket, *words], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def assert_says_so(self, ran, json_error=False):
        """It ends, however busy the machine is."""
        try:
            _, said = ran.communicate(timeout=PATIENCE)
        finally:
            ran.kill()
        self.assertEqual(ran.returncode, NO_DAEMON, said)
        if json_error:
            error = json.loads(said)["error"]
            said = f"hoistctl: {error['code']}: {error['message']}\n"
        self.assertRegex(
            said, r"^hoistctl: DEADLINE_EXCEEDED: hoistd( \(pid \d+\))? gives no "
            r"sign of life at \S+ for [0-9.]+ s; it is stopped, hangs, or is "
            r"very busy \(--timeout\)\n$")
        return said

    def test_all_verbs_are_tried(self):
        help_text = subprocess.run([HOISTCTL, "--help"], check=True, text=True,
                                   capture_output=True).stdout
        self.assertRegex(help_text, r"--timeout[^\n]*\n?[^\n]*sign of life")
        listed = re.findall(r"^  ([a-z-]+) ", help_text.split("Subcommands:")[1],
                            re.M)
        self.assertEqual(set(listed), set(VERBS) | LOCAL)

    def test_each_verb_ends(self):
        with self.stopped():
            started = [self.start(verb, *words)
                       for verb, words in VERBS.items()]
            for ran in started:
                said = self.assert_says_so(ran)
                self.assertIn(f"(pid {self.daemon.process.pid})", said)
        self.assertEqual(self.daemon.status()["models"], 1)

    def test_the_timeout_can_be_given(self):
        with self.stopped():
            said = self.assert_says_so(
                self.start("status", "--timeout", "0.2"))
            self.assertIn(" for 0.2 s;", said)

    def test_verbs_under_way_end(self):
        """What follows something for as long as that takes."""
        watch = self.start("watch", "--json", "--timeout", "1")
        # It is there once it tells what others do.
        while not self.told(watch):
            self.daemon.ctl("pin", "m", *MODEL)
            self.daemon.ctl("unpin", "m", *MODEL)
            self.daemon.ctl("evict", "m")
        with hoist.connect(self.daemon.socket) as session:
            lease = session.stage(next(iter(session.model("m"))))
            drain = self.start("drain", "--deadline", "3600", "--timeout", "1")
            self.assertIn("1 leases left", drain.stdout.readline())
            with self.stopped():
                self.assert_says_so(drain)
                self.assert_says_so(watch, json_error=True)
            lease.check()
        self.daemon.ctl("drain", "--resume")

    def told(self, watch):
        return select.select([watch.stdout], [], [], 0)[0]

    def test_a_full_queue_of_connections_is_no_wait(self):
        with self.stopped(), contextlib.ExitStack() as stack:
            while True:
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                try:
                    one.connect(self.daemon.grpc_socket)
                except BlockingIOError:
                    break
            self.assert_says_so(self.start("status", "--timeout", "1"))

    def test_what_lasts_longer_than_the_timeout_goes_on(self):
        """A verb that waits for a living hoistd is not cut short."""
        with hoist.connect(self.daemon.socket) as session:
            lease = session.stage(next(iter(session.model("m"))))
            drain = self.start("drain", "--deadline", "5", "--timeout", "1.5")
            _, said = drain.communicate(timeout=60)
            self.assertEqual(drain.returncode, 1, said)
            self.assertNotIn("sign of life", said)
            lease.release()


if __name__ == "__main__":
    unittest.main()
