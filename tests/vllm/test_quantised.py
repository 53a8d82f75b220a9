"""Quantised experts: published as vLLM processes them, and read in place."""

from __future__ import annotations

import json

import pytest
from conftest import EngineProcess, Refused
from real_daemon import MIB

pytest.importorskip("vllm")

import hoist  # noqa: E402
import torch  # noqa: E402
from hoist.serving._published import find  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

GROUP = 128
ENGINE = {"script": "quantised.py", "dtype": "float32"}

pytestmark = pytest.mark.hoistd(pool=96 * MIB, host=192 * MIB)


def in_place(budget, **more):
    return {**ENGINE, "model_loader_extra_config": {
        "in_place": "auto", "budget": budget, **more}}


def in_four_bits(whole):
    """compressed-tensors' form of a matrix."""
    rows, columns = whole.shape
    groups = whole.float().view(rows, -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True) / 7
    values = (groups / scale).round().view(rows, columns).to(torch.int32) + 8
    packed = torch.zeros(rows, columns // 8, dtype=torch.int32)
    for at in range(8):
        packed |= values[:, at::8] << 4 * at
    return {"weight_packed": packed, "weight_scale": scale.squeeze(2),
            "weight_shape": torch.tensor([rows, columns])}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Qwen3-MoE of 2 layers with 32 experts of 384 KiB in int4."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    folder = tmp_path_factory.mktemp("models") / "quantised"
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(
        hidden_size=512, moe_intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        num_experts=32, num_experts_per_tok=2, vocab_size=1024,
        max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.15)).save_pretrained(folder)
    made = {}
    for name, whole in load_file(folder / "model.safetensors").items():
        prefix, _, leaf = name.rpartition(".")
        made.update({f"{prefix}.{one}": tensor for one, tensor
                     in in_four_bits(whole).items()}
                    if ".experts." in name else {name: whole})
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"],
        "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": None,
            "output_activations": None, "weights": {
                "num_bits": 4, "type": "int", "symmetric": True,
                "strategy": "group", "group_size": GROUP}}}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def tokens(mixture, tmp_path_factory):
    """What an engine says that has loaded the files itself."""
    log = tmp_path_factory.mktemp("disk") / "engine.log"
    with EngineProcess(log, "/nonexistent", model=str(mixture),
                       load_format="auto", **ENGINE) as engine:
        assert engine.answer() == "ready"
        return engine.ask("generate")


def test_half_of_the_packed_experts_on_the_device_says_the_same(
        start, hoistd, mixture, tokens):
    with start(mixture, **in_place(0.5)) as engine:
        assert engine.ask("generate") == tokens
        engine.ask("ask", what="hoist_advance")
        (after,) = engine.ask("ask", what="hoist_in_place")
        assert after["touched_hot_bytes"] and after["touched_cold_bytes"]
        assert engine.ask("generate") == tokens
        (facts,) = engine.facts()
        assert facts["shared"] == facts["bytes"] and facts["dirty"] == 0
    with hoist.connect(hoistd.socket) as session:
        cuts = find(session, facts["model"])[1].cuts
    # Of each layer both weights; scales have less bytes than a piece.
    assert len(cuts) == 4 and {one.units for one in cuts.values()} == {32}


def test_another_engine_takes_what_the_first_has_published(
        start, hoistd, mixture, tokens):
    with start(mixture, **in_place(1.0)) as engine:
        assert engine.ask("generate") == tokens
        (first,) = engine.facts()
    with start(mixture, **in_place(0.6)) as engine:
        assert engine.ask("generate") == tokens
        assert engine.facts()[0]["model"] == first["model"]
        # It loads weights as vLLM does only to publish them.
        assert "Loading safetensors" not in engine.text()


def test_whole_weights_are_shared_without_in_place(start, mixture, tokens):
    with start(mixture, **ENGINE) as engine:
        assert engine.ask("generate") == tokens


def test_a_name_is_for_engines_with_experts_in_place_or_for_those_without(
        start, mixture):
    start(mixture, **in_place(1.0, name="prod"))
    engine = start.begin(mixture, model_loader_extra_config={"name": "prod"},
                         **ENGINE)
    with pytest.raises(Refused, match="in place is no here and experts there"):
        engine.answer()
