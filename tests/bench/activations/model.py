"""What is trained: transformer blocks in a row."""

from __future__ import annotations

import dataclasses
from typing import Sequence

import torch
from torch import nn
from torch.nn import functional as F

HEAD = 128  # Elements of an attention head.


@dataclasses.dataclass(frozen=True)
class Size:
    """All blocks have the same weights' tensors, but activations of their own:
    so blocks that are wide enough to compute for as long as the link needs for
    their activations fit a GPU, in any number."""

    blocks: int
    hidden: int
    tokens: int
    dtype: torch.dtype


SIZES = {
    "h200": Size(24, 20480, 1024, torch.bfloat16),
    "small": Size(24, 4096, 1024, torch.bfloat16),
    "tiny": Size(6, 256, 64, torch.float32),
}


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.heads = max(1, hidden // HEAD)
        self.before_attention = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.before_mlp = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(
            batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Blocks(nn.Module):
    """`count` modules over the same parameters."""

    def __init__(self, size: Size, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.ModuleList(Block(size.hidden)
                                        for _ in range(size.blocks))
        for layer in self.layers:
            for (name, _), one in zip(list(layer.named_parameters()),
                                      parameters):
                owner, _, leaf = name.rpartition(".")
                setattr(layer.get_submodule(owner), leaf, one)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean(dtype=torch.float32)


def parameters_of(size: Size, device: torch.device) -> list[nn.Parameter]:
    """A block's."""
    torch.manual_seed(0)
    with torch.device("meta"):
        block = Block(size.hidden).to(size.dtype)
    block.to_empty(device=device)
    for one in block.parameters():
        if one.dim() == 1:
            nn.init.ones_(one)
        else:
            nn.init.normal_(one, std=0.4 / one.shape[1] ** 0.5)
    return list(block.parameters())


def input_of(size: Size, device: torch.device) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(1, size.tokens, size.hidden, device=device,
                       dtype=size.dtype)
