"""A decoder of transformers, whose pass is the decoding of some tokens."""

from __future__ import annotations

from typing import Callable

import torch
import transformers
from torch import nn

# Tokens of a pass, beside the prompt: its figures are those of one of them.
NEW_TOKENS = 16


def config_of(hidden: int, heads: int, layers: int,
              vocabulary: int = 32000) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads // 4 if heads % 4 == 0 else heads,
        vocab_size=vocabulary, dtype=torch.bfloat16)


def build(hidden: int, heads: int, layers: int) -> nn.Module:
    """Its parameters on meta, what is computed of the configuration not."""
    config = config_of(hidden, heads, layers)
    with torch.device("meta"):
        made = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    made.model.rotary_emb = type(made.model.rotary_emb)(config=config)
    return made


def generating(module: nn.Module, static: bool, new_tokens: int = NEW_TOKENS,
               chooses: transformers.LogitsProcessor | None = None
               ) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of a prompt, the logits of the tokens that follow; which ones, `chooses`
    may say. With a static cache transformers compiles the module, on a GPU."""
    more = {} if chooses is None else {
        "logits_processor": transformers.LogitsProcessorList([chooses])}

    def generate(prompt: torch.Tensor) -> torch.Tensor:
        found = module.generate(
            prompt, max_new_tokens=new_tokens, min_new_tokens=new_tokens,
            do_sample=False, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
            cache_implementation="static" if static else None, **more)
        return torch.stack(found.logits)

    return generate
