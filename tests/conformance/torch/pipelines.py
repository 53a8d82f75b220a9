"""Small pipelines of diffusers', with tokenizers of letters.

Each is built from configurations, with the same weights each time, none of them
zero; and called in a way of its own.
"""

from __future__ import annotations

import dataclasses
import os
import string
from typing import Any, Callable

import pytest
import torch

LETTERS = list(string.ascii_lowercase)


@dataclasses.dataclass(frozen=True)
class Kind:
    """build() gives the pipeline; arguments are those of its calls."""

    build: Callable[[], Any]
    arguments: dict[str, Any]
    denoiser: str

    def make(self, dtype: torch.dtype = torch.float32) -> Any:
        pytest.importorskip("diffusers")
        pytest.importorskip("transformers")
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(2)
            pipe = self.build()
            for module in pipe.components.values():
                if isinstance(module, torch.nn.Module):
                    module.to(dtype).eval()
                    # Some are made as zeros, which hide mistakes.
                    for parameter in module.parameters():
                        parameter.add_(torch.randn_like(parameter) * 0.03)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def run(self, pipe: Any, **arguments: Any) -> Any:
        """The image, or video, as an array."""
        made = pipe(**{**self.arguments, "output_type": "np",
                       "generator": torch.manual_seed(0), **arguments})
        return made.frames if hasattr(made, "frames") else made.images


def save_a_flux(path: str | os.PathLike[str]) -> None:
    """As diffusers saves one: 5 MiB of bfloat16, for 128x128 pixels."""
    KINDS["flux"].make(torch.bfloat16).save_pretrained(path)


def _flux() -> Any:
    import diffusers
    clip, clip_tokenizer = _clip()
    t5, t5_tokenizer = _t5()
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(4, shift_factor=0.0, scaling_factor=1.0),
        text_encoder=clip, tokenizer=clip_tokenizer,
        text_encoder_2=t5, tokenizer_2=t5_tokenizer,
        transformer=diffusers.FluxTransformer2DModel(
            in_channels=16, num_layers=2, num_single_layers=4,
            attention_head_dim=32, num_attention_heads=4,
            joint_attention_dim=64, pooled_projection_dim=32,
            axes_dims_rope=(8, 12, 12)))


def _sd3() -> Any:
    import diffusers
    clip, clip_tokenizer = _clip("CLIPTextModelWithProjection")
    clip_2, _ = _clip("CLIPTextModelWithProjection")
    t5, t5_tokenizer = _t5()
    return diffusers.StableDiffusion3Pipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=_vae(4, shift_factor=0.1, scaling_factor=1.5),
        text_encoder=clip, tokenizer=clip_tokenizer,
        text_encoder_2=clip_2, tokenizer_2=clip_tokenizer,
        text_encoder_3=t5, tokenizer_3=t5_tokenizer,
        transformer=diffusers.SD3Transformer2DModel(
            sample_size=16, patch_size=2, in_channels=4, num_layers=6,
            attention_head_dim=32, num_attention_heads=4,
            joint_attention_dim=64, caption_projection_dim=128,
            pooled_projection_dim=64, out_channels=4,
            pos_embed_max_size=32))


def _sdxl() -> Any:
    import diffusers
    clip, clip_tokenizer = _clip()
    clip_2, _ = _clip("CLIPTextModelWithProjection")
    return diffusers.StableDiffusionXLPipeline(
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_schedule="scaled_linear", timestep_spacing="leading",
            steps_offset=1),
        vae=_vae(4, scaling_factor=0.5),
        text_encoder=clip, tokenizer=clip_tokenizer,
        text_encoder_2=clip_2, tokenizer_2=clip_tokenizer,
        unet=diffusers.UNet2DConditionModel(
            block_out_channels=(32, 64), layers_per_block=2, sample_size=16,
            in_channels=4, out_channels=4, norm_num_groups=8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=(2, 4), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=8,
            transformer_layers_per_block=(1, 2),
            projection_class_embeddings_input_dim=6 * 8 + 32,
            cross_attention_dim=64))


def _wan() -> Any:
    import diffusers
    t5, t5_tokenizer = _t5("UMT5EncoderModel", "UMT5Config")
    return diffusers.WanPipeline(
        scheduler=diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True,
            flow_shift=3.0),
        vae=diffusers.AutoencoderKLWan(
            base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
            temperal_downsample=[False, True, True]),
        text_encoder=t5, tokenizer=t5_tokenizer,
        transformer=diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2,
            attention_head_dim=48, in_channels=16, out_channels=16,
            text_dim=64, freq_dim=256, ffn_dim=192, num_layers=4,
            cross_attn_norm=True, qk_norm="rms_norm_across_heads",
            rope_max_seq_len=32))


def _ltx() -> Any:
    import diffusers
    t5, t5_tokenizer = _t5()
    return diffusers.LTXPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=diffusers.AutoencoderKLLTXVideo(
            in_channels=3, out_channels=3, latent_channels=8,
            block_out_channels=(8, 8, 8, 8),
            decoder_block_out_channels=(8, 8, 8, 8),
            layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
            spatio_temporal_scaling=(True, True, False, False),
            decoder_spatio_temporal_scaling=(True, True, False, False),
            decoder_inject_noise=(False,) * 5, upsample_residual=(False,) * 4,
            upsample_factor=(1, 1, 1, 1), timestep_conditioning=False,
            patch_size=1, patch_size_t=1, encoder_causal=True,
            decoder_causal=False),
        text_encoder=t5, tokenizer=t5_tokenizer,
        transformer=diffusers.LTXVideoTransformer3DModel(
            in_channels=8, out_channels=8, patch_size=1, patch_size_t=1,
            num_attention_heads=4, attention_head_dim=16,
            cross_attention_dim=64, num_layers=4, caption_channels=64))


def _vae(channels: int, **fields: Any) -> Any:
    import diffusers
    return diffusers.AutoencoderKL(
        block_out_channels=(8,), latent_channels=channels, norm_num_groups=4,
        use_quant_conv=False, use_post_quant_conv=False, **fields)


def _clip(model: str = "CLIPTextModel") -> tuple[Any, Any]:
    import transformers
    words = [*LETTERS, *(one + "</w>" for one in LETTERS), "<|startoftext|>",
             "<|endoftext|>"]
    end = len(words) - 1
    config = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2, projection_dim=32,
        bos_token_id=end - 1, eos_token_id=end, pad_token_id=end)
    return getattr(transformers, model)(config), transformers.CLIPTokenizer(
        vocab={one: at for at, one in enumerate(words)}, merges=[],
        model_max_length=77)


def _t5(model: str = "T5EncoderModel", config: str = "T5Config"
        ) -> tuple[Any, Any]:
    import transformers
    words = ["<pad>", "</s>", "<unk>", "\u2581", *LETTERS]
    made = getattr(transformers, config)(
        vocab_size=len(words), d_model=64, d_kv=16, d_ff=256, num_layers=4,
        num_heads=4)
    return getattr(transformers, model)(made), transformers.T5Tokenizer(
        vocab=[(one, 0.0) for one in words], extra_ids=0)


_IMAGE = {"prompt": "a crane at dawn", "height": 32, "width": 32,
          "num_inference_steps": 4, "max_sequence_length": 32}
_VIDEO = {**_IMAGE, "negative_prompt": "blur", "guidance_scale": 3.0,
          "num_frames": 9, "max_sequence_length": 16}

KINDS = {
    "flux": Kind(_flux, _IMAGE, "transformer"),
    "sd3": Kind(_sd3, {**_IMAGE, "negative_prompt": "blur"}, "transformer"),
    "sdxl": Kind(_sdxl, {"negative_prompt": "blur", **{
        name: one for name, one in _IMAGE.items()
        if name != "max_sequence_length"}}, "unet"),
    "wan": Kind(_wan, _VIDEO, "transformer"),
    "ltx": Kind(_ltx, _VIDEO, "transformer"),
}
