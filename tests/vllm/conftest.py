"""Fixtures of the tests with vLLM; README.md says how to run them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Iterator

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
sys.path.append(str(ROOT / "client" / "python"))

from real_daemon import MIB, RealDaemon  # noqa: E402

VARIABLES = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": os.pathsep.join(
        [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
}


class Refused(Exception):
    """What the engine's process raised: its class's name, what it says, and
    its log."""


class EngineProcess:
    """engine.py's other side, or another script's. It ends with the `with`
    block."""

    def __init__(self, log: pathlib.Path, socket: str,
                 script: str = "engine.py", **options: Any) -> None:
        tp = options.get("tensor_parallel_size", 1)
        self.log = open(log, "ab+")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / script),
             *(f"{name}={json.dumps(value)}"
               for name, value in options.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, bufsize=1, env={
                **os.environ, **VARIABLES, "HOIST_SOCKET": socket,
                # One process, where one worker is all.
                "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(tp > 1))})

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def send(self, do: str, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError("the engine ended without a word:\n"
                                 + self.text()[-4000:])
        said = json.loads(line)
        if "error" in said:
            # Of several workers it is in the log which of them said what.
            raise Refused(f"{said['error']}: {said['says']}\n" + self.text())
        return said["is"]

    def ask(self, do: str, **what: Any) -> Any:
        self.send(do, **what)
        return self.answer()

    def text(self) -> str:
        """Its log."""
        self.log.seek(0)
        return self.log.read().decode()

    def facts(self) -> list[dict[str, Any]]:
        """Of each worker."""
        return self.ask("ask", what="hoist_facts")


def _hoistd() -> str:
    return str(pathlib.Path(os.environ["HOIST_BUILD_DIR"]) / "daemon/hoistd")


@pytest.fixture
def hoistd(request: pytest.FixtureRequest, tmp_path: pathlib.Path
           ) -> Iterator[RealDaemon]:
    """Of its own sizes with the mark `hoistd(pool=..., host=...)`; with
    `spills=True` it has a disk."""
    mark = request.node.get_closest_marker("hoistd")
    sizes = {"pool": 64 * MIB, "slab": 2 * MIB, "host": 64 * MIB,
             **(mark.kwargs if mark else {})}
    if sizes.pop("spills", False):
        sizes["extra"] = f'[disk]\nspill_dir = "{tmp_path / "spill"}"\n'
    daemon = RealDaemon(_hoistd(), **sizes)
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture
def start(hoistd: RealDaemon, tmp_path: pathlib.Path, llama: pathlib.Path
          ) -> Iterator[Any]:
    """Starts engines that are ended with the test."""
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:
        def begin(model: pathlib.Path = llama, **options: Any
                  ) -> EngineProcess:
            log = tmp_path / f"engine-{next(numbers)}.log"
            return stack.enter_context(EngineProcess(
                log, hoistd.socket, model=str(model),
                **{"load_format": "hoist", **options}))

        def started(model: pathlib.Path = llama, **options: Any
                    ) -> EngineProcess:
            engine = begin(model, **options)
            assert engine.answer() == "ready"
            return engine

        started.begin = begin  # type: ignore[attr-defined]
        yield started


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


def make_llama(folder: pathlib.Path, dtype: str = "bfloat16",
               seed: int = 0, inner: int = 1024) -> pathlib.Path:
    """Llama of 4 layers, 23 MB in bf16, in two files; what it says varies."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=512, intermediate_size=inner, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=2048,
        max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.15)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size="15MB")
    return folder


def make_deepseek(folder: pathlib.Path) -> pathlib.Path:
    """DeepSeek-V2 of 2 layers, the second with experts: vLLM makes its latent
    attention's weights of what the files have."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM
    torch.manual_seed(0)
    config = DeepseekV2Config(
        hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=2048,
        max_position_embeddings=512, q_lora_rank=None, kv_lora_rank=512,
        qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=64,
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
        n_shared_experts=1, first_k_dense_replace=1, initializer_range=0.15)
    DeepseekV2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def disk_tokens(llama: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
                ) -> list[list[int]]:
    """What an engine says that has loaded the files itself."""
    log = tmp_path_factory.mktemp("disk") / "engine.log"
    with EngineProcess(log, "/nonexistent", model=str(llama),
                       load_format="auto") as engine:
        assert engine.answer() == "ready"
        return engine.ask("generate")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hoistd(pool, host, slab): its sizes")
