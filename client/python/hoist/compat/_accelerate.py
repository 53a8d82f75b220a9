"""accelerate's cpu_offload, disk_offload, load_checkpoint_and_dispatch."""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

import torch
from torch import nn

from .._errors import InvalidArgument, Unimplemented
from ..nn import detach, load
from ..nn._hooks import attachment_of
from ..nn._budget import Budget
from ._again import attach_with
from ._diffusers import _where


def cpu_offload(model: nn.Module, execution_device: Any = None,
                offload_buffers: bool = False,
                state_dict: Mapping[str, torch.Tensor] | None = None,
                preload_module_classes: Sequence[str] | None = None, *,
                budget: Budget = None, **options: Any) -> nn.Module:
    """As accelerate's, by blocks instead of leaves; weights stay readable
    where accelerate leaves them on meta."""
    if state_dict is not None:
        raise Unimplemented("state_dict= is not taken: load it into the model, "
                            "or use hoist.load for weights in files")
    device = None if execution_device is None else _where(execution_device)
    attach_with(model, budget=budget, device=device, **options)
    return model


def disk_offload(model: nn.Module, offload_dir: str | os.PathLike[str],
                 execution_device: Any = None, offload_buffers: bool = False,
                 preload_module_classes: Sequence[str] | None = None, *,
                 budget: Budget = None, **options: Any) -> nn.Module:
    """As cpu_offload: what the host tier cannot hold, hoistd spills by itself
    to its own disk.spill_dir; nothing is written to offload_dir."""
    return cpu_offload(model, execution_device, offload_buffers,
                       budget=budget, **options)


def load_checkpoint_and_dispatch(
        model: nn.Module, checkpoint: str | os.PathLike[str],
        device_map: Any = None, max_memory: Mapping[Any, Any] | None = None,
        no_split_module_classes: Sequence[str] | None = None,
        offload_folder: str | os.PathLike[str] | None = None,
        offload_buffers: bool = False, dtype: Any = None,
        offload_state_dict: bool | None = None,
        skip_keys: str | Sequence[str] | None = None,
        preload_module_classes: Sequence[str] | None = None,
        force_hooks: bool = False, strict: bool = False,
        full_state_dict: bool = True, broadcast_from_rank0: bool = False, *,
        budget: Budget = None, **options: Any) -> nn.Module:
    """As accelerate's, for a model made under init_empty_weights and
    safetensors files. max_memory's GPUs are the budget; its "cpu" and "disk"
    are hoistd's own."""
    if budget is None and max_memory is not None:
        gpus = {device: amount for device, amount in max_memory.items()
                if device not in ("cpu", "disk")}
        budget = next(iter(gpus.values())) if len(gpus) == 1 else (
            gpus or None)
        if len(gpus) == 1:
            options.setdefault("device", next(iter(gpus)))
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise InvalidArgument(f"dtype={dtype!r} is none of torch's types")
        dtype = found
    keys = [skip_keys] if isinstance(skip_keys, str) else skip_keys
    return load(model, checkpoint, budget=budget, dtype=dtype,
                exclude_kwargs=tuple(keys or ()), **options)


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Undoes the above; a module that is not attached stays as it is."""
    if attachment_of(module) is not None:
        detach(module)
