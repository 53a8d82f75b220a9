"""The spill folder's disk is full, and so is the host: what was taken is reached,
and what is wrong is said.

full_disk_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH and
root, to mount; skipped elsewhere.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, until  # noqa: E402

HOISTD = os.path.abspath(sys.argv.pop(1))
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000
MS_PRIVATE_REC = (1 << 18) | (1 << 14)
GROUP = 4 * MIB
GROUPS = 6  # Two have room on the disk, three on the host.


def why_not():
    """Why this machine cannot run it, or None."""
    if os.getuid() != 0:
        return "needs root, to mount"
    if LIBC.unshare(CLONE_NEWNS) != 0 or LIBC.mount(
            b"none", b"/", None, MS_PRIVATE_REC, None) != 0:
        return "may not mount"
    return None


SKIP = why_not()


def mount(folder, mib, *options):
    subprocess.run(["mount", "-t", "tmpfs", "-o",
                    ",".join([f"size={mib}m", *options]), "none", folder],
                   check=True, capture_output=True)


def bytes_of(group):
    return bytes([group + 1]) * GROUP


@unittest.skipIf(SKIP, SKIP)
class FullDisk(unittest.TestCase):
    def setUp(self):
        self.disk = tempfile.TemporaryDirectory(prefix="hoist-full-")
        self.addCleanup(self.disk.cleanup)
        mount(self.disk.name, 9)
        self.addCleanup(subprocess.run, ["umount", "--lazy", self.disk.name])
        self.daemon = RealDaemon(
            HOISTD, pool=8 * MIB, host=12 * MIB,
            extra=f'[disk]\nspill_dir = "{self.disk.name}/spill"\n'
                  f"spill_capacity = {64 * MIB}")
        self.addCleanup(self.daemon.stop)
        self.session = self.connect()

    def connect(self):
        session = hoist.connect(self.daemon.socket, connect_deadline=60)
        self.addCleanup(session.close)
        return session

    def publish(self, group):
        self.session.publish("m", f"g{group}",
                             {"w": bytearray(bytes_of(group))}, deadline=2)

    def fill(self):
        """How many groups were taken, and what who came next was told."""
        for group in range(GROUPS):
            try:
                self.publish(group)
            except hoist.ResourceExhausted as error:
                return group, str(error)
        raise AssertionError("all were taken")

    def check(self, model, group):
        with self.session.stage(model[f"g{group}"], deadline=20) as lease:
            got, = (tensor.numpy().tobytes() for tensor in lease.values())
            self.assertEqual(got, bytes_of(group))

    def disk_is_full(self):
        return any(int(tier["full_ms"]) for tier in self.daemon.status()["tiers"])

    def test_what_was_taken_is_reached_and_the_disk_is_said_to_be_full(self):
        taken, why = self.fill()
        self.assertEqual(taken, 4)
        self.assertIn("is reserved for groups that only the disk holds", why)
        model = self.session.model("m")
        for group in 2 * list(range(taken)):
            self.check(model, group)
        until(self.disk_is_full)
        self.assertIn("the disk is full: 8.0 MiB published are on no disk",
                      self.daemon.ctl("status"))
        log = (self.daemon.path / "log").read_text()
        self.assertEqual(log.count("the disk is full:"), 1, log)
        # Room ends it.
        mount(self.disk.name, 64, "remount")
        until(lambda: not self.disk_is_full())
        for group in range(taken, GROUPS):
            self.publish(group)

    def test_a_model_that_is_not_whole_says_so_until_it_is(self):
        taken, _ = self.fill()
        self.session.close()
        self.daemon.process.send_signal(signal.SIGTERM)
        self.daemon.process.wait(timeout=60)
        self.daemon.start()
        self.session = self.connect()
        with self.assertRaisesRegex(
                hoist.DataLoss, "2 of its 4 groups are gone.*publish it again"):
            self.session.model("m")
        self.assertRegex(self.daemon.ctl("models"), r"\b2 of 4\b")
        mount(self.disk.name, 64, "remount")
        for group in range(taken):
            self.publish(group)
        model = self.session.model("m")
        for group in range(taken):
            self.check(model, group)


if __name__ == "__main__":
    unittest.main()
