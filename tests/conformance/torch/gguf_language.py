"""Small GGUF files of language models, with metadata as transformers reads it."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, Callable

import gguf
import numpy
import torch
from gguf_files import KINDS, Type, packed
from torch import nn

_OWN_TYPES = {"F32": numpy.float32, "F16": numpy.float16, "I8": numpy.int8}
_BASE = dict(vocab_size=64, hidden_size=256, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2,
             intermediate_size=256)
# transformers does not read the size of an expert: this is its default.
_MOE = dict(_BASE, moe_intermediate_size=768, num_experts=4,
            num_experts_per_tok=2)


@dataclasses.dataclass(frozen=True)
class Family:
    """arch: ggml's name of it. name: its configuration's, before "Config".
    metadata: of the file, besides what the configuration tells. mapped_as: the
    kind of model whose map of names it has, if it is another one's."""

    arch: str
    name: str
    config: dict[str, Any]
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: str = "AutoModelForCausalLM"
    mapped_as: tuple[str, ...] = ()

    def make(self, **options: Any) -> nn.Module:
        transformers = importlib.import_module("transformers")
        config = getattr(transformers, f"{self.name}Config")(
            **{**self.config, **options})
        kind = getattr(transformers, self.model)
        made: nn.Module = getattr(kind, "from_config", kind)(config)
        return made


# Each has another conversion of its tensors.
FAMILIES = {one.arch: one for one in (
    Family("llama", "Llama", _BASE),  # Rows of queries and keys are permuted.
    Family("qwen2", "Qwen2", _BASE),  # Biases, and no change.
    Family("gemma2", "Gemma2", dict(_BASE, head_dim=64)),  # Norms less one.
    Family("gpt2", "GPT2", dict(vocab_size=64, n_embd=256, n_layer=2,
                                n_head=4)),  # Matrices are transposed.
    Family("lfm2", "Lfm2", dict(  # By converters on tensors.
        _BASE, block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention"]), {
            "attention.head_count_kv": [0, 2], "shortconv.l_cache": 3,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6}),
    Family("qwen35", "Qwen3_5Text", dict(  # Likewise: values, rows, columns.
        _BASE, num_hidden_layers=4, head_dim=64, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=32,
        linear_value_head_dim=64), {
            "context_length": 128, "embedding_length": 256, "block_count": 4,
            "attention.head_count": 4, "attention.head_count_kv": 2,
            "attention.key_length": 64, "feed_forward_length": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "full_attention_interval": 4, "ssm.conv_kernel": 4,
            "ssm.state_size": 32, "ssm.group_count": 2, "ssm.inner_size": 256,
            "ssm.time_step_rank": 4, "rope.freq_base": 1e6,
            "rope.dimension_count": 16, "rope.dimension_sections": [3, 3, 2, 0]
            }, mapped_as=("qwen35",)),
    Family("t5encoder", "T5", dict(
        vocab_size=64, d_model=256, d_ff=256, num_layers=2, num_heads=4,
        feed_forward_proj="gated-relu"), model="T5EncoderModel"),
    Family("qwen3moe", "Qwen3Moe", dict(_MOE, head_dim=64)),  # Experts joined.
    Family("qwen2moe", "Qwen2Moe", dict(  # And shared ones, with a gate.
        _MOE, moe_intermediate_size=1408)),
    Family("qwen3", "Qwen3", dict(_BASE, head_dim=128)),  # Norms of heads.
    Family("phi3", "Phi3", dict(  # Fused; its default padding has a row.
        _BASE, vocab_size=32064)),
)}


def write(path: Path, family: Family, kinds: tuple[str, ...] = KINDS,
          lost: str = "", arch: str = "") -> None:
    """Random weights, matrices of `kinds` one after another; without the tensor
    `lost`. arch: which the file says instead of the family's."""
    library = importlib.import_module(
        "transformers.modeling_gguf_pytorch_utils")
    module = family.make()
    writer = gguf.GGUFWriter(path, arch or family.arch)
    writer.add_string("general.name", family.name.lower())
    writer.add_array("tokenizer.ggml.tokens", [
        str(at) for at in range(module.config.vocab_size)])
    add: dict[type, Callable[..., None]] = {
        int: writer.add_uint32, float: writer.add_float32,
        bool: writer.add_bool, list: writer.add_array}
    for key, value in {**_metadata(library, module),
                       **family.metadata}.items():
        add[type(value)](f"{family.arch}.{key}", value)
    torch.manual_seed(6)
    for at, (name, shape) in enumerate(_tensors(library, family, module)):
        value = 0.1 * torch.randn(shape) + (len(shape) == 1 and "norm" in name)
        if name.endswith(".ssm_a"):  # Of which it takes a logarithm.
            value = -value.abs()
        kind = kinds[at % len(kinds)]
        if len(shape) == 1 or shape[-1] % 32:
            kind = "F32"
        elif kind not in _OWN_TYPES and (
                shape[-1] % gguf.GGML_QUANT_SIZES[Type[kind]][0]):
            kind = "Q8_0"
        if name == lost:
            continue
        if kind in _OWN_TYPES:
            writer.add_tensor(name, value.numpy().astype(_OWN_TYPES[kind]))
        else:
            rows = packed(value.reshape(-1, shape[-1]), kind, at)
            writer.add_tensor(name, rows.reshape(*shape[:-1], -1),
                              raw_dtype=Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(library: Any, module: nn.Module) -> dict[str, Any]:
    keys = library.GGUF_TO_TRANSFORMERS_MAPPING["config"].get(
        module.config.model_type, {})
    found = {key: getattr(module.config, str(name), None)
             for key, name in keys.items()}
    return {key: value for key, value in found.items()
            if type(value) in (int, float, bool)}


def _tensors(library: Any, family: Family, module: nn.Module
             ) -> list[tuple[str, tuple[int, ...]]]:
    """Their names and shapes in the file."""
    processor = library.TENSOR_PROCESSORS.get(
        family.arch, library.TensorProcessor)({})
    own = module.state_dict()
    found = [(f"blk.{name.split('.')[2]}.ssm_dt.bias", tuple(value.shape))
             for name, value in own.items() if name.endswith(".dt_bias")]
    for name, ours in library.get_gguf_hf_weights_map(
            module, processor, *family.mapped_as).items():
        if ours not in own:
            continue
        shape = tuple(own[ours].shape)
        if family.arch == "gpt2" and len(shape) == 2 and "blk" in name:
            shape = shape[::-1]
        if ".shortconv.conv." in name or ".ssm_conv1d." in name:
            shape = (shape[0], shape[2])
        if name.endswith("ffn_gate_inp_shexp.weight"):
            shape = shape[-1:]
        if name.endswith("_exps"):
            name += ".weight"
            if "gate" in name or "up" in name:
                shape = (shape[0], shape[1] // 2, shape[2])
        found.append((name, shape))
    return found
