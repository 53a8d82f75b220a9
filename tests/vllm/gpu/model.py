"""Models of random weights: model.py FOLDER LAYERS WIDTH VOCABULARY KIND...

llama: FOLDER, a Llama. All others are beside it, as FOLDER-KIND:
blocks: a Llama of half its layers, in fp8 with a scale for each block of 128.
mixture: a Qwen3 of a quarter of its layers, with 32 experts in each.
mixture_fp8: the same, in fp8 blocks. mixture_int4: with experts of int4 groups.
gpt_oss: gpt-oss of a quarter of its layers, of the 20B one's width: 32 experts
in MXFP4. gpt_oss_large: with all layers, and 128 experts, as the 120B one.
adapter: one of rank 8 for the Llama.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
from typing import Callable, Iterator

import torch
from safetensors.torch import save_file

HEAD = 128
BLOCK = 128
EXPERTS = 32
GROUP = 128  # Of int4.
RANK = 8
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ADAPTED = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")

Tensors = dict[str, torch.Tensor]


def llama(folder: pathlib.Path, layers: int, width: int, vocabulary: int
          ) -> None:
    save(folder, llama_config(layers, width, vocabulary),
         (layer(llama_shapes(width)) for _ in range(layers)))


def blocks(folder: pathlib.Path, layers: int, width: int, vocabulary: int
           ) -> None:
    save(folder, {**llama_config(layers // 2, width, vocabulary),
                  "quantization_config": {
                      "quant_method": "fp8", "fmt": "e4m3",
                      "activation_scheme": "dynamic",
                      "weight_block_size": [BLOCK, BLOCK]}},
         (in_blocks(layer(llama_shapes(width)))
          for _ in range(layers // 2)))


def mixture(folder: pathlib.Path, layers: int, width: int, vocabulary: int
            ) -> None:
    save(folder, mixture_config(layers, width, vocabulary),
         (mixture_layer(width) for _ in range(layers // 4)))


def mixture_fp8(folder: pathlib.Path, layers: int, width: int, vocabulary: int
                ) -> None:
    gates = [f"model.layers.{one}.mlp.gate" for one in range(layers // 4)]
    save(folder, {**mixture_config(layers, width, vocabulary),
                  "quantization_config": {
                      "quant_method": "fp8", "fmt": "e4m3",
                      "activation_scheme": "dynamic",
                      "modules_to_not_convert": ["lm_head", *gates],
                      "weight_block_size": [BLOCK, BLOCK]}},
         (replaced(mixture_layer(width), "_proj.weight", in_blocks)
          for _ in range(layers // 4)))


def mixture_int4(folder: pathlib.Path, layers: int, width: int, vocabulary: int
                 ) -> None:
    save(folder, {**mixture_config(layers, width, vocabulary),
                  "quantization_config": {
                      "quant_method": "compressed-tensors",
                      "format": "pack-quantized",
                      "quantization_status": "compressed",
                      "ignore": ["lm_head", "re:.*self_attn.*",
                                 "re:.*mlp.gate$"],
                      "config_groups": {"group_0": {
                          "targets": ["Linear"], "input_activations": None,
                          "output_activations": None, "weights": {
                              "num_bits": 4, "type": "int", "symmetric": True,
                              "strategy": "group", "group_size": GROUP}}}}},
         (replaced(mixture_layer(width), ".experts.", in_int4)
          for _ in range(layers // 4)))


def mixture_config(layers: int, width: int, vocabulary: int
                   ) -> dict[str, object]:
    inner = mixture_inner(width)
    return {**common_config(layers // 4, width, vocabulary),
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe", "intermediate_size": inner,
            "moe_intermediate_size": inner, "num_experts": EXPERTS,
            "num_experts_per_tok": 4, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": []}


def mixture_inner(width: int) -> int:
    """In whole blocks."""
    return -(-width * 3 // 16 // BLOCK) * BLOCK


def mixture_layer(width: int) -> Tensors:
    shapes = {**attention_shapes(width), "mlp.gate": (EXPERTS, width)}
    for expert in range(EXPERTS):
        shapes.update({f"mlp.experts.{expert}.{name}": shape for name, shape
                       in mlp_shapes(width, mixture_inner(width)).items()})
    return {**layer(shapes), **norms(HEAD, "self_attn.q_norm",
                                     "self_attn.k_norm")}


def gpt_oss(folder: pathlib.Path, layers: int, width: int, vocabulary: int
            ) -> None:
    save_gpt_oss(folder, layers // 4, width, EXPERTS, vocabulary)


def gpt_oss_large(folder: pathlib.Path, layers: int, width: int,
                  vocabulary: int) -> None:
    save_gpt_oss(folder, layers, width, 128, vocabulary)


def save_gpt_oss(folder: pathlib.Path, layers: int, width: int, experts: int,
                 vocabulary: int) -> None:
    width = width * 45 // 64 // 32 * 32  # 2880, both ways.
    save(folder, {
        **common_config(layers, width, vocabulary),
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
        "intermediate_size": width, "num_local_experts": experts,
        "num_experts_per_tok": 4, "experts_per_token": 4, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8,
        "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_theta": 150000.0, "layer_types": [
            ("sliding_attention", "full_attention")[one % 2]
            for one in range(layers)],
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096},
        "quantization_config": {
            "quant_method": "mxfp4", "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router",
                "model.embed_tokens", "lm_head"]}},
         (gpt_oss_layer(width, experts) for _ in range(layers)))


def gpt_oss_layer(width: int, experts: int) -> Tensors:
    made = layer({"self_attn.q_proj": (64 * 64, width),
                  "self_attn.k_proj": (8 * 64, width),
                  "self_attn.v_proj": (8 * 64, width),
                  "self_attn.o_proj": (width, 64 * 64),
                  "mlp.router": (experts, width)})
    for name in [*made]:
        if name.endswith((".router.weight", "_proj.weight")):
            made[name.replace(".weight", ".bias")] = random(
                1, made[name].shape[0], 0.1)[0]
    made["self_attn.sinks"] = random(1, 64, 1.0)[0]
    for name, rows in ("gate_up_proj", 2 * width), ("down_proj", width):
        blocks, whole = (experts, rows, width // 32), f"mlp.experts.{name}"
        made[f"{whole}_blocks"] = bytes_of(0, 256, *blocks, 16)
        # Powers of two: values are about as large as width ** -0.5.
        made[f"{whole}_scales"] = bytes_of(119, 122, *blocks)
        made[f"{whole}_bias"] = random(experts, rows, 0.1)
    return made


def adapter(folder: pathlib.Path, layers: int, width: int, _: int) -> None:
    """Large enough that it changes tokens."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK,
        "lora_alpha": 2 * RANK, "bias": "none",
        "target_modules": [one.rpartition(".")[2] for one in ADAPTED]}))
    shapes = llama_shapes(width)
    made = {}
    for number in range(layers):
        for name in ADAPTED:
            rows, columns = shapes[name]
            prefix = f"base_model.model.model.layers.{number}.{name}"
            made[f"{prefix}.lora_A.weight"] = random(
                RANK, columns, columns ** -0.5)
            made[f"{prefix}.lora_B.weight"] = random(rows, RANK, 0.1)
    save_file(made, folder / "adapter_model.safetensors")


def common_config(layers: int, width: int, vocabulary: int
                  ) -> dict[str, object]:
    return {
        "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD // 4, "head_dim": HEAD,
        "vocab_size": vocabulary, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2}


def llama_config(layers: int, width: int, vocabulary: int
                 ) -> dict[str, object]:
    return {**common_config(layers, width, vocabulary),
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "intermediate_size": width * 7 // 2}


def llama_shapes(width: int) -> dict[str, tuple[int, int]]:
    return {**attention_shapes(width),
            **{f"mlp.{name}": shape for name, shape
               in mlp_shapes(width, width * 7 // 2).items()}}


def attention_shapes(width: int) -> dict[str, tuple[int, int]]:
    few = width // 4
    return {"self_attn.q_proj": (width, width),
            "self_attn.k_proj": (few, width),
            "self_attn.v_proj": (few, width),
            "self_attn.o_proj": (width, width)}


def mlp_shapes(width: int, inner: int) -> dict[str, tuple[int, int]]:
    return {"gate_proj": (inner, width), "up_proj": (inner, width),
            "down_proj": (width, inner)}


def save(folder: pathlib.Path, config: dict[str, object],
         layers: Iterator[Tensors]) -> None:
    """Each layer has a file of its own."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    width, vocabulary, count = (int(str(config[name])) for name in (
        "hidden_size", "vocab_size", "num_hidden_layers"))
    tokenizer(folder, vocabulary)
    index: dict[str, str] = {}

    def write(made: Tensors) -> None:
        name = f"model-{len(files) + 1:05d}-of-{count + 1:05d}.safetensors"
        files.append(name)
        save_file(made, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(made, name))

    files: list[str] = []
    write(ends(width, vocabulary))
    for number, tensors in enumerate(layers):
        write({f"model.layers.{number}.{name}": one
               for name, one in tensors.items()})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index}))


def ends(width: int, vocabulary: int) -> Tensors:
    return {"model.embed_tokens.weight": random(vocabulary, width, 1.0),
            **norms(width, "model.norm"),
            "lm_head.weight": random(vocabulary, width, 0.05)}


def layer(shapes: dict[str, tuple[int, int]]) -> Tensors:
    made = {f"{name}.weight": random(*shape, shape[1] ** -0.5)
            for name, shape in shapes.items()}
    width = shapes["self_attn.q_proj"][1]
    return {**made, **norms(width, "input_layernorm",
                            "post_attention_layernorm")}


def norms(width: int, *names: str) -> Tensors:
    return {f"{name}.weight": torch.ones(width, dtype=torch.bfloat16)
            for name in names}


def in_blocks(tensors: Tensors) -> Tensors:
    """Each block is multiplied so that its largest value is fp8's."""
    made = {}
    for name, whole in tensors.items():
        if whole.dim() == 1:
            made[name] = whole
            continue
        rows, columns = (size // BLOCK for size in whole.shape)
        cut = whole.to(DEVICE).float().view(rows, BLOCK, columns, BLOCK)
        scale = cut.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        made[name] = (cut / scale[:, None, :, None]).view(whole.shape).to(
            torch.float8_e4m3fn).cpu()
        made[f"{name}_scale_inv"] = scale.cpu()
    return made


def replaced(tensors: Tensors, which: str,
             by: Callable[[Tensors], Tensors]) -> Tensors:
    """Those with `which` in their names are made into others."""
    rest = {name: one for name, one in tensors.items() if which not in name}
    return {**rest, **by({name: one for name, one in tensors.items()
                          if name not in rest})}


def in_int4(tensors: Tensors) -> Tensors:
    """As compressed-tensors packs them: eight values of a row in a word."""
    made = {}
    for name, whole in tensors.items():
        rows, columns = whole.shape
        cut = whole.to(DEVICE).float().view(rows, -1, GROUP)
        scale = cut.abs().amax(2, keepdim=True) / 7
        values = (cut / scale).round().view(rows, -1, 8).to(torch.int32) + 8
        packed = torch.zeros_like(values[:, :, 0])
        for at in range(8):
            packed |= values[:, :, at] << 4 * at
        made[f"{name}_packed"] = packed.cpu()
        made[f"{name}_scale"] = scale.squeeze(2).to(torch.bfloat16).cpu()
        made[f"{name}_shape"] = torch.tensor([rows, columns])
    return made


def bytes_of(least: int, end: int, *shape: int) -> torch.Tensor:
    return torch.randint(least, end, shape, dtype=torch.uint8,
                         device=DEVICE).cpu()


def random(rows: int, columns: int, deviation: float) -> torch.Tensor:
    made = torch.randn(rows, columns, device=DEVICE) * deviation
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


def main(place: pathlib.Path, sizes: list[str], kinds: list[str]) -> None:
    for kind in kinds:
        out = (place if kind == "llama"
               else place.with_name(f"{place.name}-{kind}"))
        if not out.exists():
            torch.manual_seed(7)
            part = out.with_name(out.name + ".part")
            shutil.rmtree(part, ignore_errors=True)
            KINDS[kind](part, *map(int, sizes))
            os.rename(part, out)


KINDS = {one.__name__: one for one in (
    llama, blocks, mixture, mixture_fp8, mixture_int4, gpt_oss, gpt_oss_large,
    adapter)}

if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:5], sys.argv[5:])
