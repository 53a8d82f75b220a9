"""What hoistd's log says: limits, levels, and fields of the journal.

logs_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH and
NumPy.
"""

import ctypes
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, until, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

HOISTD = sys.argv.pop(1)
LINES = 60  # Of a kind in a window: daemon/log/limited_sink.h.
SECRET = "correct-horse-battery-staple"
# A model's name that would be a line of its own.
FORGED = "x\n[hoistd] [info] audit: act=evict uid=0 pid=1"


class Logs(unittest.TestCase):
    def start(self, **options):
        self.daemon = RealDaemon(HOISTD, **options)
        self.addCleanup(self.stop)
        self.connect().close()

    def stop(self):
        if self.daemon is not None:
            self.daemon.stop()

    def connect(self, name="tester"):
        return hoist.connect(self.daemon.socket, connect_deadline=60,
                             name=name)

    def lines(self, pattern):
        return [line for line in self.daemon.log_text().splitlines()
                if re.search(pattern, line)]

    def line(self, pattern):
        """A line like this comes."""
        try:
            return until(lambda: self.lines(pattern), seconds=20)[-1]
        except AssertionError:
            self.fail(f"no line is like {pattern!r}:\n"
                      f"{self.daemon.log_text()[-12000:]}")


@unittest.skipIf(np is None, "needs NumPy")
class Limit(Logs):
    def refuse(self, session, times):
        for _ in range(times):
            with self.assertRaises(hoist.InvalidArgument):
                session.publish(FORGED, "g", {"w": np.zeros(8, np.uint8)})

    def test_what_a_client_provokes_fills_no_journal(self):
        self.start()
        with self.connect() as session:
            self.refuse(session, 1000)
        refused = self.lines(r"session \d+ of pid \d+ uid \d+: request \d+ is "
                             r"refused: INVALID_ARGUMENT: ")
        written = [line for line in refused if " more lines " not in line]
        self.assertEqual(len(written), LINES)
        # Without a line of any kind, too.
        told = until(lambda: self.lines("more lines like this"), seconds=60)
        self.assertEqual(len(told), 1)
        self.assertRegex(told[0], rf"{1000 - LINES} more lines like this in "
                                  r"the last \d+ s: session ")
        # Nobody writes another's lines.
        self.assertEqual(self.lines(r"^\[hoistd\]"), [])
        self.assertEqual(self.lines("audit: act=evict uid=0 pid=1$"), [])

    def test_what_is_left_out_at_the_end_is_told(self):
        self.start()
        with self.connect() as session:
            self.refuse(session, LINES + 7)
        self.daemon.process.terminate()
        self.daemon.process.wait(timeout=60)
        self.assertEqual(
            len(self.lines("7 more lines like this in the last .* refused")),
            1)

    def test_acts_of_admins_are_all_there(self):
        self.start()
        for _ in range(LINES + 10):
            self.daemon.ctl("drain", "--resume")
        self.assertEqual(len(self.lines(r"audit: act=resume uid=\d+ pid=\d+")),
                         LINES + 10)


    @unittest.skipIf(os.geteuid() != 0, "needs root, to be another user")
    def test_what_others_try_as_admins_is_limited(self):
        self.start(mode="0666")
        self.daemon.path.chmod(0o755)
        ctl = self.daemon.binary.parents[1] / "client" / "ctl" / "hoistctl"
        for _ in range(LINES + 10):
            done = subprocess.run(
                [ctl, "--socket", self.daemon.grpc_socket, "drain"],
                check=False, capture_output=True, text=True, user=12345,
                group=12345, extra_groups=[])
            self.assertIn("Admin is for", done.stderr)
        tried = self.lines(r"\[warning\] audit: act=drain uid=12345 pid=\d+ .*"
                           r"result=PERMISSION_DENIED")
        self.assertEqual(len(tried), LINES)
        # Of an admin's there is room.
        self.daemon.ctl("drain", "--resume")
        self.line("audit: act=resume uid=0")


@unittest.skipIf(np is None, "needs NumPy")
class Debug(Logs):
    def model(self, blocks=6):
        path = self.daemon.path / "files.safetensors"
        write_safetensors(path, {
            f"layers.{block}.w": (
                "U8", [MIB],
                (SECRET.encode() * MIB)[:MIB - 1] + bytes([block]))
            for block in range(blocks)})
        return path

    def use(self):
        """All that a debug line tells of, by a worker and an admin."""
        with self.connect() as session:
            model = session.register(self.model(), "files")
            for group in model:  # More than the device holds.
                session.stage(group).release()
            held = [session.stage(model["layers.1"])]
            plan = session.set_plan(model, budget=2 * MIB, order=list(model))
            plan.close()
            session.publish("mine", "g", {"w": np.zeros(4096, np.uint8)})
            with self.assertRaises(hoist.NotFound):
                session.model("nobody-has-it")
            # These two are the session's at its end.
            held.append(session.set_plan(model, budget=2 * MIB,
                                         order=list(model)))
            session.close()
        until(lambda: self.daemon.tier("DEVICE")["leased_bytes"] == 0)
        self.daemon.ctl("evict", "files", "--tier", "device")
        self.daemon.ctl("evict", "mine", "--forget")

    def test_it_says_what_happens(self):
        os.environ["HOIST_TEST_PASSWORD"] = SECRET
        self.addCleanup(os.environ.pop, "HOIST_TEST_PASSWORD")
        self.start(pool=4 * MIB, slab=2 * MIB, extra="[quota]\nplans = 7\n")
        config = self.daemon.path / "hoistd.toml"
        self.assertEqual(self.lines(r"\[debug\]"), [])
        self.daemon.ctl("log-level", "debug")
        self.use()
        config.write_text(config.read_text().replace("plans = 7", "plans = 9"))
        self.daemon.ctl("reload")
        for pattern in (
                r"session-opened session \d+: tester",
                r"session \d+ of pid \d+ uid \d+: request \d+: register_model",
                r"session-closed session \d+: gave back 1 leases, 1 plans",
                r"model-added files session \d+, 6\.0 MiB",
                r"model-forgotten mine",
                r"a process is made for files of uid \d+",
                r"copy-present files/layers\.0 on host, 1\.0 MiB",
                r"copy-present files/layers\.0 on device 0, 1\.0 MiB",
                r"copy-present mine/g on host.*: published",
                r"copy-dropped files/layers\.\d on device 0.*: evicted",
                r"copy-dropped files/layers\.\d on device 0.*: by an admin",
                r"file -> host files/layers\.0: \d+ B in [\d.]+ ms, \d+ MB/s",
                r"host -> device 0 files/layers\.0: 1048576 B in [\d.]+ ms",
                r"client.* g: 4096 B in",
                r"stage of files/layers\.0 on device 0 by session \d+ waited "
                r"[\d.]+ ms",
                r"plan \d+ of session \d+ stands on device 0: budget 2\.0 MiB, "
                r"6 groups, \d+ resident \(.*\), ring .*, .* streamed a pass",
                r"plan \d+ on device 0 ends",
                r"slab \d+ of device 0 is made: 2\.0 MiB",
                r"slab \d+ of device 0 is there",
                r"request \d+ is refused: NOT_FOUND: .*nobody-has-it",
        ):
            self.assertRegex(self.line(pattern), r"\[debug\]")
        # What is read again of hoistd.toml says info again, and then nothing.
        self.assertRegex(
            self.line(r"reload: quota\.plans = 9"),
            rf"\({re.escape(str(config))}:\d+; before 7\)")
        self.assertRegex(self.line(r"reload: quota\.models = "), "default")
        said = self.daemon.log_text()
        self.assertNotIn(SECRET, said)
        self.daemon.ctl("drain", "--resume")
        self.assertIn("act=resume", self.daemon.log_text()[len(said):])
        with self.connect() as session:
            session.register(self.model(), "other")
        self.assertNotIn("[debug]", self.daemon.log_text()[len(said):])


def own_journal(folder):
    """Before exec: /run/systemd/journal is this folder, for hoistd alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result):
        if result != 0:
            raise OSError(ctypes.get_errno(), "no namespace of its own")

    def become():
        must(libc.unshare(0x00020000))  # CLONE_NEWNS
        must(libc.mount(b"none", b"/", None, 0x44000, None))  # Private.
        must(libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None))
        os.makedirs("/run/systemd/journal")
        must(libc.mount(str(folder).encode(), b"/run/systemd/journal", None,
                        0x1000, None))  # MS_BIND
    return become


@unittest.skipIf(os.geteuid() != 0, "needs root, for a journal of its own")
class Journal(Logs):
    def receive(self):
        """The fields of what hoistd has sent to its journal."""
        found = []
        self.journal.settimeout(0.2)
        try:
            while True:
                packet = self.journal.recv(1 << 16)
                # Values of these fields are one line each.
                found.append(dict(
                    line.split("=", 1) for line in
                    packet.decode(errors="replace").splitlines()
                    if "=" in line))
        except TimeoutError:
            self.entries += found
        return self.entries

    def entry(self, text):
        return until(lambda: [one for one in self.receive()
                              if text in one.get("MESSAGE", "")])[0]

    def test_a_line_has_its_priority_and_place(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-journal-")
        self.addCleanup(folder.cleanup)
        self.entries = []
        self.journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.journal.close)
        self.journal.bind(f"{folder.name}/socket")
        self.start()
        self.daemon.kill()
        config = self.daemon.path / "hoistd.toml"
        config.write_text(config.read_text().replace(
            'sink = "stderr"', 'sink = "journal"\nlevel = "debug"'))
        try:
            self.daemon.start(limits=own_journal(folder.name))
        except subprocess.SubprocessError as error:
            self.skipTest(str(error))
        started = self.entry("serves")
        self.assertEqual(started["SYSLOG_IDENTIFIER"], "hoistd")
        self.assertEqual(started["PRIORITY"], "6")
        self.assertTrue(started["CODE_FILE"].endswith("daemon/app/main.cc"))
        self.assertGreater(int(started["CODE_LINE"]), 1)
        self.connect().close()
        self.assertEqual(self.entry("session-opened")["PRIORITY"], "7")
        self.daemon.process.terminate()
        self.daemon.process.wait(timeout=60)
        self.assertEqual(self.entry("stopping (SIGTERM)")["PRIORITY"], "6")


if __name__ == "__main__":
    unittest.main()
