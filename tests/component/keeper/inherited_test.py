"""What hoistd and hoist-keeper have from their parents ends neither of them:
signals, closed descriptors, a log that nobody reads.
"""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

from kept import HOISTD, KEEPER, Kept
from real_daemon import MIB, until

# They say that the program is at fault, or are meant to end it.
FAULTS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL,
          signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP, signal.SIGKILL}
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
HALTS = {signal.SIGSTOP, signal.SIGTSTP}  # Until SIGCONT.
OTHERS = sorted(set(signal.valid_signals()) - FAULTS - HALTS - set(STOPS))


class Inherited(Kept):
    def begin(self, keeper=None, limits=None):
        super().begin(keeper=keeper, limits=limits)
        self.daemon.until_served()

    def begin_with_log(self, log, keeper):
        """The same, and it logs there."""
        self.begin(keeper)
        self.daemon.process.terminate()
        self.daemon.process.wait(timeout=60)
        self.daemon.process = subprocess.Popen(
            self.daemon.kept(keeper) +
            [HOISTD, "--config", str(self.daemon.path / "hoistd.toml")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.daemon.until_served()

    def publish(self):
        with self.connect() as session:
            session.publish("m", "g", {"w": bytearray([7] * MIB)})

    def check_published(self):
        with self.connect() as session:
            with session.stage(session.model("m")["g"], deadline=30) as lease:
                self.assertEqual(set(bytes(lease["w"].numpy())), {7})

    def take_all(self, pid):
        for number in OTHERS:
            os.kill(pid, number)
        # One that ends it does so before it serves anybody again.
        self.assertIsNotNone(until(self.daemon.pid))
        self.assertIsNone(self.daemon.process.poll())

    def test_no_signal_but_those_that_ask_for_it_ends_hoistd(self):
        self.begin()
        pid = self.daemon.process.pid
        self.publish()
        self.take_all(pid)
        self.assertEqual(self.daemon.pid(), pid)
        self.check_published()

    def test_nor_its_keeper(self):
        self.begin(KEEPER)
        self.publish()
        served = self.daemon.pid()
        self.take_all(self.daemon.process.pid)
        self.assertEqual(self.daemon.pid(), served)
        self.daemon.kill_kept()
        self.check_published()

    def test_each_signal_that_asks_to_stop_stops_in_order(self):
        self.begin()
        for number in STOPS:
            self.daemon.process.send_signal(number)
            self.assertEqual(self.daemon.process.wait(timeout=60), 0, number)
            self.assertIn(f"stopping ({signal.Signals(number).name})",
                          self.daemon.log_text())
            self.daemon.start()
            self.daemon.until_served()

    def test_each_stops_the_keeper_and_its_hoistd(self):
        for number in STOPS:
            self.begin(KEEPER)
            served = self.daemon.pid()
            self.daemon.process.send_signal(number)
            self.assertEqual(self.daemon.process.wait(timeout=60), 0, number)
            self.assertFalse(pathlib.Path(f"/proc/{served}").exists())

    def test_signals_that_the_parent_ignored_or_blocked(self):
        def parent():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.begin(KEEPER, limits=parent)
        self.publish()
        self.daemon.kill_kept()
        self.check_published()
        self.daemon.process.terminate()
        self.assertEqual(self.daemon.process.wait(timeout=60), 0)

    def test_what_a_keeper_runs_ignores_and_blocks_nothing(self):
        self.begin()
        said = subprocess.run(
            [KEEPER, "--dir", str(self.daemon.path), "--", "grep", "^Sig",
             "/proc/self/status"], capture_output=True, text=True, timeout=60)
        masks = dict(line.split(":\t") for line in said.stdout.splitlines())
        self.assertEqual(int(masks["SigIgn"], 16), 0)
        self.assertEqual(int(masks["SigBlk"], 16), 0)

    def closed(self, keeper):
        for which in ([0], [1], [2], [0, 1], [0, 1, 2]):
            with self.subTest(closed=which):
                def parent(which=which):
                    for number in which:
                        os.close(number)
                self.begin(keeper, limits=parent)
                for pid in {self.daemon.process.pid, until(self.daemon.pid)}:
                    for number in which:
                        self.assertEqual(
                            os.readlink(f"/proc/{pid}/fd/{number}"),
                            "/dev/null")
                self.publish()
                if keeper:
                    self.daemon.kill_kept()
                self.check_published()

    def test_hoistd_with_descriptors_closed(self):
        self.closed(None)

    def test_a_keeper_with_descriptors_closed(self):
        self.closed(KEEPER)

    def test_a_keeper_whose_log_nobody_reads_any_more(self):
        read, write = os.pipe()
        self.begin_with_log(write, KEEPER)
        os.close(write)
        self.publish()
        os.close(read)
        for _ in range(3):
            self.daemon.kill_kept()
            self.check_published()
        self.assertIsNone(self.daemon.process.poll())

    def test_a_keeper_whose_log_has_no_room(self):
        with open("/dev/full", "wb") as full:
            self.begin_with_log(full, KEEPER)
        self.publish()
        self.daemon.kill_kept()
        self.check_published()


if __name__ == "__main__":
    unittest.main()
