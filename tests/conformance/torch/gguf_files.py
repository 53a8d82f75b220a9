"""Writes GGUF files with packed matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import gguf
import numpy
import torch

Type = gguf.GGMLQuantizationType
# Where a block has its scales, in float16: random bytes are good for the rest.
SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q3_K": (108,),
          "Q2_K": (80, 82)}
# One after another for the weights, by their place.
KINDS = ("Q4_K", "Q6_K", "Q8_0", "Q5_K", "BF16", "Q3_K", "Q2_K", "Q4_0")


def packed(value: torch.Tensor, kind: str, seed: int) -> numpy.ndarray:
    if kind not in SCALES:
        return gguf.quantize(value.float().numpy(), Type[kind])
    elements, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    rows, columns = value.shape
    blocks = numpy.random.default_rng(seed).integers(
        0, 256, (rows * columns // elements, size), dtype=numpy.uint8)
    for at in SCALES[kind]:
        blocks[:, at:at + 2] = numpy.frombuffer(
            numpy.float16(1e-4).tobytes(), numpy.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path, tensors: dict[str, torch.Tensor],
          kind_of: Callable[[str, int], str]) -> dict[str, str]:
    """Matrices packed, as far as their rows are blocks; returns the types."""
    writer = gguf.GGUFWriter(path, "image")
    kinds = {}
    for at, (name, value) in enumerate(tensors.items()):
        kind = kind_of(name, at)
        if value.ndim != 2 or value.shape[1] % 32:
            kind = "F16" if at % 5 == 4 else "F32"
        elif value.shape[1] % gguf.GGML_QUANT_SIZES[Type[kind]][0]:
            kind = "Q8_0"
        kinds[name] = kind
        if kind in ("F32", "F16"):
            writer.add_tensor(name, value.float().numpy().astype(
                numpy.float32 if kind == "F32" else numpy.float16))
        else:
            writer.add_tensor(name, packed(value, kind, at),
                              raw_dtype=Type[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kinds
