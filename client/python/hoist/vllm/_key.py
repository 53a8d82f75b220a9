"""What decides how a vLLM engine's weights lie, and which bytes they have."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Sequence

import torch
import vllm.version
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed import (get_ep_group, get_pp_group,
                              get_tensor_model_parallel_rank,
                              get_tensor_model_parallel_world_size)

from ..checkpoint import identity


def key_of(model: nn.Module, files: Sequence[pathlib.Path],
           vllm_config: VllmConfig, model_config: ModelConfig,
           device: torch.device) -> dict[str, str]:
    """By field, in words that a person can compare. Engines whose keys are the
    same have the same weights, byte for byte."""
    pipeline = get_pp_group()
    parallel = vllm_config.parallel_config
    experts = get_ep_group() if parallel.enable_expert_parallel else None
    quantised = getattr(model_config.hf_config, "quantization_config", None)
    return {
        "architecture": f"{type(model).__module__}.{type(model).__qualname__}",
        "checkpoint": identity(files, ""),
        "config": _digest(model_config.hf_config.to_dict()),
        "cpu or gpu": _hardware(device),
        "dtype": str(model_config.dtype).removeprefix("torch."),
        "expert parallel": ("no" if experts is None else
                            f"{experts.rank_in_group} of "
                            f"{experts.world_size}"
                            + ", balanced" * bool(parallel.enable_eplb)),
        "kernels": f"linear {vllm_config.kernel_config.linear_backend}, "
                   f"experts {vllm_config.kernel_config.moe_backend}",
        "kv cache dtype": vllm_config.cache_config.cache_dtype,
        "library": f"vllm {vllm.version.__version__}",
        "pipeline parallel": f"{pipeline.rank_in_group} of "
                             f"{pipeline.world_size}",
        "quantisation": f"{model_config.quantization or 'none'}, "
                        f"{_digest(quantised)}",
        "tensor parallel": f"{get_tensor_model_parallel_rank()} of "
                           f"{get_tensor_model_parallel_world_size()}",
    }


def _digest(what: object) -> str:
    text = json.dumps(what, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _hardware(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, {major}.{minor}"
