"""all-MiniLM-L6-v2 as a PyTorch module, for machines without transformers.

Its parameters have the names that they have in the model's file.
"""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch import nn
from torch.nn import functional as F


class Embeddings(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(
            config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"],
                                                  width)
        self.LayerNorm = nn.LayerNorm(width, config["layer_norm_eps"])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.LayerNorm(self.word_embeddings(ids)
                              + self.token_type_embeddings(ids * 0)
                              + self.position_embeddings(places))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for linear in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return mixed.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        eps = config["layer_norm_eps"]
        self.attention = nn.ModuleDict({
            "self": Attention(width, config["num_attention_heads"]),
            "output": nn.ModuleDict({"dense": nn.Linear(width, width),
                                     "LayerNorm": nn.LayerNorm(width, eps)})})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = nn.ModuleDict({"dense": nn.Linear(inner, width),
                                     "LayerNorm": nn.LayerNorm(width, eps)})

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = self.attention["output"]
        x = out["LayerNorm"](
            x + out["dense"](self.attention["self"](x, mask)))
        inner = F.gelu(self.intermediate["dense"](x))
        return self.output["LayerNorm"](x + self.output["dense"](inner))


class MiniLM(nn.Module):
    """config: the model's config.json."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(
            Layer(config) for _ in range(config["num_hidden_layers"]))})

    def forward(self, input_ids: torch.Tensor,
                attention_mask: torch.Tensor) -> torch.Tensor:
        """[b, t] and [b, t] to [b, t, width]."""
        mask = attention_mask.bool()[:, None, None, :]
        x = self.embeddings(input_ids)
        for layer in self.encoder["layer"]:
            x = layer(x, mask)
        return x
