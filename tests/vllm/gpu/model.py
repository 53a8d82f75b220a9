"""A Llama of random weights: model.py FOLDER LAYERS WIDTH VOCABULARY"""

from __future__ import annotations

import json
import os
import pathlib
import sys

import torch
from safetensors.torch import save_file

HEAD = 128


def config(layers: int, width: int, vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": width, "intermediate_size": width * 7 // 2,
        "num_hidden_layers": layers, "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD // 4, "head_dim": HEAD,
        "vocab_size": vocabulary, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2}


def make(folder: pathlib.Path, layers: int, width: int, vocabulary: int
         ) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(config(layers, width, vocabulary)))
    tokenizer(folder, vocabulary)
    index: dict[str, str] = {}
    for part in range(-1, layers):
        made = ends(width, vocabulary) if part < 0 else layer(part, width)
        name = f"model-{part + 2:05d}-of-{layers + 1:05d}.safetensors"
        save_file(made, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(made, name))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}))


def ends(width: int, vocabulary: int) -> dict[str, torch.Tensor]:
    return {"model.embed_tokens.weight": random(vocabulary, width, 1.0),
            "model.norm.weight": torch.ones(width, dtype=torch.bfloat16),
            "lm_head.weight": random(vocabulary, width, 0.05)}


def layer(number: int, width: int) -> dict[str, torch.Tensor]:
    inner, few = width * 7 // 2, width // 4
    shapes = {"self_attn.q_proj": (width, width),
              "self_attn.k_proj": (few, width),
              "self_attn.v_proj": (few, width),
              "self_attn.o_proj": (width, width),
              "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
              "mlp.down_proj": (width, inner)}
    made = {name: random(*shape, shape[1] ** -0.5)
            for name, shape in shapes.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        made[norm] = torch.ones(width, dtype=torch.bfloat16)
    return {f"model.layers.{number}.{name}.weight": one
            for name, one in made.items()}


def random(rows: int, columns: int, deviation: float) -> torch.Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = torch.randn(rows, columns, device=device) * deviation
    return made.to(torch.bfloat16).cpu()


def tokenizer(folder: pathlib.Path, vocabulary: int) -> None:
    """A word for each number, as vllm serve wants one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = ["<unk>", "<s>", "</s>", *(f"w{n}" for n in range(3, vocabulary))]
    made = Tokenizer(models.WordLevel(
        {word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>",
        "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 4096}))


if __name__ == "__main__":
    torch.manual_seed(7)
    out = pathlib.Path(sys.argv[1])
    if not out.exists():
        part = out.with_name(out.name + ".part")
        make(part, *map(int, sys.argv[2:5]))
        os.rename(part, out)
