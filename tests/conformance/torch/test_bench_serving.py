"""tests/bench/bench_serving.py, in small: an engine's module over hoistd, in two
processes, asleep and awake."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.real_time
ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCH = ROOT / "tests" / "bench" / "bench_serving.py"


def test_an_engines_processes_have_the_files_bits_and_later_ones_copy_nothing(
        hoistd, tmp_path):
    # It starts a hoistd of its own, from a folder that has both programs.
    beside = hoistd.binary.with_name("hoistctl")
    built = hoistd.binary.parents[1] / "client" / "ctl" / "hoistctl"
    (tmp_path / "hoistd").symlink_to(hoistd.binary)
    (tmp_path / "hoistctl").symlink_to(beside if beside.exists() else built)
    kind = os.environ.get("HOIST_TEST_DEVICE", "cpu")
    done = subprocess.run(
        [sys.executable, str(BENCH), "--bin", str(tmp_path), "--layers", "2",
         "--width", "128", "--runs", "1", "--sleeps", "1", "--device",
         "cuda" if kind == "cuda" else "emulated", "--folder", str(tmp_path)],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 2
