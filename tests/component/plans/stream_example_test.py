"""client/examples/stream.py on an emulated device, as a user runs it.

stream_example_test.py HOISTD [unittest's arguments]

Skipped where there is no PyTorch.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from real_daemon import MIB, RealDaemon  # noqa: E402

HOISTD = ""


@unittest.skipIf(importlib.util.find_spec("torch") is None, "no PyTorch here")
class StreamExample(unittest.TestCase):
    def test_streamed_blocks_compute_what_resident_ones_do(self) -> None:
        daemon = RealDaemon(HOISTD, pool=64 * MIB, host=128 * MIB)
        self.addCleanup(daemon.stop)
        result = subprocess.run(
            [sys.executable, ROOT / "client" / "examples" / "stream.py",
             "--socket", daemon.socket, "--blocks", "12", "--hidden", "256",
             "--budget", "0.5", "--passes", "3"],
            capture_output=True, text=True, timeout=120, check=False,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stdout.count(" equal"), 3, result.stdout)
        self.assertIn("unplanned=0", result.stdout)


if __name__ == "__main__":
    HOISTD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
