"""tests/bench/bench_load.py, in small: two workers of hoist beside the library's
own, for each format."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers.core_model_loading")

pytestmark = pytest.mark.real_time
ROOT = pathlib.Path(__file__).resolve().parents[3]
BENCH = ROOT / "tests" / "bench" / "bench_load.py"


@pytest.mark.parametrize("shape, needs", [
    ("mxfp4", "transformers"),
    pytest.param("fp8", "diffusers", marks=pytest.mark.nightly),
    pytest.param("gguf", "gguf", marks=pytest.mark.nightly)])
def test_both_workers_have_the_librarys_bits_and_share_the_bytes(
        hoistd, tmp_path, shape, needs):
    pytest.importorskip(needs)
    # It starts a hoistd of its own, from a folder that has both programs.
    beside = hoistd.binary.with_name("hoistctl")
    built = hoistd.binary.parents[1] / "client" / "ctl" / "hoistctl"
    (tmp_path / "hoistd").symlink_to(hoistd.binary)
    (tmp_path / "hoistctl").symlink_to(beside if beside.exists() else built)
    kind = os.environ.get("HOIST_TEST_DEVICE", "cpu")
    done = subprocess.run(
        [sys.executable, str(BENCH), "--bin", str(tmp_path), "--small",
         "--shapes", shape, "--device",
         "cuda" if kind == "cuda" else "emulated", "--folder", str(tmp_path)],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()
            if line.startswith(shape)]
    assert [row[-1] for row in rows] == ["equal"] * 3
    library, first, second = (float(row[-2]) for row in rows)
    assert library == 0 < first == second
