"""Workers' own copies beside a plan that streams, over a real hoistd.

permits_test.py HOISTD KEEPER [unittest options]; needs HOIST_LIBRARY and
PYTHONPATH.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from hoist._copy_permit import PIECE_BYTES, CopyPermit  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
KEEPER = sys.argv.pop(1)
BLOCKS = 12
# A worker: copies a piece after the other, a line each; or streams a plan, a
# line a pass.
COPIES = """
import ctypes, sys, hoist
from hoist._copy_permit import CopyPermit
permit = CopyPermit(hoist.connect(sys.argv[1], connect_deadline=60, name="copies"))
memory = ctypes.create_string_buffer(2 << 20)
at = ctypes.addressof(memory)
while True:
    permit.to_device(at, at + (1 << 20), 1 << 20)
    print(flush=True)
"""
STREAMS = """
import sys, hoist
session = hoist.connect(sys.argv[1], connect_deadline=60, name="streams")
model = session.register(sys.argv[2], "m")
groups = list(model.groups)
plan = session.set_plan(model, order=groups, budget=5 << 20)
while True:
    for group in groups:
        with plan.use(group):
            pass
    plan.check()
    print(flush=True)
"""


class CopyPermits(unittest.TestCase):
    def start(self, keeper=None, link="200MB/s"):
        self.daemon = RealDaemon(
            HOISTD, keeper=keeper,
            extra=f'[device.emulated]\nlink = "{link}"\n')
        self.addCleanup(self.daemon.stop)
        hoist.connect(self.daemon.socket, connect_deadline=60).close()
        self.model = self.daemon.path / "m.safetensors"
        write_safetensors(self.model, block_model(BLOCKS))

    def connect(self):
        session = hoist.connect(self.daemon.socket, connect_deadline=60,
                                name="a worker")
        self.addCleanup(session.close)
        return session

    def worker(self, program):
        running = subprocess.Popen(
            [sys.executable, "-c", program, self.daemon.socket,
             str(self.model)], stdout=subprocess.PIPE, text=True)

        def end():
            running.kill()
            running.communicate()
        self.addCleanup(end)
        return running

    def goes_on(self, worker, lines=5):
        for _ in range(lines):
            self.assertEqual(worker.stdout.readline(), "\n")

    def link(self):
        """{"own_bytes": ..., "permits": [...]} of device 0."""
        return self.daemon.status()["links"][0]

    def permits(self):
        return self.link()["permits"]

    def test_what_is_copied_each_way_is_counted(self):
        self.start()
        session = self.connect()
        source = ctypes.create_string_buffer(bytes(range(256)) * 4096)
        target = ctypes.create_string_buffer(len(source))
        with CopyPermit(session, weight=3) as permit:
            permit.to_device(ctypes.addressof(target),
                             ctypes.addressof(source), MIB)
            self.assertEqual(target.raw[:MIB], source.raw[:MIB])
            permit.to_host(ctypes.addressof(source),
                           ctypes.addressof(target), 1000)
            with permit.turn(24):
                pass
            self.assertEqual(permit.stats.granted_bytes, MIB + 24)
            self.assertEqual(permit.stats.to_host_bytes, 1000)
            until(lambda: int(self.link()["own_bytes"]) == MIB + 24)
            self.assertEqual(int(self.link()["own_read_bytes"]), 1000)
            (shown,) = self.permits()
            self.assertEqual(shown["client_name"], "a worker")
            self.assertEqual(int(shown["copied_bytes"]), MIB + 24)
            self.assertEqual(shown["share"]["weight"], 3)
            text = self.daemon.ctl("status")
            self.assertIn("copied by workers: 1.0 MiB to the device, 1000 B "
                          "from it", text)
            self.assertIn(f"permit {shown['id']}, session", text)
        # What was copied stays counted.
        self.assertEqual(self.permits(), [])
        self.assertEqual(int(self.link()["own_bytes"]), MIB + 24)

    def test_an_admin_changes_its_share(self):
        self.start()
        permit = CopyPermit(self.connect())
        self.addCleanup(permit.close)
        number = self.permits()[0]["id"]
        said = self.daemon.ctl("share", "--permit", number, "--weight", "7",
                               "--priority", "2", "--max-rate", "1MB/s")
        self.assertIn(f"permit {number}: weight 1, priority 0, no cap -> "
                      "weight 7, priority 2, at most ", said)
        self.assertEqual(self.permits()[0]["share"]["weight"], 7)
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            self.daemon.ctl("share", "--permit", "9", "--weight", "7")
        self.assertIn("`hoistctl status` lists them", refused.exception.stderr)

    def test_it_keeps_its_session(self):
        self.start()
        memory = ctypes.create_string_buffer(2 * MIB)
        at = ctypes.addressof(memory)
        with CopyPermit(hoist.connect(self.daemon.socket)) as permit:
            self.assertEqual(len(self.permits()), 1)
            permit.to_device(at, at + MIB, MIB)
            self.assertEqual(permit.stats.granted_bytes, MIB)
        until(lambda: not self.daemon.status()["sessions"])

    def test_a_session_has_eight(self):
        self.start()
        session = self.connect()
        permits = [CopyPermit(session) for _ in range(8)]
        with self.assertRaisesRegex(hoist.ResourceExhausted, "close one"):
            CopyPermit(session)
        permits.pop().close()
        permits.append(CopyPermit(session))
        for permit in permits:
            permit.close()

    def test_bad_input(self):
        self.start()
        session = self.connect()
        with self.assertRaisesRegex(hoist.NotFound, "no device 3"):
            CopyPermit(session, device=3)
        with self.assertRaisesRegex(hoist.InvalidArgument, "weight"):
            CopyPermit(session, weight=0)
        permit = CopyPermit(session)
        with self.assertRaisesRegex(hoist.InvalidArgument, "the most"):
            with permit.turn(PIECE_BYTES + 1):
                pass
        permit.close()
        permit.close()
        with self.assertRaises(hoist.FailedPrecondition):
            permit.to_device(1, 1, 1)

    def test_neither_holds_up_the_other_however_one_ends(self):
        self.start()
        copies, streams = self.worker(COPIES), self.worker(STREAMS)
        self.goes_on(copies)
        self.goes_on(streams)
        copies.send_signal(signal.SIGSTOP)
        self.goes_on(streams)
        copies.send_signal(signal.SIGCONT)
        self.goes_on(copies)
        streams.send_signal(signal.SIGSTOP)
        self.goes_on(copies)
        streams.send_signal(signal.SIGCONT)
        copies.kill()
        until(lambda: self.permits() == [])
        self.goes_on(streams)
        again = self.worker(COPIES)
        self.goes_on(again)
        streams.kill()
        self.goes_on(again)

    def test_a_dead_hoistd_holds_up_nobody(self):
        self.start()
        permit = CopyPermit(self.connect())
        memory = ctypes.create_string_buffer(16)
        at = ctypes.addressof(memory)
        permit.to_device(at, at + 8, 8)
        self.daemon.kill()
        until(lambda: not permit.stats.grants)
        permit.to_device(at, at + 8, 8)
        self.assertEqual(permit.stats.ungranted_bytes, 8)
        permit.close()

    def test_grants_go_on_under_the_next_hoistd(self):
        self.start(keeper=KEEPER)
        permit = CopyPermit(self.connect(), weight=5)
        self.addCleanup(permit.close)
        (before,) = self.permits()
        os.kill(self.daemon.status()["pid"], signal.SIGKILL)
        memory = ctypes.create_string_buffer(16)
        at = ctypes.addressof(memory)
        permit.to_device(at, at + 8, 8)  # Granted or not: it does not hang.

        def opened_again():
            try:
                return [one for one in self.permits()
                        if one["id"] != before["id"]]
            except subprocess.CalledProcessError:
                return []
        (after,) = until(opened_again)
        self.assertEqual(after["share"]["weight"], 5)
        self.assertEqual(after["session_id"], before["session_id"])
        until(lambda: permit.stats.grants)
        permit.to_device(at, at + 8, 8)
        until(lambda: int(self.permits()[0]["copied_bytes"]) >= 8)


if __name__ == "__main__":
    unittest.main()
