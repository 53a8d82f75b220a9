"""The key of all that decides a vLLM engine's weights, layout and bytes."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any, Sequence

import torch
import vllm.envs
import vllm.version
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed import (get_ep_group, get_pp_group,
                              get_tensor_model_parallel_rank,
                              get_tensor_model_parallel_world_size)

from ..checkpoint import identity
from ..serving._recipes import held_by
from ._kernels import plain
from ._processing import methods_of


# A method keeps the largest CUDA graph's batch. It affects no weights.
_OF_GRAPHS = ("max_capture_size",)


def key_of(model: nn.Module, files: Sequence[pathlib.Path],
           vllm_config: VllmConfig, model_config: ModelConfig,
           device: torch.device) -> dict[str, str]:
    """By field, as text that a person can compare. Engines with equal keys have
    the same weights, byte for byte."""
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
                            f"{experts.world_size}"),
        "experts": experts_of(model, parallel.eplb_config
                              .num_redundant_experts),
        "kernels": f"linear {vllm_config.kernel_config.linear_backend}, "
                   f"experts {vllm_config.kernel_config.moe_backend}, "
                   f"{_digest(kernels_of(model))}",
        "kv cache dtype": vllm_config.cache_config.cache_dtype,
        "library": f"vllm {vllm.version.__version__}",
        "parameters": parameters_of(model),
        "pipeline parallel": f"{pipeline.rank_in_group} of "
                             f"{pipeline.world_size}",
        "quantisation": f"{model_config.quantization or 'none'}, "
                        f"{_digest(quantised)}, "
                        f"{_digest(model_config.quantization_config)}",
        "tensor parallel": f"{get_tensor_model_parallel_rank()} of "
                           f"{get_tensor_model_parallel_world_size()}",
    }


def environment() -> str:
    """vLLM's variables that affect how weights are processed. There is no list
    of those: so all compile factors, except an engine's number."""
    said = {**vllm.envs.compile_factors(),
            **{name: value() for name, value in
               vllm.envs.environment_variables.items() if "PREPACK" in name}}
    return _digest({name: value for name, value in said.items()
                    if not name.startswith("VLLM_DP_")})


def experts_of(model: nn.Module, redundant: int) -> str:
    """The experts' distribution: from the expert layers, and the number of
    redundant experts."""
    found = set()
    for module in model.modules():
        of = getattr(getattr(module, "moe_config", None),
                     "moe_parallel_config", None)
        if of is not None:
            found.add(f"{of.tp_rank} of {of.tp_size}, {of.ep_rank} of "
                      f"{of.ep_size} " + str(getattr(
                          module, "expert_placement_strategy", "")))
    return "; ".join([*sorted(found), f"{redundant} redundant"]
                     ) if found else "none"


def kernels_of(model: nn.Module) -> list[str]:
    """The layers' own choices, for example by installed packages: for each kind
    of layer the method, and its attributes."""
    return sorted({repr((type(method).__qualname__, sorted(
        (name, plain(value)) for name, value in vars(method).items()
        if name not in _OF_GRAPHS)))
                   for _, method in methods_of(model)})


def parameters_of(model: nn.Module) -> str:
    """The parameters as they are made, before they are processed."""
    return _digest(sorted(
        (held.names, held.is_parameter, tuple(held.tensor.shape),
         str(held.tensor.dtype)) for held in held_by(model)))


def _digest(what: object) -> str:
    text = json.dumps(what, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _hardware(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, {major}.{minor}"
