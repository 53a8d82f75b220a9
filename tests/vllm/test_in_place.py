"""A mixture's experts, read where they lie."""

from __future__ import annotations

import re

import pytest
from conftest import EngineProcess, Refused
from real_daemon import MIB

pytest.importorskip("vllm")

# No rounding decides a token, though other kernels run: on CPUs hoist's linear
# layers are not packed.
FROM_FILES = {"load_format": "auto", "dtype": "float32"}


def in_place(budget, **more):
    return {"dtype": "float32", "model_loader_extra_config": {
        "in_place": "auto", "budget": budget, **more}}


IN_PLACE = in_place(0.5)

pytestmark = pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB)


def make_mixture(folder):
    """Qwen3-MoE of 2 layers with 8 experts of 3 MiB, 61 MB: its files have each
    expert's three matrices."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        hidden_size=512, moe_intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        num_experts=8, num_experts_per_tok=2, vocab_size=1024,
        max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.15)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return make_mixture(tmp_path_factory.mktemp("models") / "mixture")


@pytest.fixture(scope="module")
def tokens(mixture, tmp_path_factory):
    """What an engine says that has loaded the files itself."""
    log = tmp_path_factory.mktemp("disk") / "engine.log"
    with EngineProcess(log, "/nonexistent", model=str(mixture),
                       **FROM_FILES) as engine:
        assert engine.answer() == "ready"
        return engine.ask("generate")


def stats(engine):
    (found,) = engine.ask("ask", what="hoist_in_place")
    return found


def refusal(start, model, **options):
    engine = start.begin(model, **options)
    with pytest.raises(Refused) as refused:
        engine.answer()
    return str(refused.value)


def test_with_half_of_the_model_tokens_are_the_same_wherever_experts_are(
        start, hoistd, mixture, tokens):
    engine = start(mixture, **IN_PLACE)
    loaded = stats(engine)
    # A piece more would not fit.
    assert 0 <= loaded["hot_budget_bytes"] - loaded["hot_bytes"] < 2 * MIB
    assert engine.ask("generate") == tokens
    (facts,) = engine.facts()
    assert facts["shared"] == facts["bytes"] and facts["dirty"] == 0
    # Each of the 3 groups that are not in place ends with a part of a slab.
    assert hoistd.tier("DEVICE")["leased_bytes"] <= (
        0.5 * facts["bytes"] + 3 * 2 * MIB)
    engine.ask("ask", what="hoist_advance")
    after = stats(engine)
    assert after["touched_hot_bytes"] and after["touched_cold_bytes"]
    assert after["moves"] > loaded["moves"]  # As the routers choose.
    assert engine.ask("generate") == tokens


def test_compiled_code_with_experts_in_place_says_the_same(
        start, mixture, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "vllm"))
    said = []
    for options in FROM_FILES, IN_PLACE, in_place(0.8):
        with start(mixture, enforce_eager=False, **options) as engine:
            said.append(engine.ask("generate"))
            read = engine.ask("compiled_code_read")
    assert said[0] == said[1] == said[2]
    assert read > 0  # Budgets share code.


def test_an_engine_with_experts_in_place_cannot_sleep(start, mixture):
    engine = start(mixture, **IN_PLACE)
    with pytest.raises(Refused, match='FailedPrecondition.*"in_place"'):
        engine.ask("ask", what="hoist_suspend")


def test_a_budget_below_what_is_not_in_place_says_what_would_do(
        start, mixture):
    says = refusal(start, mixture, **in_place("1MiB"))
    assert "ResourceExhausted: a budget of 1048576 bytes is less" in says


@pytest.mark.hoistd(pool=32 * MIB, host=192 * MIB)
def test_a_hoistd_without_room_for_the_budget_says_what_it_had_room_for(
        start, mixture):
    says = refusal(start, mixture, **in_place(1.0, deadline=2))
    assert says.startswith("ResourceExhausted: of a budget of")
    assert "hoistd had room for" in says
    # hoistd's own words: of what there is too little, and how much there is.
    assert re.search(r"lacks: .*on device 0; of 32\.0 MiB", says)


def test_a_model_without_experts_is_told(start, llama):
    says = refusal(start, llama, **IN_PLACE)
    assert "InvalidArgument: \"in_place\" is for fused experts" in says


def test_packed_kernels_are_told(start, mixture):
    says = refusal(start, mixture, **in_place(0.5, cpu_kernels="packed"))
    assert 'InvalidArgument: "in_place" excludes "cpu_kernels"' in says


@pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB, in_place=0)
def test_a_hoistd_without_zero_copy_memory_is_told(start, mixture):
    says = refusal(start, mixture, **IN_PLACE)
    assert says.startswith("Unimplemented")


def test_tokens_go_on_when_hoistd_is_killed(start, hoistd, mixture, tokens):
    engine = start(mixture, **IN_PLACE)
    assert engine.ask("generate") == tokens
    hoistd.kill()
    assert engine.ask("generate") == tokens
    assert engine.ask("generate") == tokens  # No piece changes places now.
