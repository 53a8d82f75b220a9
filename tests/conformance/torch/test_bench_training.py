"""tests/bench/bench_training.py, in small: a table comes out, and hoist's steps
equal the resident ones. Nothing is said about speed."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("numpy")

from conftest import _hoistd_path  # noqa: E402

pytestmark = pytest.mark.real_time
BENCH = (pathlib.Path(__file__).resolve().parents[2] / "bench"
         / "bench_training.py")


@pytest.mark.only_emulated("the bench itself is what runs on a GPU")
@pytest.mark.skipif(not BENCH.exists(), reason=f"{BENCH} was not carried here")
def test_a_small_training_prints_its_table():
    done = subprocess.run(
        [sys.executable, str(BENCH), "--device", "emulated", "--bin",
         str(pathlib.Path(_hoistd_path()).parent), "--layers", "6", "--width",
         "64", "--tokens", "4", "--steps", "1"],
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.splitlines()
    assert head.split()[0] == "tokens" and row.split()[-1] == "yes"
