"""A small pipeline of diffusers', with tokenizers of letters."""

from __future__ import annotations

import os
import string
from typing import Any

import pytest
import torch

LETTERS = list(string.ascii_lowercase)


def save_a_flux(path: str | os.PathLike[str]) -> None:
    """As diffusers saves one: 5 MiB of bfloat16, for 128x128 pixels."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(2)
    clip, clip_tokenizer = _clip()
    t5, t5_tokenizer = _t5()
    pipeline = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=diffusers.AutoencoderKL(
            block_out_channels=(8,), latent_channels=4, norm_num_groups=4,
            shift_factor=0.0, scaling_factor=1.0, use_quant_conv=False,
            use_post_quant_conv=False),
        text_encoder=clip, tokenizer=clip_tokenizer,
        text_encoder_2=t5, tokenizer_2=t5_tokenizer,
        transformer=diffusers.FluxTransformer2DModel(
            in_channels=16, num_layers=2, num_single_layers=4,
            attention_head_dim=32, num_attention_heads=4,
            joint_attention_dim=64, pooled_projection_dim=32,
            axes_dims_rope=(8, 12, 12)))
    with torch.no_grad():  # Some are made as zeros, which hide mistakes.
        for parameter in pipeline.transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    pipeline.to(torch.bfloat16).save_pretrained(path)


def _clip() -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    words = [*LETTERS, *(one + "</w>" for one in LETTERS), "<|startoftext|>",
             "<|endoftext|>"]
    end = len(words) - 1
    config = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2, projection_dim=32,
        bos_token_id=end - 1, eos_token_id=end, pad_token_id=end)
    return transformers.CLIPTextModel(config), transformers.CLIPTokenizer(
        vocab={one: at for at, one in enumerate(words)}, merges=[],
        model_max_length=77)


def _t5() -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    words = ["<pad>", "</s>", "<unk>", "\u2581", *LETTERS]
    config = transformers.T5Config(
        vocab_size=len(words), d_model=64, d_kv=16, d_ff=256, num_layers=4,
        num_heads=4)
    return transformers.T5EncoderModel(config), transformers.T5Tokenizer(
        vocab=[(one, 0.0) for one in words], extra_ids=0)
