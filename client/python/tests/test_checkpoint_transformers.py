"""What transformers does to checkpoints as it loads them, said in pieces of
their tensors: put together by hand, they are what it loads, bit for bit."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from checkpoints import (  # noqa: E402
    CLIP, EXPERTS, GPT2, LLAVA, QWEN_VISION, ROPE, T5, TEXT, VISION,
    WHISPER, build, check, headers_of, write)
from hoist.nn._store.building import build_on_meta  # noqa: E402
from hoist.checkpoint._transformers import library_sources  # noqa: E402
from hoist.checkpoint._safetensors import (  # noqa: E402
    FileTensor, find_files, read_headers)

# What is built and saved, what loads it, and its configuration.
FAMILIES: list[tuple[str, str, dict[str, Any]]] = [
    ("LlamaForCausalLM", "LlamaForCausalLM", TEXT),
    ("LlamaForCausalLM", "LlamaModel", TEXT),
    ("LlamaModel", "LlamaForCausalLM", TEXT),
    ("LlamaForCausalLM", "LlamaForCausalLM",
     TEXT | {"tie_word_embeddings": True}),
    ("GPT2LMHeadModel", "GPT2LMHeadModel", GPT2),
    ("GPT2LMHeadModel", "GPT2Model", GPT2),
    ("GPT2Model", "GPT2LMHeadModel", GPT2),
    ("MixtralForCausalLM", "MixtralForCausalLM", TEXT | EXPERTS),
    ("MixtralForCausalLM", "MixtralModel", TEXT | EXPERTS),
    ("MixtralModel", "MixtralForCausalLM", TEXT | EXPERTS),
    ("Qwen2MoeForCausalLM", "Qwen2MoeForCausalLM",
     TEXT | EXPERTS | {"shared_expert_intermediate_size": 8}),
    ("Qwen3MoeForCausalLM", "Qwen3MoeForCausalLM", TEXT | EXPERTS),
    ("OlmoeForCausalLM", "OlmoeForCausalLM", TEXT | EXPERTS),
    ("DeepseekV3ForCausalLM", "DeepseekV3ForCausalLM",
     TEXT | EXPERTS | dict(
         n_group=2, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
         q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
         qk_nope_head_dim=4, v_head_dim=8)),
    ("BertForMaskedLM", "BertForMaskedLM", TEXT),
    ("BertForMaskedLM", "BertModel", TEXT),
    ("BertModel", "BertForMaskedLM", TEXT),
    ("T5ForConditionalGeneration", "T5ForConditionalGeneration", T5),
    ("T5ForConditionalGeneration", "T5EncoderModel", T5),
    ("WhisperForConditionalGeneration", "WhisperForConditionalGeneration",
     WHISPER),
    ("WhisperModel", "WhisperForConditionalGeneration", WHISPER),
    ("CLIPModel", "CLIPModel", CLIP),
    ("CLIPModel", "CLIPVisionModel", CLIP),
    ("CLIPModel", "CLIPTextModelWithProjection", CLIP),
    ("ViTForImageClassification", "ViTForImageClassification", VISION),
    ("ViTForImageClassification", "ViTModel", VISION),
    ("ViTModel", "ViTForImageClassification", VISION),
    ("Dinov2Model", "Dinov2Model", VISION),
    ("Dinov2Model", "Dinov2Model", VISION | {"use_swiglu_ffn": True}),
    ("Gemma3ForCausalLM", "Gemma3ForCausalLM", TEXT),
    ("Gemma3ForConditionalGeneration", "Gemma3ForConditionalGeneration",
     dict(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)),
    ("LlavaForConditionalGeneration", "LlavaForConditionalGeneration", LLAVA),
    ("LlavaForConditionalGeneration", "LlavaModel", LLAVA),
    ("LlavaModel", "LlavaForConditionalGeneration", LLAVA),
    ("Qwen2VLForConditionalGeneration", "Qwen2VLForConditionalGeneration",
     dict(text_config=TEXT | {"rope_parameters": ROPE},
          vision_config=QWEN_VISION | {"embed_dim": 16})),
    ("Qwen3VLMoeForConditionalGeneration",
     "Qwen3VLMoeForConditionalGeneration",
     dict(text_config=TEXT | EXPERTS | {"rope_parameters": ROPE},
          vision_config=QWEN_VISION | dict(
              intermediate_size=24, out_hidden_size=16,
              num_position_embeddings=16, deepstack_visual_indexes=[0]))),
    ("Molmo2ForConditionalGeneration", "Molmo2ForConditionalGeneration",
     dict(text_config=TEXT | {"additional_vocab_size": 4},
          vit_config=VISION | {"image_size": [8, 8], "head_dim": 8,
                               "num_key_value_heads": 2},
          adapter_config=VISION | {"text_hidden_size": 16, "head_dim": 8})),
    ("GptOssForCausalLM", "GptOssForCausalLM", TEXT | EXPERTS),
    ("PhimoeForCausalLM", "PhimoeForCausalLM", TEXT | EXPERTS),
    ("GraniteMoeForCausalLM", "GraniteMoeForCausalLM", TEXT | EXPERTS),
    ("JambaForCausalLM", "JambaForCausalLM", TEXT | EXPERTS | dict(
        attn_layer_period=2, attn_layer_offset=1, mamba_d_state=4,
        mamba_dt_rank=4, use_mamba_kernels=False)),
    ("SiglipModel", "SiglipModel", CLIP),
    ("Wav2Vec2Model", "Wav2Vec2Model", dict(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, conv_dim=[8, 8], conv_stride=[2, 2],
        conv_kernel=[3, 3], num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)),
]


@pytest.fixture(autouse=True)
def no_warnings(caplog: pytest.LogCaptureFixture):
    """hoist did not fall back to plain names."""
    yield
    assert not [record for record in caplog.records
                if record.name == "hoist.nn"]


@pytest.mark.parametrize("saved, loaded, options", FAMILIES, ids=lambda one: (
    one if isinstance(one, str) else ""))
def test_pieces_are_what_the_library_loads(tmp_path, saved, loaded, options):
    if not hasattr(transformers, saved):
        pytest.skip(f"transformers {transformers.__version__} has no {saved}")
    build(saved, options).save_pretrained(tmp_path)
    assert check(tmp_path, getattr(transformers, loaded))


def test_experts_of_two_towers_are_put_apart(tmp_path):
    model = build("Ernie4_5_VLMoeForConditionalGeneration", dict(
        text_config=TEXT | dict(
            moe_intermediate_size=[8, 4], moe_num_experts=12, moe_k=2,
            moe_num_shared_experts=1, rope_parameters=ROPE),
        vision_config=QWEN_VISION | {"intermediate_size": 24}))
    model.save_pretrained(tmp_path)
    mlp = "model.language_model.layers.1.mlp."
    sources = check(tmp_path, type(model), refuses={
        f"{mlp}{tower}_moe.gate.weight": "Transpose"
        for tower in ("text", "vision")})
    for tower in ("text", "vision"):
        assert len(sources[f"{mlp}{tower}_moe.experts.gate_up_proj"].pieces
                   ) == 2 * 12


@pytest.mark.parametrize("name, options", [
    ("Qwen3MoeForCausalLM", TEXT | EXPERTS),
    ("LlavaForConditionalGeneration", LLAVA),
    ("Dinov2Model", VISION)], ids=lambda one: one if isinstance(one, str)
    else "")
def test_a_file_in_the_modules_own_form_matches_too(tmp_path, name, options):
    model = build(name, options)
    write(tmp_path, model.config, model.state_dict())
    sources = check(tmp_path, type(model))
    assert {name: source.file_tensor for name, source in sources.items()
            } == {name: name for name in model.state_dict()}


def test_several_files_with_an_index_are_one_checkpoint(tmp_path):
    model = build("MixtralForCausalLM", TEXT | EXPERTS, torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(find_files(tmp_path)) > 3
    sources = check(tmp_path, type(model))
    assert {source.dtype for source in sources.values()} == {"BF16"}


def test_legacy_names_of_normalisation_are_the_librarys(tmp_path):
    model = build("BertForMaskedLM", TEXT)
    write(tmp_path, model.config, {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model.state_dict().items()
        if not name.startswith("cls.predictions.decoder.")})
    sources = check(tmp_path, type(model))
    assert sources["bert.embeddings.LayerNorm.weight"].file_tensor == (
        "bert.embeddings.LayerNorm.gamma")


def test_names_that_version_4_gave_are_the_librarys(tmp_path):
    model = build("LlavaForConditionalGeneration", LLAVA)
    write(tmp_path, model.config, {
        name.replace("model.language_model.", "language_model.model.").replace(
            "lm_head.", "language_model.lm_head.").removeprefix("model."):
        value
        for name, value in model.state_dict().items()})
    assert check(tmp_path, type(model))["lm_head.weight"].file_tensor == (
        "language_model.lm_head.weight")


def test_a_shape_that_differs_is_left_to_the_caller(tmp_path):
    model = build("ViTForImageClassification", VISION)
    model.save_pretrained(tmp_path)
    model.config.num_labels = 7
    module = build_on_meta(lambda: type(model)(model.config))
    sources, refused = library_sources(module, read_headers(
        find_files(tmp_path)))
    assert sources["classifier.weight"].shape == (2, 16) and refused == {}
    assert module.classifier.weight.shape == (7, 16)


def test_other_modules_are_none_of_transformers():
    assert library_sources(torch.nn.Linear(2, 2), {
        "weight": FileTensor("F32", (2, 2))}) == ({}, {})


def test_transformers_is_not_imported_for_other_modules():
    program = (
        "import sys, torch; from hoist.checkpoint._transformers import library_sources;"
        "assert library_sources(torch.nn.Linear(2, 2), {}) == ({}, {});"
        "assert 'transformers' not in sys.modules")
    package = pathlib.Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300,
                   env=os.environ | {"PYTHONPATH": str(package)})


@pytest.mark.parametrize("part", ["rename_source_key", "dot_natural_key",
                                  "WeightConverter"])
def test_a_version_that_does_not_answer_is_refused(monkeypatch, part):
    module = build("LlamaForCausalLM", TEXT)
    monkeypatch.delattr(transformers.core_model_loading, part)
    with pytest.raises(hoist.Unimplemented, match="LlamaForCausalLM") as raised:
        library_sources(module, headers_of(module))
    assert part in str(raised.value) and "rename={}" in str(raised.value)


def test_another_signature_is_refused_too(monkeypatch):
    module = build("LlamaForCausalLM", TEXT)
    monkeypatch.setattr(transformers.core_model_loading, "rename_source_key",
                        lambda key, *, rules: key)
    with pytest.raises(hoist.Unimplemented, match="TypeError"):
        library_sources(module, headers_of(module))


def test_version_4_renames_by_its_classes_attribute(monkeypatch):
    module = build("LlamaForCausalLM", TEXT)
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    monkeypatch.setattr(
        type(module), "_checkpoint_conversion_mapping",
        {"^text_model.layers": "model.layers", "^text_model": "wrong"},
        raising=False)
    headers = {}
    for name, tensor in headers_of(module).items():
        if ".layers." in name:
            name = name.replace("model.", "text_model.", 1)
        elif name == "model.norm.weight":
            name = "norm.weight"
        headers[name] = tensor
    sources, refused = library_sources(module, headers)
    assert refused == {} and set(sources) == set(module.state_dict())
    for name, source in sources.items():
        assert source.file_tensor == name.replace(
            "model.layers", "text_model.layers").replace("model.norm", "norm")
