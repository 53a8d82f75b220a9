"""python -m hoist.vllm verify: the files against what hoistd gives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import VARIABLES

pytest.importorskip("vllm")


def test_all_tensors_are_the_files_and_the_command_says_so(hoistd, llama):
    done = subprocess.run(
        [sys.executable, "-m", "hoist.vllm", "verify", str(llama),
         "--dtype", "bfloat16", "--max-model-len", "256"],
        env={**os.environ, **VARIABLES, "HOIST_SOCKET": hoistd.socket,
             "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    # 4 layers of 6, the embedding, the head, the last norm; and buffers.
    assert "all equal" in done.stdout and "differences" not in done.stdout


def test_without_a_model_it_tells_how_it_is_called():
    done = subprocess.run([sys.executable, "-m", "hoist.vllm"],
                          env={**os.environ, **VARIABLES},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "verify MODEL" in done.stderr
