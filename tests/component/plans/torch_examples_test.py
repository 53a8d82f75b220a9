"""client/examples/stream.py and turns.py on an emulated device, as a user runs
them.

torch_examples_test.py HOISTD [unittest's arguments]

Skipped where there is no PyTorch.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from real_daemon import MIB, RealDaemon  # noqa: E402

HOISTD = ""


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch here")
class TorchExamples(unittest.TestCase):
    def said(self, daemon: RealDaemon, example: str, *options: str) -> str:
        """What the example prints, if all its answers are right."""
        result = subprocess.run(
            [sys.executable, ROOT / "client" / "examples" / example,
             "--socket", daemon.socket, *options],
            capture_output=True, text=True, timeout=120, check=False,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def daemon(self, pool: int) -> RealDaemon:
        daemon = RealDaemon(HOISTD, pool=pool * MIB, host=128 * MIB)
        self.addCleanup(daemon.stop)
        return daemon

    def test_streamed_blocks_compute_what_resident_ones_do(self) -> None:
        said = self.said(self.daemon(64), "stream.py", "--blocks", "12",
                         "--hidden", "256", "--budget", "0.5", "--passes", "3")
        self.assertEqual(said.count(" equal"), 3, said)
        self.assertIn("unplanned=0", said)

    def test_five_models_take_turns_on_a_device_for_two(self) -> None:
        daemon = self.daemon(20)
        for options in ([], ["--hand-over"]):
            with self.subTest(options):
                said = self.said(daemon, "turns.py", "--mib", *["8"] * 5,
                                 "--seconds", "1", *options)
                rows = re.findall(r"^ *8 MiB  ([.~=#]{72})$", said, re.M)
                self.assertEqual(len(rows), 5, said)
                self.assertIn("#", rows[0], said)
                for column in zip(*rows):
                    self.assertLessEqual(column.count("="), 2, said)
                self.assertRegex(
                    said, r"first passes after a sleep: \d+, p50 [\d.]+ ms, "
                    r"p99 [\d.]+ ms\nothers: \d+, p50 ")


if __name__ == "__main__":
    HOISTD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
