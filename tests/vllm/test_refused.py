"""What another engine may not have, and what cannot be shared."""

from __future__ import annotations

import shutil

import pytest
from conftest import Refused, make_llama

pytest.importorskip("vllm")

import hoist  # noqa: E402
from hoist.serving._published import find  # noqa: E402

NAMED = {"model_loader_extra_config": {"name": "prod"}}


def refusal(start, **options):
    engine = start.begin(**options)
    with pytest.raises(Refused) as refused:
        engine.answer()
    return str(refused.value)


def test_a_name_is_for_engines_of_one_dtype_size_and_checkpoint(
        start, hoistd, tmp_path, llama):
    copied = tmp_path / "copied"
    shutil.copytree(llama, copied)
    start(model=copied, **NAMED)
    says = refusal(start, model=copied, dtype="float16", **NAMED)
    assert "FailedPrecondition" in says
    assert "dtype is float16 here and bfloat16 there" in says
    says = refusal(start, model=copied, tensor_parallel_size=2, **NAMED)
    assert "tensor parallel is 0 of 2 here and 0 of 1 there" in says
    for path in copied.glob("*.safetensors"):
        path.write_bytes(path.read_bytes())  # Another file's times.
    says = refusal(start, model=copied, **NAMED).splitlines()[0]
    assert "checkpoint is" in says and "dtype" not in says


def test_a_draft_has_a_name_of_its_own(start, hoistd, tmp_path, llama):
    draft = make_llama(tmp_path / "draft", seed=1)
    start(speculative_config={"model": str(draft), "method": "draft_model",
                              "num_speculative_tokens": 2}, **NAMED)
    with hoist.connect(hoistd.socket) as session:
        keys = [find(session, name)[1].key for name in
                ("prod.tp0.pp0", "prod.draft.tp0.pp0")]
    assert keys[0]["checkpoint"] != keys[1]["checkpoint"]


def test_a_file_that_changed_while_it_slept_is_told(start, hoistd, tmp_path):
    model = make_llama(tmp_path / "mine")
    engine = start(model=model)
    engine.ask("ask", what="hoist_suspend")
    make_llama(model, seed=1)
    with pytest.raises(Refused, match="DataLoss.*files have changed"):
        engine.ask("ask", what="hoist_resume")


def test_a_reload_is_refused_and_tokens_stay(start, disk_tokens):
    engine = start()
    with pytest.raises(Refused, match="FailedPrecondition.*start the engine "
                                      "anew"):
        engine.ask("ask", what="reload_weights")
    assert engine.ask("generate") == disk_tokens


def test_weights_that_are_converted_are_published_once_for_all(
        start, hoistd, tmp_path):
    wide = make_llama(tmp_path / "wide", dtype="float32")
    first = start(model=wide)
    want = first.ask("generate")
    (facts,) = first.facts()
    assert facts["shared"] == facts["bytes"]
    hoistd.count_anew()
    second = start(model=wide)
    assert second.ask("generate") == want
    assert second.facts()[0]["model"] == facts["model"]
    assert hoistd.counters()["host_to_device_bytes"] == 0


def test_of_two_that_start_at_once_one_publishes(start, hoistd, tmp_path):
    wide = make_llama(tmp_path / "wide", dtype="float32")
    engines = [start.begin(model=wide) for _ in range(2)]
    for engine in engines:
        assert engine.answer() == "ready"
    first, second = (engine.facts()[0] for engine in engines)
    assert first["model"] == second["model"]
    assert engines[0].ask("generate") == engines[1].ask("generate")


def test_without_hoistd_an_engine_does_not_start(start, hoistd):
    hoistd.kill()
    assert "Unavailable" in refusal(
        start, model_loader_extra_config={"deadline": 1})


def test_vllms_own_offloading_is_refused(start):
    assert "give hoist a budget" in refusal(start, cpu_offload_gb=0.01)
