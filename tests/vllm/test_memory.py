"""Less device memory than the model, and none at all."""

from __future__ import annotations

import json
import shutil

import pytest
from conftest import Refused, make_llama
from real_daemon import MIB

pytest.importorskip("vllm")


def test_with_seven_tenths_of_the_model_tokens_are_the_same(start, hoistd,
                                                            disk_tokens):
    engine = start(model_loader_extra_config={"budget": 0.7})
    assert engine.ask("generate") == disk_tokens
    (facts,) = engine.facts()
    assert hoistd.tier("DEVICE")["used_bytes"] <= 0.7 * facts["bytes"] + 4 * MIB
    assert hoistd.counters()["host_to_device_bytes"] > facts["bytes"]


@pytest.mark.hoistd(pool=64 * MIB, host=96 * MIB)
def test_a_budget_keeps_a_part_of_each_large_layer(start, hoistd, tmp_path):
    """Of 4 layers, two in slots and one resident would leave 3/4 to stream."""
    wide = make_llama(tmp_path / "wide", inner=2560)  # 9.4 MB a layer.
    want = start(wide, load_format="auto").ask("generate")
    engine = start(wide, model_loader_extra_config={"budget": 0.8})
    assert engine.ask("generate") == want
    (plan,) = json.loads(hoistd.ctl("plans", "--json"))["plans"]
    assert int(plan["streamed_bytes"]) < 0.6 * engine.facts()[0]["bytes"]


@pytest.fixture
def compile_cache(tmp_path, monkeypatch):
    """vLLM's own, of this test's engines alone: the folders of its keys."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    return tmp_path / "vllm" / "torch_compile_cache" / "torch_aot_compile"


# Where inductor stores sums of residuals decides in which order norms add up,
# and a budget's operators move that, unless all are stored at once.
STORED = {"inductor_compile_config": {"realize_reads_threshold": 1}}


@pytest.fixture
def compiled(start):
    """An engine's tokens and their logarithms' bits, once it has ended. `read`:
    whether its code came out of the cache."""
    def generate(read=False, **options):
        with start(enforce_eager=False, compilation_config=STORED,
                   **options) as engine:
            assert (engine.ask("compiled_code_read") > 0) == read
            return engine.ask("probable")

    return generate


def test_engines_over_one_compile_cache_say_the_same_whatever_their_budget(
        compiled, compile_cache):
    want = compiled()
    assert compiled(read=True) == want
    for budget, read in ((0.7, False), (0.9, True)):
        assert compiled(
            read, model_loader_extra_config={"budget": budget}) == want
    assert len(list(compile_cache.iterdir())) == 2  # Budgets share theirs.


def test_compiled_code_that_was_made_without_a_budget_is_refused(
        compiled, start, compile_cache):
    """As a cache would give it whose key does not tell the two apart."""
    compiled()
    (whole,) = compile_cache.iterdir()
    with_budget = {"model_loader_extra_config": {"budget": 0.7}}
    compiled(**with_budget)
    (streamed,) = set(compile_cache.iterdir()) - {whole}
    shutil.rmtree(streamed)
    shutil.copytree(whole, streamed)
    with pytest.raises(Refused, match="FailedPrecondition.*staged 0 of its"):
        start(enforce_eager=False, compilation_config=STORED, **with_budget)


def test_a_budget_below_what_is_outside_of_layers_says_what_would_do(start):
    engine = start.begin(model_loader_extra_config={"budget": "2MiB"})
    with pytest.raises(Refused, match="ResourceExhausted.*two layers"):
        engine.answer()


def test_asleep_nothing_of_hoistd_is_left_and_awake_all_is_as_it_was(
        start, hoistd, disk_tokens):
    engine = start()
    assert engine.ask("generate") == disk_tokens
    (before,) = engine.facts()
    assert before["maps"]
    engine.ask("ask", what="hoist_suspend")
    (asleep,) = engine.facts()
    assert asleep["maps"] == [] and asleep["fds"] == []
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0
    engine.ask("ask", what="hoist_resume")
    (awake,) = engine.facts()
    assert awake["addresses"] == before["addresses"]
    assert awake["shared"] == awake["bytes"] and awake["dirty"] == 0
    assert engine.ask("generate") == disk_tokens


def test_who_was_asleep_when_hoistd_died_wakes_up_with_the_next_one(
        start, hoistd, disk_tokens):
    engine = start()
    engine.ask("ask", what="hoist_suspend")
    hoistd.kill()
    hoistd.start()
    engine.ask("ask", what="hoist_resume")
    assert engine.ask("generate") == disk_tokens
