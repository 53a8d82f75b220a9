"""The example of vLLM's engines and PyTorch's models that take turns."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import MIB, ROOT, VARIABLES, make_llama

pytest.importorskip("vllm")


@pytest.mark.hoistd(pool=56 * MIB, host=192 * MIB)
def test_three_engines_and_two_models_take_turns_on_a_device_for_two(
        hoistd, tmp_path: pathlib.Path):
    folders = [make_llama(tmp_path / f"llama{seed}", seed=seed)
               for seed in range(3)]
    ran = subprocess.run(
        [sys.executable, ROOT / "client/examples/vllm_turns.py", *folders,
         "--socket", hoistd.socket, "--seconds", "5"],
        env={**os.environ, **VARIABLES}, capture_output=True, text=True,
        timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]
    rows = re.findall(r"^ *(\S.*\S)  ([.~=#]{72})$", ran.stdout, re.M)
    assert [name for name, _ in rows] == ["llama0", "llama1", "llama2",
                                          "24 MiB", "24 MiB"]
    assert sum("#" in row for _, row in rows) >= 4, ran.stdout
    # No more than the device holds are whole at once.
    assert all(column.count("=") <= 2
               for column in zip(*(row for _, row in rows))), ran.stdout
    assert hoistd.counters()["lent_bytes_to_needs"] > 0
