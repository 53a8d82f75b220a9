"""Experts' kernels, made over weights that are processed already.

Most of vLLM's quantised methods process weights and make their kernel in one
step, and so cannot be told to leave out the former. A modular kernel is the same
few objects for all of them: it is made here, of a method's own configuration.
"""

from __future__ import annotations

import enum
import hashlib
from functools import partial
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import modular_kernel
from vllm.model_executor.layers.fused_moe.all2all_utils import (
    maybe_make_prepare_finalize)
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import (
    FusedMoEMethodBase)
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import (
    TRITON_BACKENDS, Mxfp4MoeBackend)

_MXFP8 = Mxfp4MoeBackend.FLASHINFER_TRTLLM_MXFP4_MXFP8
# They differ, and should.
_MADE = ("moe_kernel", "moe_quant_config", "training")


def why_not_made(method: Any) -> str | None:
    """Why hoist cannot make an expert layer's kernel. None: it can."""
    if getattr(method, "mxfp4_backend", None) in TRITON_BACKENDS:
        return ("its kernel swizzles weights into objects of its own; "
                "--moe-backend marlin leaves them plain tensors")
    experts = getattr(method, "experts_cls", None)
    if not isinstance(method, FusedMoEMethodBase) or experts is None:
        return "it is no method of fused experts with a modular kernel"
    if experts.is_monolithic():
        return "its kernel chooses the experts itself"
    if experts.activation_format() is not (
            modular_kernel.FusedMoEActivationFormat.Standard):
        return "its kernel takes batches of each expert's tokens"
    if experts.process_weights_after_loading is not (
            modular_kernel.FusedMoEExperts.process_weights_after_loading):
        return f"its kernel ({experts.__name__}) processes weights, too"
    if method.uses_meta_device:
        return "it quantises while it loads"
    return None


def takes_processed(method: Any) -> bool:
    """Whether vLLM itself finishes a layer whose weights are processed. Its
    method of MXFP4 declares that, and then does it for one kernel only."""
    return bool(method.supports_pre_processed_weights) and getattr(
        method, "mxfp4_backend", _MXFP8) is _MXFP8


def make_kernels(model: nn.Module) -> None:
    """From now on vLLM's finishing of the model makes these kernels, and
    processes no weights."""
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        if _is_made_here(method):
            method.supports_pre_processed_weights = True
            method.process_weights_after_loading = partial(_make, method)


def _is_made_here(method: Any) -> bool:
    return (isinstance(method, FusedMoEMethodBase)
            and not takes_processed(method) and why_not_made(method) is None)


def _make(method: Any, layer: Any) -> None:
    config = method.moe_quant_config = method.get_fused_moe_quant_config(layer)
    prepare = maybe_make_prepare_finalize(
        moe=method.moe, quant_config=config,
        routing_tables=layer._expert_routing_tables(),
        allow_new_interface=True, use_monolithic=False)
    method.moe_kernel = modular_kernel.FusedMoEKernel(
        prepare, method.experts_cls(moe_config=method.moe, quant_config=config))


def why_kernels_differ(processed: nn.Module, made: nn.Module) -> str | None:
    """Names a layer whose kernel hoist would make otherwise than vLLM has.

    processed: as vLLM has loaded it. made: the same model, with no weights.
    """
    modules = dict(made.named_modules())
    for name, layer in processed.named_modules():
        method = getattr(layer, "quant_method", None)
        if _is_made_here(method):
            why = _difference(layer, method, modules[name])
            if why is not None:
                return f"{name} ({type(method).__name__}): {why}"
    return None


def _difference(layer: Any, method: Any, untouched: Any) -> str | None:
    for what, before, after in (
            ("layer", untouched, layer),
            ("method", untouched.quant_method, method)):
        was, is_now = _attributes(before), _attributes(after)
        changed = sorted(one for one in was.keys() | is_now.keys()
                         if was.get(one) != is_now.get(one))
        if changed:
            return f"processing changes the {what}'s {', '.join(changed)}"
    theirs = method.moe_kernel
    _make(method, layer)
    names = {id(one): name for name, one in (*layer.named_parameters(),
                                             *layer.named_buffers())}
    if _picture(theirs, names, set()) != _picture(method.moe_kernel, names,
                                                  set()):
        return "vLLM makes its kernel in another way"
    return None


def _attributes(one: Any) -> dict[str, str]:
    return {name: plain(value) for name, value in vars(one).items()
            if name not in _MADE and not name.startswith("_")
            and not callable(value)}


def _picture(value: Any, names: dict[int, str], seen: set[int]) -> Any:
    """All that an object has, in words; of a layer's tensors their names."""
    if isinstance(value, torch.Tensor):
        return names.get(id(value)) or (
            tuple(value.shape), str(value.dtype), hashlib.sha256(
                value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                .numpy().tobytes()).hexdigest())
    if isinstance(value, (list, tuple)):
        return [_picture(one, names, seen) for one in value]
    if isinstance(value, dict):
        return sorted((repr(key), _picture(one, names, seen))
                      for key, one in value.items())
    if id(value) in seen or not hasattr(value, "__dict__") or isinstance(
            value, (type, enum.Enum)):
        return plain(value)
    seen.add(id(value))
    return plain(value), [(name, _picture(one, names, seen))
                  for name, one in sorted(vars(value).items())]


def plain(value: Any) -> str:
    """A value, or else its class: the same in all processes."""
    if value is None or isinstance(value, (bool, int, float, str, enum.Enum,
                                           torch.dtype)):
        return repr(value)
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
