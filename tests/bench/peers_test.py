#!/usr/bin/env python3
"""scripts/bench_peers.py, in small, on the emulated device.

peers_test.py HOISTD_FOLDER [-v]; HOISTD_FOLDER is a build's. Nothing is said
here about speed: that rows end well, are right, and say why they cannot be run.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any

BUILD = sys.argv[1]
SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "bench_peers.py"
NEEDS = ("torch", "safetensors", "accelerate")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--bin", BUILD, "--device", "cpu",
         "--folder", tempfile.gettempdir(), "--passes", "2", "--json", "-",
         *arguments], capture_output=True, text=True, timeout=200, check=False)


@unittest.skipIf(any(importlib.util.find_spec(name) is None for name in NEEDS),
                 f"one of {', '.join(NEEDS)} is not installed: "
                 "scripts/setup.sh --with-torch")
class Peers(unittest.TestCase):
    def rows(self, *arguments: str) -> dict[str, dict[str, Any]]:
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)["rows"]

    def test_all_compute_what_the_resident_model_does(self) -> None:
        rows = self.rows("--model", "tinydit", "--rows",
                         "resident,two-slot,accelerate,hoist@min,"
                         "hoist.load@0.6")
        self.assertEqual({name: row.get("equal", row)
                          for name, row in rows.items()},
                         dict.fromkeys(rows, True))
        for name in ("hoist@min", "hoist.load@0.6"):
            row = rows[name]
            # Counted by hoistd; and what it took is within the budget, in
            # whole slabs.
            self.assertGreater(row["streamed_bytes"], 0, name)
            self.assertLess(row["hoistd_device_bytes"],
                            row["budget_bytes"] + (2 << 20) + 1, name)
        self.assertLess(rows["hoist.load@0.6"]["streamed_bytes"],
                        rows["hoist@min"]["streamed_bytes"])

    def test_workers_share_one_copy_of_the_model(self) -> None:
        rows = self.rows("--model", "tiny", "--rows",
                         "resident,hoist.load@min,3-workers@min")
        one, three = rows["hoist.load@min"], rows["3-workers@min"]
        self.assertTrue(three["equal"])
        self.assertEqual(three["hoistd_pinned_bytes"],
                         one["hoistd_pinned_bytes"])

    def test_many_stagings_move_no_weight(self) -> None:
        row = self.rows("--model", "tiny", "--rows", "hoist-stagings@min",
                        "--stagings", "50")["hoist-stagings@min"]
        self.assertGreaterEqual(row["stagings"], 50)
        self.assertEqual(row["weights_moved"], 0)

    def test_fp8_storage_is_what_the_cast_weights_compute(self) -> None:
        rows = self.rows("--model", "tinydit", "--rows",
                         "resident-fp8,hoist-fp8@min,hoist@min")
        self.assertTrue(rows["hoist-fp8@min"]["equal"])
        self.assertLess(rows["hoist-fp8@min"]["streamed_bytes"],
                        0.7 * rows["hoist@min"]["streamed_bytes"])

    def test_what_cannot_be_run_says_why(self) -> None:
        rows = self.rows("--model", "tiny", "--rows", "diffusers-block")
        self.assertIn("needs an accelerator",
                      rows["diffusers-block"]["left_out"])
        rows = self.rows("--model", "tiny", "--rows", "resident", "--limit",
                         "0.001")
        self.assertIn("--limit", rows["resident"]["left_out"])

    def test_a_row_that_fails_is_a_row_and_an_exit_status(self) -> None:
        done = run("--model", "tiny", "--rows", "hoist.load@8KiB")
        self.assertEqual(done.returncode, 1)
        row = json.loads(done.stdout)["rows"]["hoist.load@8KiB"]
        self.assertIn("exit status 1", row["failed"])

    def test_unknown_row_is_refused_with_those_there_are(self) -> None:
        done = run("--rows", "resident,hoist@nothing")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("two-slot", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
