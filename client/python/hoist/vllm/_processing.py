"""How vLLM's layers process their loaded weights."""

from __future__ import annotations

import functools
from typing import Any, Iterator

import torch
from torch import nn
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import (
    FusedMoEMethodBase)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod)
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import (
    QuantizeMethodBase)
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod)

from .._errors import Unimplemented
from ._kernels import make_kernels, takes_processed, why_not_made

# For unquantised experts: kernels that take them in the files' layout, as
# those of "in_place" on CPUs do.
_PLAIN_EXPERTS = ("TRITON", "BATCHED_TRITON")


def why_not_shared(model: nn.Module, balanced: bool) -> str | None:
    """Names the layers that cannot be told that their weights are processed
    already; vLLM declares that for each method, and hoist makes some experts'
    kernels itself. None: all can.

    balanced: vLLM moves experts between engines at run time.
    """
    if balanced:
        return ("its experts are moved while it runs (--enable-eplb), and "
                "hoistd's memory is not written to")
    found = [f"{name or 'the model'} ({type(method).__name__}{why})"
             for name, method in methods_of(model)
             if (why := _why_not(method)) is not None]
    if not found:
        return None
    return (f"{len(found)} layers process their weights in a way that vLLM "
            f"does not let others share: {', '.join(found[:3])}")


def _why_not(method: Any) -> str | None:
    """What to say behind the method's name."""
    if takes_processed(method):
        return None
    if not isinstance(method, FusedMoEMethodBase):
        return ""
    why = why_not_made(method)
    return None if why is None else f": {why}"


def let_finish(model: nn.Module) -> None:
    """For a model whose weights are processed: vLLM may finish it now. Methods
    that could not be told so are given a way."""
    make_kernels(model)
    for _, method in methods_of(model):
        if isinstance(method, BaseKVCacheMethod) and (
                type(method).process_weights_after_loading
                is not BaseKVCacheMethod.process_weights_after_loading):
            method.process_weights_after_loading = functools.partial(
                _process_scales, method)


def _process_scales(method: Any, layer: Any) -> None:
    """Of a KV cache: compressed-tensors' method inherits the word that it takes
    processed ones, and then looks for what it had made them of."""
    for one in "qkv":
        scale = getattr(layer, f"_{one}_scale")
        setattr(layer, f"{one}_scale", nn.Parameter(
            scale.clone(), requires_grad=False))
        setattr(layer, f"{one}_zero_point", nn.Parameter(
            torch.zeros_like(scale), requires_grad=False))
    type(method).process_weights_after_loading(method, layer)


def why_processed(model: nn.Module) -> str | None:
    """A layer whose processed weights differ from the files'."""
    if hasattr(model, "process_weights_after_loading"):
        return f"{type(model).__name__} processes weights as a whole"
    for name, method in methods_of(model):
        if not _leaves_alone(method):
            return f"{name or 'the model'} ({type(method).__name__})"
    return None


def methods_of(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The methods of layers with weights, by name."""
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            yield name, method


def _leaves_alone(method: Any) -> bool:
    if type(method) in (UnquantizedLinearMethod, UnquantizedEmbeddingMethod):
        return True
    return type(method) is UnquantizedFusedMoEMethod and (
        method.unquantized_backend.name in _PLAIN_EXPERTS
        or getattr(method.experts_cls, "reads_files_layout", False))


def refuse_early_readers(model: nn.Module) -> None:
    """Unimplemented: a layer computes tensors from its weights when they are
    bound, before a plan brings them; names it."""
    for name, module in model.named_modules():
        if isinstance(module, MLAAttention):
            raise Unimplemented(
                f"{name} ({type(module).__name__}) reads weights before the "
                "first pass, when a budget has not brought them; start the "
                "engine without one")
