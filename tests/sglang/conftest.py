"""Fixtures of the tests with SGLang; README.md says how to run them."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import sys
from typing import Any, Iterator

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(HERE)]

from real_daemon import MIB, RealDaemon  # noqa: E402
from served import Served  # noqa: E402


@pytest.fixture(scope="module")
def hoistd() -> Iterator[RealDaemon]:
    """Under its keeper, so that it may be killed."""
    bin = pathlib.Path(os.environ["HOIST_BUILD_DIR"]) / "daemon"
    daemon = RealDaemon(bin / "hoistd", pool=64 * MIB, host=64 * MIB,
                        keeper=str(bin / "keeper" / "hoist-keeper"))
    try:
        daemon.until_served()
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def begin(hoistd: RealDaemon, llama: pathlib.Path,
          tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Begins servers over hoistd, which end with the module's tests."""
    logs = tmp_path_factory.mktemp("logs")
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:
        yield lambda model=llama, daemon=hoistd.socket, **options: (
            stack.enter_context(Served(logs / f"{next(numbers)}.log", model,
                                       daemon, **options)))


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Llama of 4 layers, 23 MB in bf16, in two files."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=512, intermediate_size=1024, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=2048,
        max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.15)
    folder = tmp_path_factory.mktemp("models") / "llama"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(
        folder, max_shard_size="15MB")
    return folder
