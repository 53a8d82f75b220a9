"""diffusers.hooks.apply_group_offloading and apply_layerwise_casting."""

from __future__ import annotations

import enum
import logging
import os
from typing import TYPE_CHECKING, Any, Literal, Union

import torch
from torch import nn

from .._errors import InvalidArgument
from ..nn._api.attach import unwrap
from ..nn._api.options import (CastingOptions, CommonOptions, HandOverOptions,
                               Names, Where)
from ..nn._plan.budget import Budget
from ..nn._tree.casting import matches, may_be_cast
from ..nn._tree.grouping import Groups
from ._again import attach_with

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("hoist.compat")

# Or diffusers' own enumeration of these.
OffloadType = Union[Literal["block_level", "leaf_level"], enum.Enum]
# diffusers/hooks/layerwise_casting.py: the patterns for "auto".
DEFAULT_SKIP_MODULES_PATTERN = ("pos_embed", "patch_embed", "norm",
                                "^proj_in$", "^proj_out$")
# diffusers/hooks/_common.py: the only layers that diffusers casts.
_CAST_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d,
                nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear,
                nn.Embedding)


class GroupOffloadingOptions(CommonOptions, CastingOptions, HandOverOptions,
                             total=False):
    """Further options of hoist.attach."""


class LayerwiseCastingOptions(CommonOptions, HandOverOptions, total=False):
    groups: Groups
    device: Where
    exclude_kwargs: Names


def apply_group_offloading(
        module: nn.Module, onload_device: Where = None,
        offload_device: str | torch.device = "cpu",
        offload_type: OffloadType = "block_level",
        num_blocks_per_group: int | None = None, non_blocking: bool = False,
        use_stream: bool = False, record_stream: bool = False,
        low_cpu_mem_usage: bool = False,
        offload_to_disk_path: str | os.PathLike[str] | None = None,
        block_modules: Names | None = None,
        exclude_kwargs: Names | None = None, *, budget: Budget = None,
        **options: Unpack[GroupOffloadingOptions]) -> None:
    """As diffusers', with weights in hoistd; see hoist.attach for `budget` and
    further options. offload_to_disk_path has no effect: hoistd itself spills
    what exceeds the host tier (disk.spill_dir)."""
    module = unwrap(module)
    kind, count = check_offloading(offload_type, offload_device,
                                   num_blocks_per_group, offload_to_disk_path)
    groups = plain_groups(kind, count)
    if kind == "block_level" and block_modules:
        groups = _block_groups(module, block_modules, count)
    device = None if onload_device is None else _where(onload_device)
    attach_with(module, budget=budget, groups=groups, device=device,
                exclude_kwargs=exclude_kwargs or (), **options)


def check_offloading(
        offload_type: OffloadType, offload_device: str | torch.device,
        num_blocks_per_group: int | None,
        offload_to_disk_path: str | os.PathLike[str] | None
        ) -> tuple[str, int]:
    """The kind, and the number of blocks in a group."""
    kind = getattr(offload_type, "value", offload_type)
    if kind not in ("block_level", "leaf_level"):
        raise InvalidArgument(f'offload_type={offload_type!r} is neither '
                              '"block_level" nor "leaf_level"')
    if torch.device(offload_device).type not in ("cpu", "meta"):
        raise InvalidArgument(f"offload_device={offload_device}: weights that "
                              "are not staged are hoistd's, on the host")
    count = 1 if num_blocks_per_group is None else num_blocks_per_group
    if count < 1:
        raise InvalidArgument(f"num_blocks_per_group={num_blocks_per_group}: "
                              "a group has one block at least")
    if offload_to_disk_path is not None:
        log.info("offload_to_disk_path is not used; hoistd spills by itself")
    return kind, count


def plain_groups(kind: str, count: int) -> Groups:
    return ("block", count) if kind == "block_level" else "leaf"


def _where(device: Where) -> Where:
    """On a node without a GPU, hoistd's device is the CPU."""
    return device if torch.cuda.is_available() else None


def _block_groups(module: nn.Module, names: Names,
                  count: int) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in [names] if isinstance(names, str) else names:
        try:
            block = module.get_submodule(name)
        except AttributeError:
            raise InvalidArgument(f'block_modules names "{name}", which the '
                                  "module does not have") from None
        if isinstance(block, (nn.ModuleList, nn.Sequential)):
            rows = [f"{name}.{key}" for key, _ in block.named_children()]
        else:
            rows = [name]
        for at in range(0, len(rows), count):
            groups[rows[at]] = rows[at:at + count]
    return groups


def apply_layerwise_casting(
        module: nn.Module, storage_dtype: torch.dtype,
        compute_dtype: torch.dtype,
        skip_modules_pattern: str | tuple[str, ...] | None = "auto",
        skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
        non_blocking: bool = False, *, budget: Budget = None,
        **options: Unpack[LayerwiseCastingOptions]) -> None:
    """As diffusers': the same layers in the same type, cast on the device as
    they arrive; hoistd keeps the original weights."""
    module = unwrap(module)
    extra: dict[str, Any] = {} if budget is None else {"budget": budget}
    if storage_dtype == compute_dtype:
        # There is nothing to cast; the other options still apply.
        if extra or options:
            attach_with(module, **extra, **options)
        return
    if skip_modules_pattern == "auto":
        skip_modules_pattern = DEFAULT_SKIP_MODULES_PATTERN
    elif isinstance(skip_modules_pattern, str):
        skip_modules_pattern = (skip_modules_pattern,)
    skip = (*(skip_modules_pattern or ()), *(skip_modules_classes or ()))
    names = {one: name for name, one in module.named_modules()}
    # Without any skip option, diffusers casts the whole module.
    whole = skip_modules_pattern is None and skip_modules_classes is None
    layers = {one for one in names if whole or isinstance(one, _CAST_LAYERS)
              and not any(matches(names[up], up, skip)
                          for up in _above(module, names[one]))}
    before: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        _to_compute_type(layers, storage_dtype, compute_dtype, before)
        attach_with(module, storage_dtype=storage_dtype,
                    skip=[one for one in names if one not in layers],
                    **extra, **options)
    except BaseException:
        for parameter, data in before:
            parameter.data = data
        raise


def _above(root: nn.Module, name: str) -> list[nn.Module]:
    """The module of that name, and its ancestors: diffusers skips a subtree
    whose root matches."""
    parts = name.split(".") if name else []
    return [root.get_submodule(".".join(parts[:at]))
            for at in range(len(parts) + 1)]


def _to_compute_type(layers: set[nn.Module], storage: torch.dtype,
                     compute: torch.dtype,
                     before: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Converts weights that are not of the compute type to the values that the
    module will compute with, W.to(storage).to(compute). `before` receives each
    changed parameter and its old data."""
    for layer in layers:
        for parameter in layer.parameters(recurse=False):
            if parameter.dtype != compute and (
                    may_be_cast(parameter.dtype, storage)):
                data = parameter.data
                parameter.data = data.to(storage).to(compute)
                before.append((parameter, data))
