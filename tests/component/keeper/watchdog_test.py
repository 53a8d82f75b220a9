"""A hoistd that hangs is ended by hoist-keeper, and workers go on.
"""

import os
import pathlib
import signal
import subprocess
import time
import unittest

from kept import KEEPER, Kept, bytes_of, needs_numpy
from real_daemon import MIB, until

GROUPS = 8
INTERVAL = 3  # Seconds.


@needs_numpy
class Watchdog(Kept):
    def start(self, *keeper_options):
        self.begin(pool=32 * MIB, host=64 * MIB, keeper=KEEPER,
                   keeper_options=keeper_options)
        self.session = self.connect()
        self.addCleanup(self.session.close)
        self.model = self.session.register(self.write_model(GROUPS), "files")
        self.session.publish("mine", "g", {"w": bytes_of(99)})
        self.lease = self.session.stage(self.model["layers.0"])
        self.held = self.lease["layers.0.w"]
        self.plan = self.session.set_plan(self.model, budget=4 * MIB,
                                          order=list(self.model))
        self.step = 0

    def stream(self, steps=GROUPS):
        for _ in range(steps):
            group = self.step % GROUPS
            with self.plan.use(self.model[f"layers.{group}"]) as tensors:
                self.check(group, tensors[f"layers.{group}.w"])
            self.step += 1

    def works_on(self):
        """The worker has what it had, by the same session."""
        self.check(0, self.held)
        self.lease.check()
        self.stream(GROUPS + 3)
        mine = self.session.model("mine")
        with self.session.stage(mine["g"]) as lease:
            self.check(99, lease["w"])

    def hang(self):
        """hoistd, until its keeper has started another."""
        self.daemon.kill_kept(signal.SIGSTOP)

    def stream_for(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.stream()

    def ends(self):
        return self.daemon.log_text().count("has given no sign of life for")

    def test_one_that_hangs_is_started_again_and_nothing_is_lost(self):
        self.start("--watchdog", f"{INTERVAL}s")
        self.stream(5)
        for times in (1, 2):
            self.hang()
            self.assertEqual(self.ends(), times)
            self.works_on()
        self.assertIn(f"no sign of life for {INTERVAL}s",
                      self.daemon.log_text())
        counters = self.daemon.counters()
        self.assertEqual(counters["file_read_bytes"], 0)
        self.assertEqual(self.daemon.status()["notes"], [])
        opened = self.daemon.log_text().count(" opened by ")
        self.assertEqual(opened, 1)

    def test_one_that_lives_is_left_alone(self):
        self.start("--watchdog", f"{INTERVAL}s")
        pid = until(self.daemon.pid)
        self.stream_for(2.5 * INTERVAL)
        self.assertEqual(self.daemon.pid(), pid)
        self.assertEqual(self.ends(), 0)

    def test_a_container_that_was_paused_goes_on(self):
        self.start("--watchdog", f"{INTERVAL}s")
        pid = until(self.daemon.pid)
        both = (self.daemon.process.pid, pid)
        for process in both:
            os.kill(process, signal.SIGSTOP)
        end = time.monotonic() + INTERVAL + 2
        until(lambda: time.monotonic() > end)
        for process in both:
            os.kill(process, signal.SIGCONT)
        self.works_on()
        self.stream_for(INTERVAL + 2)
        self.assertEqual(self.daemon.pid(), pid)
        self.assertEqual(self.ends(), 0)
        self.hang()
        self.assertEqual(self.ends(), 1)

    def take_over(self, *keeper_options):
        """By another keeper: the first one is killed."""
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon.keeper_options = list(keeper_options)
        self.daemon.start(KEEPER)
        until(lambda: any("has taken over" in note
                          for note in self.daemon.status()["notes"]))

    def test_an_orphan_is_watched_as_it_was_told(self):
        self.start("--watchdog", f"{INTERVAL}s")
        pid = until(self.daemon.pid)
        self.take_over("--watchdog", "24h")
        self.assertEqual(self.daemon.pid(), pid)
        self.hang()
        self.assertEqual(self.ends(), 1)
        self.works_on()

    def test_an_orphan_that_gives_no_signs_is_left_alone(self):
        self.start("--watchdog", "off")
        pid = until(self.daemon.pid)
        environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        self.assertNotIn(b"WATCHDOG", environ)
        self.take_over("--watchdog", "1s")
        self.stream_for(INTERVAL)
        self.assertEqual(self.daemon.pid(), pid)
        self.assertEqual(self.ends(), 0)


class Options(unittest.TestCase):
    def test_what_makes_no_sense_is_refused(self):
        for text in ("30", "-1s", "500ms", "25h", "never", ""):
            said = subprocess.run(
                [KEEPER, f"--watchdog={text}", "--", "true"],
                capture_output=True, text=True, timeout=60)
            self.assertNotEqual(said.returncode, 0, text)
            self.assertIn("watchdog", said.stderr + said.stdout, text)


if __name__ == "__main__":
    unittest.main()
