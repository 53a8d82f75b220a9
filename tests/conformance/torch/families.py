"""Small models of many families, randomly initialised: what test_families runs.

Each says how it is built, and in which ways it is called. Weights and inputs
are the same each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any, Callable, Iterator, Mapping
from unittest import mock

import pytest
import torch
from torch import nn

HIDDEN = 32
HEADS = 2
LAYERS = 2
VOCAB = 64

Way = Callable[[nn.Module, torch.device], Any]


@dataclasses.dataclass(frozen=True)
class Family:
    """build() gives the model in eval mode; each way calls it, and returns what
    it computed (tensors, however nested)."""

    build: Callable[[], nn.Module]
    ways: Mapping[str, Way]
    backend: str = "aot_eager"  # That compiles it.

    def run(self, model: nn.Module, device: torch.device) -> dict[str, Any]:
        """What each way computes, on inputs that are always the same."""
        return {name: way(model, device) for name, way in self.ways.items()}

    def make(self) -> nn.Module:
        """The model, with the same weights each time, none of them zero: some
        are born with layers that let nothing through."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(2)
            model = self.build()
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.05)
        return model


def _transformer(model: str, config: str, **fields: Any) -> Any:
    def build() -> nn.Module:
        import transformers
        made = getattr(transformers, config)(**fields)
        return getattr(transformers, model)(made).eval()
    return build


def _diffuser(model: str, **fields: Any) -> Any:
    def build() -> nn.Module:
        import diffusers
        return getattr(diffusers, model)(**fields).eval()
    return build


@contextlib.contextmanager
def computing_library(*works: Any) -> Iterator[None]:
    """transformers as if it did that to Mixtral's output projections on
    loading: its own operations, or functions of a tensor. Skips where it cannot
    be told."""
    mapping = pytest.importorskip("transformers.conversion_mapping")
    core = pytest.importorskip("transformers.core_model_loading")
    plain = mapping.get_checkpoint_conversion_mapping

    class Work(core.ConversionOps):
        def __init__(self, work: Any) -> None:
            self.work = work

        def convert(self, input_dict: dict[str, Any], *_: Any,
                    target_patterns: list[str], **__: Any) -> dict[str, Any]:
            (value,) = input_dict.values()
            return {target_patterns[0]: self.work(value[0])}

    operations = [one if isinstance(one, core.ConversionOps) else Work(one)
                  for one in works]

    def rules(key: str) -> Any:
        if key != "mixtral":
            return plain(key)
        return [*plain(key), core.WeightConverter(
            "self_attn.o_proj.weight", "self_attn.o_proj.weight",
            operations=operations)]

    with mock.patch.object(mapping, "get_checkpoint_conversion_mapping", rules):
        yield


def refuse(value: torch.Tensor) -> torch.Tensor:
    """Needs more than the files' tensors."""
    raise ValueError("no scale was given")


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return function(*args)
    return run


def _ids(device: torch.device, rows: int = 2,
         length: int = 7) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, length)).to(device)


def _noise(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape).to(device)


@_seeded
def _of_ids(model: nn.Module, device: torch.device) -> Any:
    ids = _ids(device)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids))


@_seeded
def _of_pixels(model: nn.Module, device: torch.device) -> Any:
    return model(pixel_values=_noise(device, 2, 3, 16, 16))


@_seeded
def _generate(model: nn.Module, device: torch.device) -> Any:
    ids = _ids(device, 2, 5)
    return model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6,
        min_new_tokens=6, do_sample=False, use_cache=True, pad_token_id=0)


@_seeded
def _of_both(model: nn.Module, device: torch.device) -> Any:
    return model(input_ids=_ids(device), decoder_input_ids=_ids(device, 2, 3))


@_seeded
def _of_speech(model: nn.Module, device: torch.device) -> Any:
    return model(input_features=_noise(device, 2, 16, 40),
                 decoder_input_ids=_ids(device, 2, 3))


@_seeded
def _transcribe(model: nn.Module, device: torch.device) -> Any:
    # It makes tensors on the model's device and mixes them with the inputs.
    features = _noise(device, 2, 16, 40).to(model.device)
    return model.generate(
        input_features=features, max_new_tokens=5, min_new_tokens=5,
        do_sample=False, decoder_start_token_id=1, pad_token_id=0).to(device)


@_seeded
def _of_text_and_pixels(model: nn.Module, device: torch.device) -> Any:
    return model(input_ids=_ids(device),
                 pixel_values=_noise(device, 2, 3, 16, 16))


@_seeded
def _denoise(model: nn.Module, device: torch.device) -> Any:
    return model(_noise(device, 2, 4, 16, 16),
                 timestep=torch.tensor([3, 7], device=device),
                 encoder_hidden_states=_noise(device, 2, 5, HIDDEN))


@_seeded
def _denoise_class(model: nn.Module, device: torch.device) -> Any:
    return model(_noise(device, 2, 4, 8, 8),
                 timestep=torch.tensor([3, 7], device=device),
                 class_labels=torch.tensor([1, 2], device=device))


@_seeded
def _denoise_flux(model: nn.Module, device: torch.device) -> Any:
    return model(hidden_states=_noise(device, 2, 16, 4),
                 encoder_hidden_states=_noise(device, 2, 5, HIDDEN),
                 pooled_projections=_noise(device, 2, HIDDEN),
                 timestep=torch.tensor([0.3, 0.7], device=device),
                 img_ids=torch.zeros(16, 3, device=device),
                 txt_ids=torch.zeros(5, 3, device=device))


@_seeded
def _denoise_sd3(model: nn.Module, device: torch.device) -> Any:
    return model(hidden_states=_noise(device, 2, 4, 8, 8),
                 encoder_hidden_states=_noise(device, 2, 5, HIDDEN),
                 pooled_projections=_noise(device, 2, HIDDEN),
                 timestep=torch.tensor([3, 7], device=device))


@_seeded
def _denoise_video(model: nn.Module, device: torch.device) -> Any:
    return model(hidden_states=_noise(device, 2, 4, 2, 8, 8),
                 timestep=torch.tensor([3, 7], device=device),
                 encoder_hidden_states=_noise(device, 2, 5, HIDDEN))


@_seeded
def _reconstruct(model: nn.Module, device: torch.device) -> Any:
    return model(_noise(device, 1, 3, 16, 16))


@_seeded
def _encode(model: nn.Module, device: torch.device) -> Any:
    return model.encode(_noise(device, 1, 3, 16, 16)).latent_dist.parameters


@_seeded
def _decode(model: nn.Module, device: torch.device) -> Any:
    return model.decode(_noise(device, 1, 4, 8, 8))


_TEXT = dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=64,
             num_hidden_layers=LAYERS, num_attention_heads=HEADS,
             max_position_embeddings=32)
_LLAMA = dict(_TEXT, num_key_value_heads=1, pad_token_id=0)
_SPECIAL = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)

FAMILIES = {
    "gpt2": Family(
        _transformer("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCAB,
                     n_positions=32, n_embd=HIDDEN, n_layer=LAYERS,
                     n_head=HEADS, bos_token_id=1, eos_token_id=2),
        {"forward": _of_ids, "generate": _generate}),
    "llama": Family(
        _transformer("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
        {"forward": _of_ids, "generate": _generate}),
    "mixtral": Family(
        _transformer("MixtralForCausalLM", "MixtralConfig", **_LLAMA,
                     num_local_experts=4, num_experts_per_tok=2),
        {"forward": _of_ids, "generate": _generate}),
    # Its experts one matrix product, which compiles to one graph.
    "qwen3_moe": Family(
        _transformer("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **_LLAMA,
                     head_dim=16, num_experts=4, num_experts_per_tok=2,
                     moe_intermediate_size=32,
                     experts_implementation="batched_mm"),
        {"forward": _of_ids, "generate": _generate}),
    "t5": Family(
        _transformer("T5ForConditionalGeneration", "T5Config",
                     vocab_size=VOCAB, d_model=HIDDEN, d_kv=16, d_ff=64,
                     num_layers=LAYERS, num_heads=HEADS,
                     decoder_start_token_id=0),
        {"forward": _of_both, "generate": _generate}),
    "bert": Family(
        _transformer("BertModel", "BertConfig", **_TEXT),
        {"forward": _of_ids}),
    "vit": Family(
        _transformer("ViTModel", "ViTConfig", hidden_size=HIDDEN,
                     num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                     intermediate_size=64, image_size=16, patch_size=4),
        {"forward": _of_pixels}),
    "whisper": Family(
        _transformer("WhisperForConditionalGeneration", "WhisperConfig",
                     vocab_size=VOCAB, num_mel_bins=16, d_model=HIDDEN,
                     encoder_layers=LAYERS, decoder_layers=LAYERS,
                     encoder_attention_heads=HEADS, encoder_ffn_dim=64,
                     decoder_attention_heads=HEADS, decoder_ffn_dim=64,
                     max_source_positions=20, max_target_positions=32,
                     decoder_start_token_id=1, suppress_tokens=None,
                     begin_suppress_tokens=None, **_SPECIAL),
        {"forward": _of_speech, "generate": _transcribe}),
    "clip": Family(
        _transformer("CLIPModel", "CLIPConfig", projection_dim=16,
                     text_config=dict(_TEXT, **_SPECIAL),
                     vision_config=dict(
                         hidden_size=HIDDEN, intermediate_size=64,
                         num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                         image_size=16, patch_size=4)),
        {"forward": _of_text_and_pixels}),
    "unet": Family(
        _diffuser("UNet2DConditionModel", sample_size=16, in_channels=4,
                  out_channels=4, block_out_channels=(16, 32),
                  layers_per_block=1, norm_num_groups=8,
                  cross_attention_dim=HIDDEN, attention_head_dim=8,
                  down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                  up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")),
        {"forward": _denoise}),
    "dit": Family(
        _diffuser("DiTTransformer2DModel", num_attention_heads=HEADS,
                  attention_head_dim=16, in_channels=4, out_channels=8,
                  num_layers=LAYERS, norm_num_groups=8, sample_size=8,
                  num_embeds_ada_norm=10),
        {"forward": _denoise_class}),
    "flux": Family(
        _diffuser("FluxTransformer2DModel", patch_size=1, in_channels=4,
                  num_layers=2, num_single_layers=2, attention_head_dim=16,
                  num_attention_heads=HEADS, joint_attention_dim=HIDDEN,
                  pooled_projection_dim=HIDDEN, axes_dims_rope=(4, 4, 8)),
        {"forward": _denoise_flux}),
    "sd3": Family(
        _diffuser("SD3Transformer2DModel", sample_size=8, patch_size=2,
                  in_channels=4, num_layers=LAYERS, attention_head_dim=16,
                  num_attention_heads=HEADS, joint_attention_dim=HIDDEN,
                  caption_projection_dim=HIDDEN, out_channels=4,
                  pooled_projection_dim=HIDDEN, pos_embed_max_size=8),
        {"forward": _denoise_sd3}),
    "wan": Family(
        _diffuser("WanTransformer3DModel", patch_size=(1, 2, 2),
                  num_attention_heads=HEADS, attention_head_dim=16,
                  in_channels=4, out_channels=4, text_dim=HIDDEN, freq_dim=32,
                  ffn_dim=64, num_layers=LAYERS, cross_attn_norm=True,
                  rope_max_seq_len=32),
        {"forward": _denoise_video}),
    "autoencoder": Family(
        _diffuser("AutoencoderKL", in_channels=3, out_channels=3,
                  block_out_channels=(16, 32), layers_per_block=1,
                  latent_channels=4, norm_num_groups=8, sample_size=16,
                  down_block_types=("DownEncoderBlock2D",) * 2,
                  up_block_types=("UpDecoderBlock2D",) * 2),
        {"forward": _reconstruct, "encode": _encode, "decode": _decode},
        # aot_eager fails on the resident one: strides of a group norm.
        backend="eager"),
}
