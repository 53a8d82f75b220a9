"""What transformers does to checkpoints as it loads them, said in pieces of
their tensors: put together by hand, they are what it loads, bit for bit."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys
from typing import Any, Callable, Mapping

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
numpy = pytest.importorskip("numpy")
safetensors = pytest.importorskip("safetensors.torch")

from hoist.nn._checkpoint import (library_computations,  # noqa: E402
                                  library_sources)
from hoist.nn._building import build_on_meta  # noqa: E402
from hoist.nn._pieces import Source  # noqa: E402
from hoist.nn._safetensors import (FileTensor, find_files,  # noqa: E402
                                   read_headers)

SIZES = {"BOOL": 1, "U8": 1, "I64": 8, "F32": 4, "BF16": 2, "F16": 2}

TEXT = dict(vocab_size=64, hidden_size=16, intermediate_size=24,
            num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            head_dim=8, max_position_embeddings=32, pad_token_id=0,
            bos_token_id=1, eos_token_id=2)
EXPERTS = dict(moe_intermediate_size=8, num_experts=12, num_local_experts=12,
               n_routed_experts=12, num_experts_per_tok=2)
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2,
              num_attention_heads=2, image_size=8, patch_size=4)
T5 = dict(vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=2,
          num_heads=2)
WHISPER = dict(vocab_size=64, d_model=16, encoder_layers=2, decoder_layers=2,
               encoder_attention_heads=2, decoder_attention_heads=2,
               encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8,
               max_source_positions=8, max_target_positions=8, pad_token_id=0,
               bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
GPT2 = dict(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32)
CLIP = dict(text_config=TEXT | {"projection_dim": 8},
            vision_config=VISION | {"projection_dim": 8}, projection_dim=8)
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
QWEN_VISION = dict(depth=2, hidden_size=16, num_heads=2, patch_size=4)
LLAVA = dict(text_config=TEXT | {"model_type": "llama"},
             vision_config=VISION | {"model_type": "clip_vision_model"})

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


def build(name: str, options: Mapping[str, Any], dtype: Any = torch.float32
          ) -> Any:
    """The model with random weights and buffers, all of them different."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**json.loads(json.dumps(options)))).to(dtype)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.normal_()
    return model


def raw_files(folder: pathlib.Path) -> dict[str, bytes]:
    """Each tensor's bytes, read without hoist and without safetensors."""
    found: dict[str, bytes] = {}
    for path in find_files(folder):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                found[name] = data[start + first:start + last]
    return found


def put_together(source: Source, files: Mapping[str, bytes]) -> bytes:
    size = SIZES[source.dtype]
    return b"".join(
        files[piece.tensor][piece.start * size:
                            (piece.start + piece.count) * size]
        for piece in source.pieces)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(
        torch.uint8).numpy().tobytes()


def check(folder: pathlib.Path, cls: Any,
          refuses: Mapping[str, str] | None = None,
          computes: bool = True) -> dict[str, Source]:
    """The sources of the class's module for these files, which are what the
    library loads from them: the same names, shapes and bytes.

    refuses: what else it loads, and the operations by which it does.
    computes: whether these can be told from shapes and types what they give.
    """
    loaded, info = cls.from_pretrained(folder, output_loading_info=True)
    module = build_on_meta(lambda: cls(loaded.config))
    sources, refused = library_sources(module, read_headers(
        find_files(folder)))
    assert {name: why.partition(":")[0] for name, why in refused.items()} == {
        name: f"transformers' {operation}"
        for name, operation in (refuses or {}).items()}
    assert all("hoist.attach" in why for why in refused.values())
    files = raw_files(folder)
    there = loaded.state_dict()
    for name, source in sources.items():
        assert source.shape == tuple(there[name].shape), name
        assert put_together(source, files) == raw(there[name]), name
    if computes:
        check_computed(folder, module, refused, there)
    else:
        assert not library_computations(module, read_headers(
            find_files(folder)), refused)
    filled = {there[name].data_ptr() for name in [*sources, *refused]}
    assert {name for name, value in there.items()
            if value.data_ptr() not in filled} == set(info["missing_keys"])
    return sources


def check_computed(folder: pathlib.Path, module: torch.nn.Module,
                   refused: Mapping[str, str],
                   there: Mapping[str, torch.Tensor]) -> None:
    """What is refused is computed from the files' tensors instead."""
    headers = read_headers(find_files(folder))
    computed = library_computations(module, headers, refused)
    assert set(computed) == set(refused)
    files = {name: tensor for path in find_files(folder)
             for name, tensor in safetensors.load_file(path).items()}
    for name, one in computed.items():
        made = one.run({tensor: files[tensor] for tensor in one.inputs})
        assert set(made) >= {name}
        assert raw(made[name]) == raw(there[name]), name
        assert one.results[name].shape == there[name].shape
        assert one.results[name].dtype == made[name].dtype


@pytest.fixture(autouse=True)
def no_warnings(caplog: pytest.LogCaptureFixture):
    """hoist did not fall back to plain names."""
    yield
    assert not [record for record in caplog.records
                if record.name == "hoist.nn"]


@pytest.mark.parametrize("saved, loaded, options", FAMILIES, ids=lambda one: (
    one if isinstance(one, str) else ""))
def test_pieces_are_what_the_library_loads(tmp_path, saved, loaded, options):
    build(saved, options).save_pretrained(tmp_path)
    assert check(tmp_path, getattr(transformers, loaded))


def write(folder: pathlib.Path, config: Any,
          tensors: Mapping[str, torch.Tensor]) -> None:
    """A checkpoint with these names, whatever the library would name them."""
    config.save_pretrained(folder)
    safetensors.save_file(
        {name: tensor.detach().clone() for name, tensor in tensors.items()},
        folder / "model.safetensors", metadata={"format": "pt"})


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


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch):
    """Makes a list of transforms what the library does to Llama models."""
    from transformers import conversion_mapping
    conversion_mapping.get_checkpoint_conversion_mapping("llama")  # Fills it.

    def register(*transforms: Any) -> None:
        monkeypatch.setitem(
            conversion_mapping._checkpoint_conversion_mapping_cache, "llama",
            list(transforms))

    return register


ATTENTION = "model.layers.0.self_attn."
PROJECTIONS = [f"self_attn.{one}_proj.weight" for one in "qkv"]


def llama(folder: pathlib.Path, change: Callable[[dict], None],
          **options: Any) -> Any:
    """Writes a Llama's tensors as `change` leaves them; its class."""
    model = build("LlamaForCausalLM", TEXT | {"num_hidden_layers": 1} | options)
    tensors = dict(model.state_dict())
    change(tensors)
    write(folder, model.config, tensors)
    return type(model)


def fuse(tensors: dict[str, torch.Tensor]) -> None:
    tensors[ATTENTION + "qkv"] = torch.cat(
        [tensors.pop(f"model.layers.0.{one}") for one in PROJECTIONS])


@pytest.mark.parametrize("operation, heads", [("Split", 1), ("Chunk", 2)])
def test_a_fused_tensor_is_split(tmp_path, convert, operation, heads):
    core = transformers.core_model_loading
    convert(core.WeightConverter("self_attn.qkv", PROJECTIONS,
                                 [getattr(core, operation)(dim=0)]))
    sources = check(tmp_path, llama(tmp_path, fuse,
                                    num_key_value_heads=heads))
    assert [sources[f"model.layers.0.{one}"].pieces[0].tensor
            for one in PROJECTIONS] == [ATTENTION + "qkv"] * 3


def test_halves_of_a_tensor_are_joined_along_its_last_dimension(
        tmp_path, convert):
    core = transformers.core_model_loading

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        whole = tensors.pop(ATTENTION + "o_proj.weight")
        for side, half in zip(("left", "right"), whole.chunk(2, dim=1)):
            tensors[f"{ATTENTION}o_proj.{side}"] = half

    convert(core.WeightConverter(["o_proj.left", "o_proj.right"],
                                 "o_proj.weight", [core.Concatenate(dim=1)]))
    sources = check(tmp_path, llama(tmp_path, halve))
    assert len(sources[ATTENTION + "o_proj.weight"].pieces) == 2 * 16


def test_any_number_of_shards_is_joined_as_the_configuration_says(
        tmp_path, convert):
    core = transformers.core_model_loading

    def shard(tensors: dict[str, torch.Tensor]) -> None:
        whole = tensors.pop("model.embed_tokens.weight")
        for at, part in enumerate(whole.chunk(12)):
            tensors[f"model.embed_tokens.shards.{at}"] = part

    convert(core.WeightConverter(
        r"embed_tokens.shards.*", "embed_tokens.weight",
        [core.Concatenate(dim=0, num_shards_attribute="num_shards")]))
    sources = check(tmp_path, llama(tmp_path, shard))
    assert [piece.tensor.rpartition(".")[2] for piece in
            sources["model.embed_tokens.weight"].pieces] == [
                str(at) for at in range(11)]  # 6 rows each, and 11 of them.


def test_a_transpose_that_finds_its_shape_is_none(tmp_path, convert):
    core = transformers.core_model_loading
    name = "model.layers.0.mlp.up_proj.weight"
    convert(core.WeightConverter("mlp.up_proj.weight", "mlp.up_proj.weight",
                                 [core.Transpose(0, 1, check_dims=True)]))
    own, other = tmp_path / "own", tmp_path / "other"
    cls = llama(own, lambda tensors: None)
    assert check(own, cls)[name].file_tensor == name
    llama(other, lambda tensors: tensors.update({
        name: tensors[name].T.contiguous()}))
    assert name not in check(other, cls, refuses={name: "Transpose"})


@pytest.mark.parametrize("operation", ["PermuteForRope", "Interleave",
                                       "Transpose"])
def test_what_moves_elements_is_refused_by_its_name(tmp_path, convert,
                                                    operation):
    core = transformers.core_model_loading
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [getattr(core, operation)()]))
    check(tmp_path, llama(tmp_path, move(ATTENTION + "o_proj.weight",
                                         ATTENTION + "o_proj.kernel")),
          refuses={ATTENTION + "o_proj.weight": operation})


def test_all_that_a_refused_converter_makes_is_refused(tmp_path, convert):
    core = transformers.core_model_loading
    convert(core.WeightConverter("self_attn.qkv", PROJECTIONS, [
        core.Chunk(dim=0), core.PermuteForRope(
            permute_layer_names=["q_proj", "k_proj"])]))
    check(tmp_path, llama(tmp_path, fuse, num_key_value_heads=2), refuses={
        f"model.layers.0.{one}": "PermuteForRope" for one in PROJECTIONS})


def operation(work: Callable[[torch.Tensor], Any]) -> Any:
    """One that the library does not have, called Own."""
    class Own(transformers.core_model_loading.ConversionOps):
        def convert(self, input_dict: dict[str, Any], *_: Any,
                    target_patterns: list[str], **__: Any) -> dict[str, Any]:
            (value,) = input_dict.values()
            return {target_patterns[0]: work(value[0])}

    return Own()


@pytest.mark.parametrize("work", [
    lambda value: torch.stack([value[at] for at in range(16)]),
    lambda value: torch.cat([value[:5], value[5:-1], value[-1:]]),
    lambda value: torch.stack(value.unbind(1), 1),
    lambda value: torch.hstack([value[:, :3], value[:, 3:]]).clone().detach(),
    lambda value: value.flatten().view(4, -1).reshape(16, 16)[...],
    lambda value: value.unsqueeze(1).transpose(0, 1).squeeze(0),
    lambda value: value[None].permute(1, 0, 2).movedim(1, 2)[:, :, 0],
    lambda value: value.roll(0, 0) if value.is_cpu else value.narrow(0, 0, 16),
    lambda value: torch.cat(value.split(7, dim=-1)[::-1], 1)])
def test_operations_that_hoist_has_never_heard_of_are_followed(
        tmp_path, convert, work):
    core = transformers.core_model_loading
    name = ATTENTION + "o_proj.weight"
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [operation(work)]))
    assert name in check(tmp_path, llama(
        tmp_path, move(name, ATTENTION + "o_proj.kernel")))


@pytest.mark.parametrize("work", [
    lambda value: value + 1, lambda value: value.mul_(2),
    lambda value: torch.cat([value[::2], value[1::2]]),
    lambda value: value[:8].repeat(2, 1), lambda value: value.flip(0),
    lambda value: value.T.contiguous(), lambda value: value.bfloat16(),
    lambda value: value.view(torch.int32).view(torch.float32),
    lambda value: value[torch.arange(16)]])
def test_or_refused_by_their_name(tmp_path, convert, work):
    core = transformers.core_model_loading
    name = ATTENTION + "o_proj.weight"
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [operation(work)]))
    check(tmp_path, llama(tmp_path, move(name, ATTENTION + "o_proj.kernel")),
          refuses={name: "Own"})


@pytest.mark.parametrize("work", [
    lambda value: torch.cat([value[1:], torch.ones(1, 16)]),
    lambda value: torch.zeros(16, 16).copy_(value),
    lambda value: value if (value == value).all() else value])
def test_what_looks_at_values_is_not_computed(tmp_path, convert, work):
    core = transformers.core_model_loading
    name = ATTENTION + "o_proj.weight"
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [operation(work)]))
    check(tmp_path, llama(tmp_path, move(name, ATTENTION + "o_proj.kernel")),
          refuses={name: "Own"}, computes=False)


def move(old: str, new: str) -> Callable[[dict], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return change


def headers_of(module: Any, **changes: FileTensor) -> dict[str, FileTensor]:
    return {name: FileTensor("F32", tuple(value.shape))
            for name, value in module.state_dict().items()} | changes


def test_a_name_that_is_the_modules_is_not_renamed_away(tmp_path, convert):
    core = transformers.core_model_loading
    convert(core.WeightRenaming(r"^model.norm", "model.old_norm"),
            core.WeightConverter("mlp.up_proj.weight", "mlp.gone",
                                 [core.Concatenate(dim=0)]))
    sources = check(tmp_path, llama(tmp_path, lambda tensors: None))
    assert {"model.norm.weight", "model.layers.0.mlp.up_proj.weight"
            } <= set(sources)


def test_an_early_version_5_answers_with_its_errors(tmp_path, convert,
                                                    monkeypatch):
    core = transformers.core_model_loading
    converter = core.WeightConverter
    now = converter.convert

    def then(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return now(self, *args, **kwargs), {}
        except Exception:
            raise core.SkipParameters

    convert(converter("self_attn.qkv", PROJECTIONS, [core.Split(dim=0)]),
            converter("norm.gain", "norm.weight",
                      [operation(lambda value: value + 1)]))
    llama(tmp_path, fuse)
    module = build("LlamaForCausalLM", TEXT | {"num_hidden_layers": 1})
    headers = read_headers(find_files(tmp_path))
    headers["model.norm.gain"] = headers.pop("model.norm.weight")
    found = library_sources(module, headers)
    monkeypatch.setattr(converter, "convert", then)
    assert library_sources(module, headers) == found
    assert list(found[1]) == ["model.norm.weight"]
    assert ATTENTION + "q_proj.weight" in found[0]


def test_values_from_elsewhere_are_refused(convert):
    core = transformers.core_model_loading
    convert(core.WeightConverter("norm.gain", "norm.weight", [
        operation(lambda value: torch.zeros(16))]))
    module = build("LlamaForCausalLM", TEXT)
    headers = headers_of(module)
    headers["model.norm.gain"] = headers.pop("model.norm.weight")
    sources, refused = library_sources(module, headers)
    assert list(refused) == ["model.norm.weight"]
    assert "not made of the files' tensors alone" in refused[
        "model.norm.weight"]


def test_experts_of_two_types_are_refused():
    module = build("MixtralForCausalLM", TEXT | EXPERTS)
    name = "model.layers.0.mlp.experts.down_proj"
    headers = {
        f"model.layers.0.block_sparse_moe.experts.{at}.w2.weight": FileTensor(
            "BF16" if at else "F32", (16, 24)) for at in range(12)}
    sources, refused = library_sources(module, headers)
    assert sources == {} and list(refused) == [name]
    assert "MergeModulelist: tensors of different types" in refused[name]


FP8 = {"quant_method": "fp8", "weight_block_size": [4, 4]}


def fp8_headers(module: Any) -> dict[str, FileTensor]:
    """A checkpoint of a Qwen3-MoE whose projections have blocks of scales."""
    headers: dict[str, FileTensor] = {}

    def quantise(name: str, rows: int, columns: int) -> None:
        headers[name] = FileTensor("F8_E4M3", (rows, columns))
        headers[name + "_scale_inv"] = FileTensor("F32",
                                                  (rows // 4, columns // 4))

    for name, tensor in module.state_dict().items():
        if name.endswith("_proj.weight"):
            quantise(name, *tensor.shape)
        elif name.endswith(".experts.down_proj"):
            for at in range(12):
                expert = f"{name.removesuffix('down_proj')}{at}."
                quantise(expert + "down_proj.weight", 16, 8)
                quantise(expert + "gate_proj.weight", 8, 16)
                quantise(expert + "up_proj.weight", 8, 16)
        elif "_proj" not in name:
            headers[name] = FileTensor("BF16", tuple(tensor.shape))
    return headers


def test_weights_whose_scales_are_elsewhere_are_refused():
    model = build("Qwen3MoeForCausalLM", TEXT | EXPERTS)
    model.config.quantization_config = FP8
    sources, refused = library_sources(model, fp8_headers(model))
    assert set(refused) == {name for name in model.state_dict()
                            if "_proj" in name}
    assert set(sources) == set(model.state_dict()) - set(refused)
    for name, why in refused.items():
        assert ("Fp8Dequantize" if ".experts." in name else
                "FineGrainedFP8HfQuantizer") in why


def test_layers_that_have_a_place_for_scales_get_them():
    from transformers.quantizers.auto import AutoHfQuantizer
    with torch.device("meta"):
        model = build("Qwen3MoeForCausalLM",
                      TEXT | EXPERTS | {"quantization_config": FP8})
        quantizer = AutoHfQuantizer.from_config(FP8, pre_quantized=True)
        quantizer.preprocess_model(model=model, device_map=None,
                                   checkpoint_files=None, use_kernels=False,
                                   dtype=torch.bfloat16)
    sources, refused = library_sources(model, fp8_headers(model))
    assert refused == {}
    assert {name: source.shape for name, source in sources.items()} == {
        name: tuple(value.shape) for name, value in model.state_dict().items()}
    scales = sources["model.layers.0.mlp.experts.gate_up_proj_scale_inv"]
    assert [(piece.tensor.split(".")[5:7], piece.count)
            for piece in scales.pieces] == [
                ([str(at), one], 8) for at in range(12)
                for one in ("gate_proj", "up_proj")]


def test_other_modules_are_none_of_transformers():
    assert library_sources(torch.nn.Linear(2, 2), {
        "weight": FileTensor("F32", (2, 2))}) == ({}, {})


def test_transformers_is_not_imported_for_other_modules():
    program = (
        "import sys, torch; from hoist.nn._checkpoint import library_sources;"
        "assert library_sources(torch.nn.Linear(2, 2), {}) == ({}, {});"
        "assert 'transformers' not in sys.modules")
    package = pathlib.Path(__file__).resolve().parents[1]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300,
                   env=os.environ | {"PYTHONPATH": str(package)})


@pytest.mark.parametrize("part", ["rename_source_key", "dot_natural_key",
                                  "WeightConverter"])
def test_a_version_that_does_not_answer_is_a_warning(monkeypatch, caplog, part):
    module = build("LlamaForCausalLM", TEXT)
    monkeypatch.delattr(transformers.core_model_loading, part)
    assert library_sources(module, headers_of(module)) == ({}, {})
    (record,) = [one for one in caplog.records if one.name == "hoist.nn"]
    assert record.levelno == logging.WARNING
    assert "LlamaForCausalLM" in record.message and part in record.message
    caplog.clear()


def test_another_signature_is_a_warning_too(monkeypatch, caplog):
    module = build("LlamaForCausalLM", TEXT)
    monkeypatch.setattr(transformers.core_model_loading, "rename_source_key",
                        lambda key, *, rules: key)
    assert library_sources(module, headers_of(module)) == ({}, {})
    assert "TypeError" in caplog.text
    caplog.clear()


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
