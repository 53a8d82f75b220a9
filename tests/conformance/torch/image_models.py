"""Small models of diffusers, and the tensors of their files."""

from __future__ import annotations

import pathlib
from typing import Any

import diffusers
import torch
from torch import nn

DTYPE = torch.bfloat16
FP8 = torch.float8_e4m3fn
# Of a model: its class, its file's tensors, and a call's inputs. Its
# configuration is in the folder.
Model = tuple[Any, dict[str, torch.Tensor], dict[str, Any]]


def random_state(module: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {name: torch.randn(value.shape) / 16
            for name, value in module.state_dict().items()}


def qwen(folder: pathlib.Path) -> Model:
    """Named as diffusers' module."""
    kind = diffusers.QwenImageTransformer2DModel
    made = kind(patch_size=1, in_channels=64, out_channels=64, num_layers=2,
                attention_head_dim=128, num_attention_heads=2,
                joint_attention_dim=256, axes_dims_rope=(16, 56, 56))
    made.save_config(folder)
    inputs = {"hidden_states": torch.randn(1, 16, 64),
              "encoder_hidden_states": torch.randn(1, 5, 256),
              "timestep": torch.tensor([0.5]), "img_shapes": [[(1, 4, 4)]],
              "return_dict": False}
    if "txt_seq_lens" in kind.forward.__code__.co_varnames:
        inputs["txt_seq_lens"] = [5]
    return kind, random_state(made), inputs


def sd3(folder: pathlib.Path) -> Model:
    """Named as the original: q, k and v are one, and two halves of the last
    layers lie the other way round."""
    kind = diffusers.SD3Transformer2DModel
    kind(sample_size=8, patch_size=2, in_channels=16, num_layers=2,
         attention_head_dim=128, num_attention_heads=2,
         joint_attention_dim=256, caption_projection_dim=256,
         pooled_projection_dim=64, out_channels=16,
         pos_embed_max_size=8).save_config(folder)
    inputs = {"hidden_states": torch.randn(1, 16, 8, 8),
              "encoder_hidden_states": torch.randn(1, 5, 256),
              "pooled_projections": torch.randn(1, 64),
              "timestep": torch.tensor([0.5]), "return_dict": False}
    return kind, original_sd3(256), inputs


def original_sd3(size: int) -> dict[str, torch.Tensor]:
    shapes = {"x_embedder.proj": (size, 16, 2, 2),
              "t_embedder.mlp.0": (size, 256), "t_embedder.mlp.2": (size, size),
              "y_embedder.mlp.0": (size, 64), "y_embedder.mlp.2": (size, size),
              "context_embedder": (size, 256), "final_layer.linear": (64, size),
              "final_layer.adaLN_modulation.1": (2 * size, size)}
    for at in range(2):
        for part in ("x_block", "context_block"):
            name = f"joint_blocks.{at}.{part}."
            last = at == 1 and part == "context_block"
            shapes |= {f"{name}attn.qkv": (3 * size, size),
                       f"{name}adaLN_modulation.1": (
                           (2 if last else 6) * size, size)}
            if not last:
                shapes |= {f"{name}attn.proj": (size, size),
                           f"{name}mlp.fc1": (4 * size, size),
                           f"{name}mlp.fc2": (size, 4 * size)}
    torch.manual_seed(4)
    made = {"pos_embed": torch.randn(1, 64, size) / 16}
    for name, shape in shapes.items():
        made[f"{name}.weight"] = torch.randn(shape) / 16
        made[f"{name}.bias"] = torch.randn(shape[0]) / 16
    return made


def scaled(tensors: dict[str, torch.Tensor]
           ) -> dict[str, torch.Tensor]:
    """diffusers' format: a scale for each row of a matrix."""
    found = {}
    for name, value in tensors.items():
        found[name] = value.to(DTYPE)
        if value.ndim == 2:
            rows = value.float().abs().amax(1).clamp(1e-6) / 448
            found[name] = (value / rows[:, None]).to(FP8)
            found[f"{name}_scale"] = rows
    return found


def run(module: nn.Module, inputs: dict[str, Any], device: torch.device,
        dtype: torch.dtype = DTYPE) -> Any:
    given = {name: value.to(device, dtype) if isinstance(value, torch.Tensor)
             else value for name, value in inputs.items()}
    with torch.no_grad():
        return module(**given)


def plain(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().as_subclass(torch.Tensor)


def vae(folder: pathlib.Path) -> Model:
    """Named as the original, whose attention is of convolutions."""
    kind = diffusers.AutoencoderKL
    made = kind(block_out_channels=(32,), latent_channels=4, sample_size=8)
    made.save_config(folder)
    return (kind, {_original_vae(name): value[..., None, None]
                   if ".to_" in name and value.ndim == 2 else value
                   for name, value in random_state(made).items()},
            {"sample": torch.randn(1, 3, 8, 8), "return_dict": False})


def _original_vae(name: str) -> str:
    for theirs, original in (
            ("_blocks.0.resnets", ".0.block"), ("mid_block", "mid"),
            ("resnets.0", "block_1"), ("resnets.1", "block_2"),
            ("attentions.0", "attn_1"), ("group_norm", "norm"),
            ("to_out.0", "proj_out"), ("to_", ""),
            ("conv_norm_out", "norm_out"), ("conv_shortcut", "nin_shortcut")):
        if ".mid" in name or not original.startswith("block_"):
            name = name.replace(theirs, original)
    return name
