"""DiffusionPipeline's enable_group_offload and enable_model_cpu_offload."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, cast

import torch
from torch import nn

from .._errors import InvalidArgument
from ..nn._api.load_pipeline import import_diffusers
from ..nn._api.options import AttachOptions, Names, Where
from ..nn._api.pipeline import attach_pipeline_as
from ..nn._api.replaced import Put, put, take_out
from ..nn._plan.budget import Budget, find_device
from ..nn._store.link import default_session
from ._accelerate import OffloadOptions
from ._diffusers import (OffloadType, _where, apply_group_offloading,
                         check_offloading, plain_groups)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def enable_group_offload(
        pipe: Any, onload_device: Where = None,
        offload_device: str | torch.device = "cpu",
        offload_type: OffloadType = "block_level",
        num_blocks_per_group: int | None = None, non_blocking: bool = False,
        use_stream: bool = False, record_stream: bool = False,
        low_cpu_mem_usage: bool = False,
        offload_to_disk_path: str | os.PathLike[str] | None = None,
        exclude_modules: Names | None = None, *, budget: Budget = None,
        **options: Unpack[OffloadOptions]) -> None:
    """As pipe.enable_group_offload(...) of diffusers, with one `budget` for all
    components; see hoist.attach_pipeline for further options."""
    kind, count = check_offloading(offload_type, offload_device,
                                   num_blocks_per_group, offload_to_disk_path)
    options.setdefault("groups", plain_groups(kind, count))
    _attach(pipe, onload_device, exclude_modules or (), budget, options)


def enable_model_cpu_offload(
        pipe: Any, gpu_id: int | None = None, device: Where = None, *,
        budget: Budget = None, **options: Unpack[OffloadOptions]) -> None:
    """As pipe.enable_model_cpu_offload(...) of diffusers: a component that fits
    the budget is on the device while it runs; a larger one is streamed. See
    hoist.attach_pipeline for further options."""
    if gpu_id is not None:
        if device is not None and torch.device(device).index is not None:
            raise InvalidArgument(f"gpu_id={gpu_id} and device={device}: say "
                                  "it once")
        device = torch.device(
            "cuda" if device is None else torch.device(device).type, gpu_id)
    _attach(pipe, device, getattr(pipe, "_exclude_from_cpu_offload", ()),
            budget, options)


def _attach(pipe: Any, device: Where, without: Names, budget: Budget,
            given: OffloadOptions) -> None:
    """Moves the modules named in `without` to the device."""
    names = [without] if isinstance(without, str) else list(without)
    options = cast(AttachOptions, dict(given))
    if device is not None:
        options["device"] = _where(device)
    modules = {name: one for name, one in pipe.components.items()
               if isinstance(one, nn.Module)}
    made = attach_pipeline_as(pipe, budget, [
        name for name, one in modules.items() if name not in names
        and _has_weights(one)], {}, options)
    moved: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
    try:
        for name in names:
            if name in modules:
                session = options.get("session") or default_session()
                to = find_device(session, options.get("device"))[1]
                moved += _places(modules[name])
                modules[name].to(to)
    except BaseException:
        for holder, key, value, data in moved:
            if value.device != data.device:
                value.data = data
            holder[key] = value
        made.undo()
        raise
    made.commit()


def _places(module: nn.Module
            ) -> list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]]:
    """The module's tensors, their owners and keys, and their data."""
    return [(holder, key, value, value.data) for one in module.modules()
            for holder in (cast("dict[str, Any]", one._parameters),
                           cast("dict[str, Any]", one._buffers))
            for key, value in holder.items() if value is not None]


def _has_weights(module: nn.Module) -> bool:
    tensors: Iterable[torch.Tensor] = (*module.parameters(), *module.buffers())
    return any(one.numel() for one in tensors)


class InDiffusers:
    """The replacements of use_in_diffusers, until `undo`."""

    def __init__(self) -> None:
        self._active = True
        self._put: list[Put] = []

    def __enter__(self) -> InDiffusers:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def put(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        """Replaces the owner's function with `ours`."""
        def make(before: Any) -> Any:
            @functools.wraps(before)
            def function(*args: Any, **kwargs: Any) -> Any:
                # Another wrapper may hold this function after `undo`.
                return (ours if self._active else before)(*args, **kwargs)

            return function

        self._put.append(put(owner, name, make))

    def undo(self) -> None:
        """Restores diffusers' own functions."""
        self._active = False
        while self._put:
            take_out(self._put.pop())


def use_in_diffusers(budget: Budget = None,
                     **options: Unpack[AttachOptions]) -> InDiffusers:
    """Replaces pipe.enable_group_offload() and enable_model_cpu_offload(),
    model.enable_group_offload() and diffusers.hooks.apply_group_offloading()
    with hoist's, with these options and this budget, per pipeline or module.
    For a `with` block, or until `undo` of the result.

    MissingExtra: diffusers is not installed.
    """
    hooks = import_diffusers("diffusers.hooks", "to use hoist in")
    pipelines: Any = import_diffusers(
        "diffusers.pipelines.pipeline_utils",
        "to use hoist in").DiffusionPipeline
    extra: dict[str, Any] = {"budget": budget, **options}
    found = InDiffusers()
    found.put(hooks, "apply_group_offloading",
              functools.partial(apply_group_offloading, **extra))
    found.put(pipelines, "enable_group_offload",
              lambda pipe, *args, **kwargs: enable_group_offload(
                  pipe, *args, **{**extra, **kwargs}))
    found.put(pipelines, "enable_model_cpu_offload",
              lambda pipe, *args, **kwargs: enable_model_cpu_offload(
                  pipe, *args, **{**extra, **kwargs}))
    return found
