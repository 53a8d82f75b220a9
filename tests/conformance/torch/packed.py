"""Small checkpoints that are quantised, as the libraries write them."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
from typing import Any, Callable, Iterator
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

DTYPE = torch.bfloat16
BLOCK = 32  # Rows and columns that have one scale, of FP8 by blocks.


def config() -> Any:
    import transformers
    return transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, vocab_size=64,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=False)


def write_base(folder: pathlib.Path) -> None:
    import transformers
    torch.manual_seed(4)
    transformers.LlamaForCausalLM(config()).to(DTYPE).save_pretrained(folder)


def _by_transformers(make: Callable[[], Any]
                     ) -> Callable[[pathlib.Path, pathlib.Path], None]:
    def write(base: pathlib.Path, folder: pathlib.Path) -> None:
        import transformers
        transformers.LlamaForCausalLM.from_pretrained(
            base, quantization_config=make(), dtype=DTYPE
        ).save_pretrained(folder)
    return write


def _bitsandbytes(**options: Any) -> Callable[..., None]:
    def make() -> Any:
        pytest.importorskip("bitsandbytes")
        import transformers
        return transformers.BitsAndBytesConfig(**options)
    return _by_transformers(make)


def _torchao(name: str, **options: Any) -> Callable[..., None]:
    def make() -> Any:
        quantization = pytest.importorskip("torchao.quantization")
        import transformers
        return transformers.TorchAoConfig(
            getattr(quantization, name)(**options))
    return _by_transformers(make)


def write_fp8_blocks(base: pathlib.Path, folder: pathlib.Path,
                     pattern: str = r"_proj\.",
                     exponents: torch.dtype | None = None) -> None:
    """As DeepSeek's: each weight with `weight_scale_inv` beside it.

    exponents: scales are powers of two, of which these are stored."""
    saved: dict[str, torch.Tensor] = {}
    for name, value in load_file(base / "model.safetensors").items():
        saved[name] = value
        if re.search(pattern, name):
            rows, columns = value.shape
            blocks = value.float().reshape(rows // BLOCK, BLOCK,
                                           columns // BLOCK, BLOCK)
            scale = blocks.abs().amax((1, 3), keepdim=True) / 448
            if exponents is not None:
                scale = scale.log2().ceil().exp2()
            saved[name] = (blocks / scale).reshape(rows, columns).to(
                torch.float8_e4m3fn)
            scale = scale.reshape(rows // BLOCK, columns // BLOCK)
            saved[name + "_scale_inv"] = scale if exponents is None else (
                scale.to(torch.float8_e8m0fnu).view(exponents))
    write(folder, base, saved, quant_method="fp8", fmt="e4m3",
          activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK],
          **{} if exponents is None else {"scale_fmt": "ue8m0"})


def write_compressed(base: pathlib.Path, folder: pathlib.Path,
                     scales: torch.dtype = DTYPE, dynamic: bool = False,
                     **weights: Any) -> None:
    """As llm-compressor: each weight's scales by its largest values.

    dynamic: activations are rounded as well, a scale for each token."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    import transformers
    from compressed_tensors.compressors import ModelCompressor
    model = transformers.LlamaForCausalLM.from_pretrained(base, dtype=DTYPE)
    arguments = quantization.QuantizationArgs
    quantization.apply_quantization_config(
        model, quantization.QuantizationConfig(ignore=["lm_head"], config_groups={
            "all": quantization.QuantizationScheme(
                targets=["Linear"], weights=arguments(**weights),
                input_activations=arguments(
                    num_bits=8, type="float", strategy="token", dynamic=True)
                if dynamic else None)}), show_progress=False)
    bits = weights["num_bits"]
    top = (2**bits / 2 - 1 if weights["type"] == "int" else
           {8: 448, 4: 6}[bits])
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            shape = module.weight_scale.shape
            parts = module.weight.detach().float().reshape(
                math.prod(shape), -1)
            scale = parts.abs().amax(1) / top
            if hasattr(module, "weight_global_scale"):  # Scales are of 8 bits.
                whole = (448 / scale.max()).reshape(1)
                module.weight_global_scale = nn.Parameter(
                    whole, requires_grad=False)
                scale = scale * whole
            module.weight_scale = nn.Parameter(
                scale.reshape(shape).to(scales), requires_grad=False)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))


def write_compressed_fp8(scales: torch.dtype, strategy: str
                         ) -> Callable[[pathlib.Path, pathlib.Path], None]:
    """For the library's own kernels, which its files do not ask for."""
    def write(base: pathlib.Path, folder: pathlib.Path) -> None:
        write_compressed(base, folder, scales, dynamic=True, num_bits=8,
                         type="float", strategy=strategy)
        tell(folder, use_optimized_inference=True)
    return write


def write(folder: pathlib.Path, base: pathlib.Path,
          saved: dict[str, torch.Tensor], **quantization: Any) -> None:
    """A folder with these tensors, and a configuration that says so."""
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((base / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(
        {**said, "quantization_config": quantization}))


def write_mxfp4(folder: pathlib.Path) -> None:
    """As gpt-oss: experts' matrices, of which 32 numbers have one exponent."""
    import transformers
    torch.manual_seed(4)
    made = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        hidden_size=64, intermediate_size=64, vocab_size=64,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_local_experts=4, num_experts_per_tok=2))
    made.to(DTYPE).save_pretrained(folder)
    saved = {}
    for name, value in load_file(folder / "model.safetensors").items():
        if name.endswith("_proj"):
            shape = (value.shape[0], value.shape[2], value.shape[1] // 32)
            saved[name + "_blocks"] = torch.randint(
                256, (*shape, 16), dtype=torch.uint8)
            saved[name + "_scales"] = torch.randint(
                118, 122, shape, dtype=torch.uint8)
        else:
            saved[name] = value
    write(folder, folder, saved, quant_method="mxfp4")


def write_nvfp4(base: pathlib.Path, folder: pathlib.Path) -> None:
    """compressed-tensors': 16 numbers have one scale of 8 bits."""
    write_compressed(base, folder, num_bits=4, type="float",
                     strategy="tensor_group", group_size=16)


def tell(folder: pathlib.Path, **said: Any) -> None:
    """Adds to what the folder's configuration says of its quantisation."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(said)
    (folder / "config.json").write_text(json.dumps(config))


def _unpacked(write: Callable[..., None], *args: Any, **options: Any
              ) -> Callable[[pathlib.Path, pathlib.Path], None]:
    """The weights become plain ones as they are loaded."""
    def write_and_tell(base: pathlib.Path, folder: pathlib.Path) -> None:
        write(base, folder, *args, **options)
        tell(folder, dequantize=True)
    return write_and_tell


WRITERS: dict[str, Callable[[pathlib.Path, pathlib.Path], None]] = {
    "bitsandbytes nf4": _bitsandbytes(
        load_in_4bit=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=DTYPE),
    "bitsandbytes fp4": _bitsandbytes(
        load_in_4bit=True, bnb_4bit_quant_type="fp4",
        bnb_4bit_compute_dtype=DTYPE),
    "bitsandbytes int8": _bitsandbytes(load_in_8bit=True),
    "torchao int8": _torchao("Int8WeightOnlyConfig", version=2),
    "torchao float8": _torchao("Float8WeightOnlyConfig"),
    "fp8 blocks": write_fp8_blocks,
    "fp8 blocks e8m0": lambda base, folder: write_fp8_blocks(
        base, folder, exponents=torch.float8_e8m0fnu),
    "fp8 blocks uint8": lambda base, folder: write_fp8_blocks(
        base, folder, exponents=torch.uint8),
    "compressed-tensors fp8": write_compressed_fp8(torch.float32, "channel"),
    # The library casts and repeats the scales.
    "compressed-tensors fp8 whole": write_compressed_fp8(DTYPE, "tensor"),
    "mxfp4 unpacked": _unpacked(lambda _, folder: write_mxfp4(folder)),
    "fp8 blocks unpacked": _unpacked(write_fp8_blocks),
    "compressed-tensors int4 unpacked": _unpacked(
        write_compressed, num_bits=4, type="int", strategy="group",
        group_size=32),
    "compressed-tensors fp8 blocks unpacked": _unpacked(
        write_compressed, num_bits=8, type="float", strategy="block",
        block_structure=[BLOCK, BLOCK]),
    "compressed-tensors nvfp4 unpacked": _unpacked(write_nvfp4),
}


@contextlib.contextmanager
def with_kernels() -> Iterator[None]:
    """The libraries compute with packed weights on a CPU as well. torch has
    compressed-tensors' kernel there, which transformers does not ask for."""
    quantizer = pytest.importorskip(
        "transformers.quantizers.quantizer_compressed_tensors"
        ).CompressedTensorsHfQuantizer

    def validate(self: Any, *_: Any, **__: Any) -> None:
        self.use_fp8_kernel = self.quantization_config.use_optimized_inference

    with mock.patch.object(quantizer, "validate_environment", validate), \
            _with_kernels_of_blocks():
        yield


@contextlib.contextmanager
def _with_kernels_of_blocks() -> Iterator[None]:
    """Where FP8 by blocks has no kernel, plain torch computes in its place:
    a CPU, for which transformers would unpack the weights, and a GPU without
    the package `kernels`."""
    import transformers.utils.import_utils as packages
    if torch.cuda.is_available() and packages.is_kernels_available():
        yield
        return
    core = pytest.importorskip("transformers.integrations.finegrained_fp8")
    quantizer = pytest.importorskip(
        "transformers.quantizers.quantizer_finegrained_fp8")

    def linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor,
               block: Any, bias: Any = None, *_: Any) -> torch.Tensor:
        whole = weight.float() * scale.float().repeat_interleave(
            block[0], 0).repeat_interleave(block[1], 1)
        return nn.functional.linear(x, whole.to(x.dtype), bias)

    with mock.patch.object(core, "finegrained_fp8_linear", linear), \
            mock.patch.object(quantizer.FineGrainedFP8HfQuantizer,
                              "validate_environment"):
        yield
