"""A mixture of experts of transformers (Qwen3's), whose routing is drawn from a
law that is known, and is one trace for all rows.

Random weights route as they like, and a greedy decode of them repeats itself.
So here tokens are told, not chosen, others in each pass; and a router's logits
are noise that the hidden state makes (the same bits in, the same noise out;
nearly the same, nearly the same), plus the logarithm of a law over the experts.
The largest of such sums are draws from that law.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F
from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen

from .llama import generating
from .models import Spec

# Below 32 MiB, from which on hoist reads embeddings in place, too.
VOCABULARY = 8000
_CHECKED = 1000  # More passes than there are before.


class Router(qwen.Qwen3MoeTopKRouter):
    """Chooses experts by Zipf's law: the n-th of a random order with 1/n."""

    def __init__(self, config: transformers.Qwen3MoeConfig) -> None:
        super().__init__(config)
        # Not in any file, and real where parameters are on meta.
        self.law: torch.Tensor | None
        self.register_buffer("law", None, persistent=False)

    def forward(self, hidden_states: torch.Tensor
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Normed inputs and rows of length 1 make what is distributed normally;
        # that becomes even, and then Gumbel's.
        normal = F.linear(hidden_states.reshape(-1, self.hidden_dim).float(),
                          self.weight.float())
        even = (0.5 * torch.erfc(normal * -math.sqrt(0.5))).clamp(
            1e-6, 1 - 1e-6)
        logits = self.law - torch.log(-torch.log(even))
        value, index = torch.topk(torch.softmax(logits, dim=-1), self.top_k,
                                  dim=-1)
        if self.norm_topk_prob:
            value = value / value.sum(dim=-1, keepdim=True)
        return logits, value.to(hidden_states.dtype), index


def _law(spec: Spec, layer: int) -> torch.Tensor:
    if spec.routing == "uniform":
        return torch.zeros(spec.experts)
    order = torch.randperm(spec.experts, generator=torch.Generator()
                           .manual_seed(1000 + layer))
    chances = 1.0 / torch.arange(1, spec.experts + 1)
    return torch.log(chances / chances.sum())[order]


def _config(spec: Spec) -> transformers.Qwen3MoeConfig:
    return transformers.Qwen3MoeConfig(
        hidden_size=spec.hidden, intermediate_size=3 * spec.hidden,
        moe_intermediate_size=spec.inner, num_hidden_layers=spec.blocks,
        num_attention_heads=spec.heads,
        num_key_value_heads=max(1, spec.heads // 8),
        head_dim=2 * spec.hidden // spec.heads, num_experts=spec.experts,
        num_experts_per_tok=spec.chosen, norm_topk_prob=True,
        decoder_sparse_step=1, vocab_size=VOCABULARY, dtype=torch.bfloat16)


def build(spec: Spec) -> nn.Module:
    """Its parameters on meta, what is computed of the configuration not.

    spec.computed: "auto", which is transformers' grouped_mm, and on a GPU its
    batched_mm for tokens that are decoded; or the one that is named, always.
    """
    config = _config(spec)
    with torch.device("meta"):
        made = transformers.Qwen3MoeForCausalLM(config)
        for layer in made.model.layers:
            layer.mlp.gate = Router(config)
        made = made.to(torch.bfloat16)
    made.model.rotary_emb = type(made.model.rotary_emb)(config=config)
    for number, layer in enumerate(made.model.layers):
        layer.mlp.gate.law = _law(spec, number)
    if spec.computed != "auto":
        made.set_experts_implementation(spec.computed)
        made._optimize_model_for_decode = contextlib.nullcontext
    return made


def experts_of(module: nn.Module) -> list[nn.Module]:
    """Each layer's, as one module with stacked weights."""
    return [layer.mlp.experts for layer in module.model.layers]


class _Told(transformers.LogitsProcessor):
    """The next token is the one that is told."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor,
                 scores: torch.Tensor) -> torch.Tensor:
        told = torch.full_like(scores, -torch.inf)
        told[:, self._tokens[input_ids.shape[1]]] = 0
        return told


def new_tokens(options: dict[str, Any]) -> int:
    """Of a pass. Few, where all weights come over the link for each."""
    streams = options["kind"] == "accelerate" or (
        options["kind"] == "hoist" and not options.get("in_place"))
    return 4 if streams and not options.get("static") else 32


class Passes:
    """Called, it makes the next pass: other tokens, decoded after one (or, with
    `prefill`, that many at once). `check` makes what is the same each time, and
    begins with the same for all numbers of tokens; the passes that follow it
    are the same for all rows."""

    def __init__(self, module: nn.Module, spec: Spec, device: torch.device,
                 options: dict[str, Any]) -> None:
        self._module, self._spec, self._device = module, spec, device
        self._static = bool(options.get("static"))
        self._prefill = spec.prefill if options.get("prefill") else 0
        self.units = 1 if self._prefill else new_tokens(options)
        self.done = 0

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.done += 1
        return self._pass(self.done)

    def check(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.done = _CHECKED
        whole = self._module(*inputs, use_cache=False).logits
        return torch.cat([whole.float().flatten(),
                          self._pass(0).float().flatten()])

    def _tokens(self, number: int, count: int) -> torch.Tensor:
        return torch.randint(1, VOCABULARY, (1, count), generator=(
            torch.Generator().manual_seed(100 + number)))

    def _pass(self, number: int) -> torch.Tensor:
        if self._prefill:
            prompt = self._tokens(number, self._prefill).to(self._device)
            return self._module(prompt, use_cache=False,
                                logits_to_keep=1).logits
        # As many for all rows, so that the first ones are the same.
        tokens = self._tokens(number, 256)[:, :self.units + 1]
        generate = generating(self._module, self._static, self.units,
                              _Told(tokens[0].tolist()))
        return generate(tokens[:, :1].to(self._device))
