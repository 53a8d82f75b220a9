#!/usr/bin/env python3
"""scripts/bench_peers.py, in small, on the emulated device.

peers_test.py HOISTD_FOLDER [Rows | MoreRows] [-v]; HOISTD_FOLDER is a build's.
Nothing is said here about speed: that rows end well, are right, and say why they
cannot be run. Each row is a process that imports torch, so CI has Rows alone.
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


needs = unittest.skipIf(
    any(importlib.util.find_spec(name) is None for name in NEEDS),
    f"one of {', '.join(NEEDS)} is not installed: "
    "scripts/setup.sh --for-tests --with-torch")


@needs
class Rows(unittest.TestCase):
    done: subprocess.CompletedProcess[str]
    rows: dict[str, dict[str, Any]]

    @classmethod
    def setUpClass(cls) -> None:
        # One run for all: each takes a process that imports torch.
        cls.done = run("--model", "tinydit", "--stagings", "50", "--rows",
                       "resident,two-slot,accelerate,diffusers-block,hoist@min,"
                       "hoist.load@0.6,2-workers@min,hoist-stagings@min,"
                       "resident-fp8,hoist-fp8@min,hoist.load@8KiB,"
                       "hoist-pipeline@0.5,diffusers-pipeline-stream,"
                       "resident-static")
        try:
            cls.rows = json.loads(cls.done.stdout)["rows"]
        except ValueError:
            raise AssertionError(cls.done.stdout + cls.done.stderr) from None

    def test_all_compute_what_the_resident_model_does(self) -> None:
        for name in ("resident", "two-slot", "accelerate", "hoist@min",
                     "hoist.load@0.6", "2-workers@min", "hoist-stagings@min",
                     "hoist-pipeline@0.5"):
            self.assertIs(self.rows[name].get("equal"), True,
                          f"{name}: {self.rows[name]}")

    def test_hoist_keeps_to_its_budget_and_streams_the_rest(self) -> None:
        small, large = self.rows["hoist@min"], self.rows["hoist.load@0.6"]
        for row in (small, large):  # Counted by hoistd, in whole slabs.
            self.assertLess(row["hoistd_device_bytes"],
                            row["budget_bytes"] + (2 << 20) + 1)
        self.assertGreater(large["streamed_bytes"], 0)
        self.assertLess(large["streamed_bytes"], small["streamed_bytes"])

    def test_workers_share_one_copy_of_the_model(self) -> None:
        self.assertEqual(self.rows["2-workers@min"]["hoistd_pinned_bytes"],
                         self.rows["hoist@min"]["hoistd_pinned_bytes"])

    def test_many_stagings_move_no_weight(self) -> None:
        row = self.rows["hoist-stagings@min"]
        self.assertGreaterEqual(row["stagings"], 50)
        self.assertEqual(row["weights_moved"], 0)

    def test_fp8_storage_is_what_the_cast_weights_compute(self) -> None:
        row = self.rows["hoist-fp8@min"]
        self.assertIs(row.get("equal"), True, row)
        self.assertLess(row["streamed_bytes"],
                        0.7 * self.rows["hoist@min"]["streamed_bytes"])

    def test_a_pipeline_has_one_budget(self) -> None:
        row = self.rows["hoist-pipeline@0.5"]
        self.assertEqual(row["says"]["budget_bytes"], row["budget_bytes"])
        self.assertGreater(row["says"]["image_seconds"], 0)
        self.assertLess(row["hoistd_device_bytes"],
                        row["budget_bytes"] + (4 << 20) + 1)
        self.assertIn("needs an accelerator",
                      self.rows["diffusers-pipeline-stream"]["left_out"])

    def test_only_a_decoder_has_a_static_cache(self) -> None:
        self.assertIn("llama32", self.rows["resident-static"]["left_out"])

    def test_what_cannot_be_run_says_why(self) -> None:
        self.assertIn("needs an accelerator",
                      self.rows["diffusers-block"]["left_out"])

    def test_a_row_that_fails_is_a_row_and_an_exit_status(self) -> None:
        self.assertIn("exit status 1", self.rows["hoist.load@8KiB"]["failed"])
        self.assertEqual(self.done.returncode, 1, self.done.stderr)

    def test_unknown_row_is_refused_with_those_there_are(self) -> None:
        done = run("--rows", "resident,hoist@nothing")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("two-slot", done.stderr)


@needs
class MoreRows(unittest.TestCase):
    def test_cold_files_need_ram_for_a_third_of_the_weights(self) -> None:
        done = run("--model", "tinydit", "--scale", "16", "--rows",
                   "resident,hoist-pipeline@min,hoist-pipeline-cold@min")
        rows = json.loads(done.stdout)["rows"]
        warm, cold = (rows[f"hoist-pipeline{how}@min"]
                      for how in ("", "-cold"))
        self.assertIs(cold.get("equal"), True, cold)
        self.assertLess(cold["hoistd_pinned_bytes"],
                        warm["hoistd_pinned_bytes"] / 2.5)
        self.assertGreater(cold["disk_read_bytes"],
                           warm["hoistd_pinned_bytes"] / 4)
        self.assertNotIn("disk_read_bytes", warm)

    def test_a_decoder_gives_the_same_tokens(self) -> None:
        done = run("--model", "tinyllama", "--rows",
                   "resident,resident-static,hoist@1.1,hoist-leaf@0.5,"
                   "hoist-static@0.5,accelerate@0.5")
        rows = json.loads(done.stdout)["rows"]
        for name in ("resident", "resident-static", "hoist@1.1",
                     "hoist-leaf@0.5", "hoist-static@0.5"):
            self.assertIs(rows[name].get("equal"), True, rows[name])
            self.assertEqual(rows[name]["units"], 16)
        self.assertEqual(rows["hoist@1.1"]["streamed_bytes"], 0)
        self.assertGreater(rows["hoist-static@0.5"]["streamed_bytes"], 0)
        self.assertIn("needs an accelerator",
                      rows["accelerate@0.5"]["left_out"])

    def test_a_mixture_gives_the_same_logits_wherever_experts_lie(self) -> None:
        done = run("--model", "tinymoe", "--seconds", "1", "--rows",
                   "resident,hoist-in-place@0,hoist-in-place@0.4,"
                   "hoist.load@0.4,hoist@0.4,lru@0.5,uva,accelerate@0.4")
        rows = json.loads(done.stdout)["rows"]
        for name in ("resident", "hoist-in-place@0", "hoist-in-place@0.4",
                     "hoist.load@0.4", "hoist@0.4", "uva"):
            self.assertIs(rows[name].get("equal"), True, rows[name])
        self.assertLess(rows["lru@0.5"]["difference"], 0.1, rows["lru@0.5"])
        # Two experts of 3 MiB in each of three layers.
        touched = {name: (row["touched_hot_bytes"], row["touched_cold_bytes"])
                   for name, row in rows.items() if "cold_seconds" in row}
        for name, found in touched.items():
            self.assertAlmostEqual(sum(found), 2 * 3 * 3 << 20, delta=1,
                                   msg=name)
        self.assertEqual(touched["hoist-in-place@0"][0], 0)
        self.assertEqual(touched["uva"][0], 0)
        self.assertGreater(touched["hoist-in-place@0.4"][0],
                           touched["hoist-in-place@0.4"][1])
        self.assertGreater(rows["lru@0.5"]["hits"], rows["lru@0.5"]["misses"])
        self.assertGreater(rows["hoist.load@0.4"]["streamed_bytes"], 0)
        for name in ("hoist-in-place@0", "hoist-in-place@0.4"):
            says = rows[name]["says"]
            self.assertEqual(says["streamed_bytes"], 0)
            self.assertLessEqual(says["hot_bytes"],
                                 rows[name]["budget_bytes"])
        self.assertIn("needs an accelerator",
                      rows["accelerate@0.4"]["left_out"])

    def test_a_mixture_has_static_caches_and_long_prompts(self) -> None:
        # More layers than have weights of their own in the file.
        done = run("--model", "tinymoe", "--blocks", "9", "--seconds", "1",
                   "--routing", "uniform", "--rows",
                   "resident-static,hoist-in-place-static@0.4,"
                   "hoist.load-static@0.4,uva-static,resident-prefill,"
                   "hoist-in-place-prefill@0.4,hoist.load-prefill@0.4,"
                   "uva-prefill")
        rows = json.loads(done.stdout)["rows"]
        for name, row in rows.items():
            self.assertIs(row.get("equal"), True, f"{name}: {row}")
        experts = 9 * 8 * 3 << 20
        for name in ("hoist-in-place-prefill@0.4", "uva-prefill"):
            self.assertEqual(rows[name]["touched_hot_bytes"]
                             + rows[name]["touched_cold_bytes"], experts, name)

    def test_only_a_mixture_has_experts(self) -> None:
        done = run("--model", "tiny", "--rows", "lru@0.5,hoist-in-place@0.5")
        for row in json.loads(done.stdout)["rows"].values():
            self.assertIn("moe8", row["left_out"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
