"""The models that are run: made on meta, their weights in one file."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F

DTYPE = torch.bfloat16
DECODERS = ("llama", "moe")
# Layers of a mixture that have weights of their own in the file. Those behind
# them have these again: it is written and kept in seconds, whatever the depth,
# and every layer's copy in memory is its own all the same.
UNLIKE_LAYERS = 8


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads,
                                   -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))


class Mlp(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """12 hidden^2 weights, and two norms."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = Mlp(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    """Transformer blocks, and nothing but a norm beside them."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(spec.hidden, spec.heads)
                                    for _ in range(spec.blocks))
        self.norm = nn.LayerNorm(spec.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class DitBlock(nn.Module):
    """18 hidden^2 weights: attention, MLP, and what modulates them (adaLN)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.attention = Attention(hidden, heads)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False)
        self.mlp = Mlp(hidden)
        self.modulation = nn.Linear(hidden, 6 * hidden)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        (shift1, scale1, gate1, shift2, scale2,
         gate2) = self.modulation(F.silu(time))[:, None].chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class TimeEmbed(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(256, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)

    def forward(self, time: torch.Tensor) -> torch.Tensor:
        return self.linear_2(F.silu(self.linear_1(time)))


class Dit(nn.Module):
    """A diffusion transformer: modules and a parameter beside its blocks."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.empty(spec.tokens, spec.hidden))
        self.proj_in = nn.Linear(64, spec.hidden)
        self.time_embed = TimeEmbed(spec.hidden)
        self.blocks = nn.ModuleList(DitBlock(spec.hidden, spec.heads)
                                    for _ in range(spec.blocks))
        self.norm_out = nn.LayerNorm(spec.hidden)
        self.proj_out = nn.Linear(spec.hidden, 64)

    def forward(self, latents: torch.Tensor,
                time: torch.Tensor) -> torch.Tensor:
        x = self.proj_in(latents) + self.pos_embed
        time = self.time_embed(time)
        for block in self.blocks:
            x = block(x, time)
        return self.proj_out(self.norm_out(x))


@dataclasses.dataclass(frozen=True)
class Spec:
    """A model's size, and that of its input."""

    kind: str  # "stack", "dit", "llama" or "moe".
    hidden: int
    heads: int
    blocks: int
    tokens: int
    # Of a mixture: an expert's width, how many there are in a layer, how many a
    # token has, by which law ("zipf" or "uniform") and how they are computed;
    # the tokens of a long prompt.
    inner: int = 0
    experts: int = 0
    chosen: int = 0
    routing: str = "zipf"
    computed: str = "auto"
    prefill: int = 4096

    def build(self) -> nn.Module:
        """The module, its parameters on meta."""
        if self.kind == "llama":
            from .llama import build  # Importing transformers takes seconds.
            return build(self.hidden, self.heads,
                         self.blocks).eval().requires_grad_(False)
        if self.kind == "moe":
            from .moe import build as build_mixture
            return build_mixture(self).eval().requires_grad_(False)
        with torch.device("meta"):
            made = Stack(self) if self.kind == "stack" else Dit(self)
        return made.to(DTYPE).eval().requires_grad_(False)

    def inputs(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        made = torch.Generator().manual_seed(7)
        if self.kind in DECODERS:
            return (torch.randint(1, 1000, (1, self.tokens),
                                  generator=made).to(device),)
        if self.kind == "stack":
            shapes = [(1, self.tokens, self.hidden)]
        else:
            shapes = [(1, self.tokens, 64), (1, 256)]
        return tuple(torch.randn(shape, generator=made).to(device, DTYPE)
                     for shape in shapes)


SPECS = {
    "blocks24": Spec("stack", 5120, 40, 24, 16),
    "dit48": Spec("dit", 2944, 23, 48, 4096),
    "llama32": Spec("llama", 2048, 32, 32, 16),
    # Qwen3-30B-A3B's layers: 1.2 GB each, 1.2 GB of experts.
    "moe8": Spec("moe", 2048, 32, 8, 16, inner=768, experts=128, chosen=8),
    "moe48": Spec("moe", 2048, 32, 48, 16, inner=768, experts=128, chosen=8),
    "tiny": Spec("stack", 128, 4, 6, 16),
    "tinydit": Spec("dit", 128, 4, 6, 32),
    "tinyllama": Spec("llama", 128, 2, 6, 8),
    # A page and half a page for an expert's matrices.
    "tinymoe": Spec("moe", 256, 4, 3, 8, inner=2048, experts=8, chosen=2,
                    prefill=64),
}


def sized(name: str, scale: float = 1.0, blocks: int | None = None,
          tokens: int | None = None) -> Spec:
    """SPECS[name] with `scale` times its bytes (in blocks of other size)."""
    spec = SPECS[name]
    head = spec.hidden // spec.heads
    heads = max(1, round(spec.heads * math.sqrt(scale)))
    return dataclasses.replace(
        spec, heads=heads, hidden=heads * head,
        blocks=blocks or spec.blocks, tokens=tokens or spec.tokens)


def encoder_of(spec: Spec) -> Spec:
    """What stands before it in a pipeline: 10 blocks for 24."""
    return dataclasses.replace(spec,
                               blocks=max(1, round(spec.blocks * 10 / 24)))


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """What a model has most of, in the order of its forward."""
    return list(module.blocks if hasattr(module, "blocks")
                else module.model.layers)


def bytes_of(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())


def in_file(spec: Spec) -> Spec:
    """The model whose weights the file has."""
    if spec.kind != "moe":
        return spec
    return dataclasses.replace(spec, blocks=min(spec.blocks, UNLIKE_LAYERS))


def name_in_file(name: str, layers: int) -> str:
    """Of a mixture's weight, in a file of so many layers."""
    return re.sub(r"(?<=layers\.)\d+",
                  lambda found: str(int(found[0]) % layers), name)


def write_weights(spec: Spec, path: pathlib.Path,
                  device: torch.device) -> None:
    """Random weights as safetensors, made on `device`, one after another."""
    header, end = {}, 0
    named = list(in_file(spec).build().named_parameters())
    for name, weight in named:
        header[name] = {"dtype": "BF16", "shape": list(weight.shape),
                        "data_offsets": [end, end + weight.nbytes]}
        end += weight.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    torch.manual_seed(5)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, weight in named:
            made = torch.randn(weight.shape, device=device, dtype=DTYPE)
            if weight.dim() >= 2:
                made *= _scale(spec, name, weight)
            elif name.endswith("weight"):
                made = 1 + 0.1 * made
            made.cpu().view(torch.uint8).numpy().tofile(file)


def _scale(spec: Spec, name: str, weight: torch.Tensor) -> float:
    """A mixture's router wants tokens that differ: what embeds them is as large
    as what layers add. Its own rows have length 1."""
    fan_in = weight.shape[-1] ** -0.5
    if spec.kind == "moe" and "embed_tokens" in name:
        return 1.0
    unit = weight.dim() == 3 or name.endswith("mlp.gate.weight")
    return fan_in if unit else 0.5 * fan_in


def stored_weights(path: pathlib.Path) -> Callable[[str], torch.Tensor]:
    """Gives the weight of a name, as it lies in the file."""
    from safetensors import safe_open
    file = safe_open(path, "pt")
    known = set(file.keys())
    layers = 1 + max((int(name.split(".")[2]) for name in known
                      if name.startswith("model.layers.")), default=0)

    def get(name: str) -> torch.Tensor:
        return file.get_tensor(name if name in known
                               else name_in_file(name, layers))
    return get


def put_weight(module: nn.Module, name: str, value: torch.Tensor) -> None:
    owner, _, key = name.rpartition(".")
    setattr(module.get_submodule(owner), key,
            nn.Parameter(value, requires_grad=False))


def load_weights(module: nn.Module, path: pathlib.Path,
                 device: torch.device | str = "cpu") -> None:
    """Into memory of the module's own on `device`: its parameters were on
    meta."""
    get = stored_weights(path)
    for name, weight in list(module.named_parameters()):
        own = torch.empty_like(weight, device=device)
        own.copy_(get(name))
        put_weight(module, name, own)
