#!/usr/bin/env python3
"""scripts/bench_activations.py, in small, on the emulated device.

activations_test.py HOISTD_FOLDER [-v]; HOISTD_FOLDER is a build's. Nothing is
said here about speed: that rows are right, and move what they say.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import unittest
from typing import Any

BUILD = sys.argv[1]
SCRIPT = pathlib.Path(__file__).parents[2] / "scripts/bench_activations.py"
STEPS = 3


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--bin", BUILD, "--device", "cpu",
         "--size", "tiny", "--steps", str(STEPS), *arguments],
        capture_output=True, text=True, timeout=300, check=False)


@unittest.skipIf(importlib.util.find_spec("torch") is None,
                 "torch is not installed: scripts/setup.sh --for-tests "
                 "--with-torch")
class Activations(unittest.TestCase):
    report: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        done = run("--json", "-")
        try:
            cls.report = json.loads(done.stdout)
        except ValueError:
            raise AssertionError(done.stdout + done.stderr) from None

    def test_all_rows_compute_the_same(self) -> None:
        self.assertEqual(list(self.report["rows"]), [
            "resident", "hoist, half", "hoist, all but 2",
            "two streams, all but 2", "save_on_cpu"])
        for name, row in self.report["rows"].items():
            self.assertIs(row["equal"], True, name)
            self.assertEqual(len(row["all_seconds"]), STEPS, name)

    def test_hoist_moves_the_layers_it_is_told_to(self) -> None:
        rows = self.report["rows"]
        for name, layers in (("hoist, half", 3), ("hoist, all but 2", 4)):
            self.assertEqual(rows[name]["offloaded_layers"], STEPS * layers)
            self.assertEqual(rows[name]["moved_out_bytes"],
                             rows[name]["moved_in_bytes"])
            self.assertGreater(rows[name]["pinned_bytes"], 0)
        self.assertLess(rows["hoist, half"]["moved_out_bytes"],
                        rows["hoist, all but 2"]["moved_out_bytes"])

    def test_a_table_says_whether_the_link_is_fast_enough(self) -> None:
        done = run("--rows", "two")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("two streams, all but 2", done.stdout)
        self.assertNotIn("hoist, half", done.stdout)
        self.assertRegex(done.stdout, r"ms of the link; its forward takes")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
