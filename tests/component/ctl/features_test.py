"""`hoistctl features`, and the file that it keeps, on a hoistd.

features_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH.
"""

import datetime
import hashlib
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
HOISTCTL = pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"
PREFIX = "feature.node.kubernetes.io/hoist-"
LIMIT_S = 60


def label(name):
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{PREFIX}model.{digest[:32]}"


def features(text):
    return dict(line.split("=") for line in text.splitlines()
                if not line.startswith("#"))


class Features(unittest.TestCase):
    def setUp(self):
        self.daemon = RealDaemon(
            HOISTD, pool=32 * MIB,
            extra=f'[models]\nroots = ["{tempfile.gettempdir()}"]\n')
        self.addCleanup(self.daemon.stop)
        hoist.connect(self.daemon.socket, connect_deadline=LIMIT_S).close()
        self.files = self.daemon.path / "m.safetensors"
        write_safetensors(self.files, block_model())
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "hoist"

    def ctl(self, *words, code=0):
        done = subprocess.run(
            [HOISTCTL, "--socket", self.daemon.grpc_socket, *words],
            check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout + done.stderr

    def load(self, name="m", readers="everyone", tier="host"):
        self.ctl("load", self.files, "--name", name, "--readers", readers,
                 "--tier", tier)

    def keep(self, every="0.1"):
        kept = subprocess.Popen(
            [HOISTCTL, "--socket", self.daemon.grpc_socket, "--timeout", "2",
             "features", "--out", self.out, "--every", every],
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(kept.communicate)
        self.addCleanup(kept.kill)
        return kept

    def written(self):
        try:
            return features(self.out.read_text())
        except FileNotFoundError:
            return {}

    def test_a_model_is_told_with_its_tier(self):
        self.load()
        told = features(self.ctl("features"))
        self.assertEqual(told[label("m")], "host")
        self.assertRegex(told[f"{PREFIX}room.host-gib"], r"^\d+$")
        self.assertIn("host", [value for name, value in told.items()
                               if re.match(PREFIX + r"weights\.[0-9a-f]{32}$",
                                           name)])
        self.ctl("evict", "m", "--tier", "host")
        self.assertEqual(features(self.ctl("features"))[label("m")], "disk")

    def test_what_only_its_owner_may_read_is_told_if_asked_for(self):
        self.load("secret", "owner")
        self.assertNotIn(label("secret"), features(self.ctl("features")))
        self.assertIn(label("secret"), features(self.ctl("features", "--all")))
        self.assertNotIn("secret", self.ctl("features", "--all"))

    def test_no_more_labels_than_asked_for(self):
        for name in ("one", "two", "three"):
            self.load(name)
        told = features(self.ctl("features", "--labels", "5"))
        self.assertLessEqual(len(told), 5)
        self.ctl("features", "--labels", "3", code=2)

    def test_a_file_is_put_there_whole_for_all_to_read(self):
        self.load()
        old = os.umask(0o077)
        self.addCleanup(os.umask, old)
        self.ctl("features", "--out", self.out)
        self.assertEqual(self.written()[label("m")], "host")
        self.assertNotIn("expiry", self.out.read_text())
        self.assertEqual(stat.S_IMODE(self.out.stat().st_mode), 0o644)
        self.assertEqual(os.listdir(self.folder), ["hoist"])

    def test_what_cannot_be_written_is_said(self):
        said = self.ctl("features", "--out", "/nowhere/hoist", code=2)
        self.assertIn("/nowhere/hoist: No such file", said)
        self.ctl("features", "--every", "30s", code=2)

    def test_it_goes_on_until_ended_and_takes_its_file_away(self):
        kept = self.keep()
        until(self.written, seconds=LIMIT_S)
        self.assertNotIn(label("m"), self.written())
        self.load()
        until(lambda: self.written().get(label("m")) == "host",
              seconds=LIMIT_S)
        kept.send_signal(signal.SIGTERM)
        self.assertEqual(kept.wait(LIMIT_S), 0)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_it_writes_expires_after_three_times(self):
        before = datetime.datetime.now(datetime.timezone.utc)
        self.keep("30s")
        until(self.written, seconds=LIMIT_S)
        said = re.match(r"# \+expiry-time=(\S+)Z\n", self.out.read_text())[1]
        expires = datetime.datetime.fromisoformat(said + "+00:00")
        self.assertLessEqual(89, (expires - before).total_seconds())
        self.assertLessEqual((expires - before).total_seconds(), 90 + LIMIT_S)

    def test_a_hoistd_that_is_gone_has_no_features(self):
        kept = self.keep()
        until(self.written, seconds=LIMIT_S)
        self.daemon.stop()
        until(lambda: not self.out.exists(), seconds=LIMIT_S)
        self.assertIsNone(kept.poll())
        kept.send_signal(signal.SIGTERM)
        self.assertEqual(kept.wait(LIMIT_S), 0)
        self.assertEqual(kept.stderr.read().count("no hoistd at"), 1)


if __name__ == "__main__":
    unittest.main()
