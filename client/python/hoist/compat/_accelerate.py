"""accelerate's cpu_offload, disk_offload, load_checkpoint_and_dispatch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping, Union

import torch
from torch import nn

from .._errors import InvalidArgument, Unimplemented
from ..checkpoint import Rename
from ..nn import detach, load
from ..nn._api.attach import unwrap
from ..nn._api.attachment import attachment_of
from ..nn._api.options import (CastingOptions, CommonOptions, HandOverOptions,
                               M, Names, Where)
from ..nn._plan.budget import Amount, Budget
from ..nn._tree.grouping import Groups
from ._again import attach_with
from ._diffusers import _where

if TYPE_CHECKING:
    from typing_extensions import Unpack

Path = Union[str, os.PathLike[str]]


class OffloadOptions(CommonOptions, CastingOptions, HandOverOptions,
                     total=False):
    groups: Groups
    exclude_kwargs: Names


class DispatchOptions(CommonOptions, CastingOptions, total=False):
    groups: Groups
    device: Where
    rename: Rename


def cpu_offload(model: M, execution_device: Where = None,
                offload_buffers: bool = False,
                state_dict: Mapping[str, torch.Tensor] | None = None,
                preload_module_classes: Names | None = None, *,
                budget: Budget = None,
                **options: Unpack[OffloadOptions]) -> M:
    """As accelerate's, but by blocks instead of leaves; weights stay readable
    where accelerate leaves them on meta."""
    if state_dict is not None:
        raise Unimplemented("state_dict= is not taken: load it into the model, "
                            "or use hoist.load for weights in files")
    device = None if execution_device is None else _where(execution_device)
    attach_with(model, budget=budget, device=device, **options)
    return model


def disk_offload(model: M, offload_dir: Path,
                 execution_device: Where = None, offload_buffers: bool = False,
                 preload_module_classes: Names | None = None, *,
                 budget: Budget = None,
                 **options: Unpack[OffloadOptions]) -> M:
    """As cpu_offload. hoistd itself spills what exceeds the host tier, to its
    own disk.spill_dir; nothing is written to offload_dir."""
    return cpu_offload(model, execution_device, offload_buffers,
                       budget=budget, **options)


def load_checkpoint_and_dispatch(
        model: M, checkpoint: Path,
        device_map: str | Mapping[str, Where] | None = None,
        max_memory: Mapping[Any, Amount] | None = None,
        no_split_module_classes: Names | None = None,
        offload_folder: Path | None = None, offload_buffers: bool = False,
        dtype: str | torch.dtype | None = None,
        offload_state_dict: bool | None = None, skip_keys: Names | None = None,
        preload_module_classes: Names | None = None,
        force_hooks: bool = False, strict: bool = False,
        full_state_dict: bool = True, broadcast_from_rank0: bool = False, *,
        budget: Budget = None, **options: Unpack[DispatchOptions]) -> M:
    """As accelerate's, for a model made under init_empty_weights and
    safetensors files. max_memory's GPUs are the budget; hoistd itself limits
    "cpu" and "disk". Strict or not, a weight that the files lack is an error,
    and tensors that the module lacks are left in the files."""
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
    return load(model, checkpoint, budget=budget, dtype=dtype,
                exclude_kwargs=skip_keys or (), **options)


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Undoes the above for the module and all modules in it; no effect on those
    that are not attached."""
    for one in unwrap(module).modules():
        found = attachment_of(one)
        if found is not None and found.root is one:
            detach(one)
