"""Answers of attached modules to libraries.

transformers, diffusers and accelerate find out where a module computes, and
whether something offloads it, from parameters and hooks of their own. While any
module is attached, those few functions know of hoist too; the last detach
restores them.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import types
import weakref
from typing import Any, Callable, Iterator

import torch
from torch import nn

from ..._errors import FailedPrecondition
from .._tensors.resident import ResidentParameter, ResidentTensor
from .attachment import Attachment, attachment_of, attachments_in
from .parallel import replace_wrappers
from .replaced import replace, restore

_attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_hiding = threading.local()  # .depth: above 0, hoist is hidden from diffusers.


def know(root: nn.Module) -> None:
    """The module is attached."""
    by = attachment_of(root)
    if by is None:
        return
    _attached.add(root)
    for module in root.modules():
        cls = next((cls for cls in type(module).__mro__
                    if isinstance(vars(cls).get("device"), property)), None)
        # Excluded or without weights: it stays where its owner put it.
        if cls is not None and _attached_by(module) is by:
            vars(module)["_hoist_device"] = by.parts[0].torch_device
            replace(cls, "device", _device)
    # transformers' and diffusers' models each have one of their own.
    for cls in type(root).__mro__:
        replace(cls, "get_memory_footprint", _footprint)
    _replace_accelerates()
    _replace_diffusers()
    replace_wrappers()
    _replace_pefts(root)
    # make_fx takes these for parameters; it compares the exact type.
    replace(_library("torch.fx.experimental.proxy_tensor"), "HANDLED_TYPES",
            lambda before: (*before, ResidentParameter, ResidentTensor))


def forget(root: nn.Module) -> None:
    """The module is detached."""
    _attached.discard(root)
    for module in root.modules():
        vars(module).pop("_hoist_device", None)
    if not _attached:
        restore()


def _attached_by(module: nn.Module) -> Attachment | None:
    """The first attachment found in it and below."""
    return next((by for by in map(attachment_of, module.modules())
                 if by is not None), None)


def _device(before: property) -> property:
    """For a class that asks its parameters: the computing device."""

    def device(module: Any) -> Any:
        found = getattr(module, "_hoist_device", None)
        return before.__get__(module) if found is None else found

    return property(device, before.fset, before.fdel, before.__doc__)


def _footprint(before: Any) -> Any:
    """A model's size: in stored types, if a forward casts it."""

    @functools.wraps(before)
    def weigh(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        modules = {*module.modules()}
        cast = {id(part.stored): part.stored.meta.numel() * (
                    part.stored.meta.dtype.itemsize -
                    group.spec.storage[part.stored.name].itemsize)
                for by in attachments_in(module) for group in by.groups
                for weight in group.spec.weights
                if any(place.module in modules for place in weight.places)
                for part in weight.parts
                if part.stored.name in group.spec.storage}
        return before(module, *args, **kwargs) - sum(cast.values())

    return weigh


def _library(name: str) -> types.ModuleType | None:
    """A Python module, if it is imported already."""
    return sys.modules.get(name)


def _class(module: str, name: str) -> Any:
    return getattr(_library(module), name, None)


def _refuse_if_attached(module: Any, what: str) -> None:
    if isinstance(module, nn.Module) and _attached_by(module) is not None:
        raise FailedPrecondition(
            f"{what}: hoist stages the weights of this "
            f"{type(module).__name__}; hoist.detach it first, or use "
            "hoist.compat in that call's place")


def _refuse_of_pipeline(pipe: Any, what: str) -> None:
    for module in pipe.components.values():
        _refuse_if_attached(module, what)


def _refusing(what: str, refuse: Callable[[Any, str], None]
              ) -> Callable[[Any], Any]:
    """A function's replacement that refuses its first argument."""

    def make(before: Any) -> Any:
        @functools.wraps(before)
        def function(one: Any, *args: Any, **kwargs: Any) -> Any:
            refuse(one, what)
            return before(one, *args, **kwargs)

        return function

    return make


# accelerate.


def _replace_accelerates() -> None:
    """All of its offloading adds hooks by one function."""
    for name in "accelerate.hooks", "accelerate.big_modeling":
        replace(_library(name), "add_hook_to_module",
                _refusing("accelerate's hooks", _refuse_if_attached))


# peft.


def _replace_pefts(root: nn.Module) -> None:
    layers = _class("peft.tuners.tuners_utils", "BaseTunerLayer")
    for cls in {cls for module in root.modules() if layers is not None
                and isinstance(module, layers) for cls in type(module).__mro__}:
        replace(cls, "unmerge", _guard_unmerge)


def _guard_unmerge(before: Any) -> Any:
    """peft marks adapters as unmerged before it writes to weights; and it does
    so in a forward, where a write is not seen."""

    @functools.wraps(before)
    def unmerge(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if layer.merged_adapters:
            _refuse_if_attached(layer.get_base_layer(),
                                "unmerging writes to weights")
        return before(layer, *args, **kwargs)

    return unmerge


# diffusers.


class _Config:
    """The configuration of diffusers' hook of an offloaded module."""

    def __init__(self, device: torch.device) -> None:
        self.onload_device = device


class _OffloadHook:
    def __init__(self, device: torch.device) -> None:
        self.config = _Config(device)


def _replace_diffusers() -> None:
    offloading = _library("diffusers.hooks.group_offloading")
    replace(offloading, "_get_top_level_group_offload_hook", _find_hook)
    replace(offloading, "_apply_group_offloading", _apply_again)
    replace(_library("diffusers.hooks.layerwise_casting"),
            "_apply_layerwise_casting",
            _refusing("diffusers' layerwise casting", _refuse_if_attached))
    models = _class("diffusers.models.modeling_utils", "ModelMixin")
    for name in "to", "cuda":
        replace(models, name, functools.partial(_plain, name))
    pipelines = _class("diffusers.pipelines.pipeline_utils",
                       "DiffusionPipeline")
    replace(pipelines, "to", _pipeline_to)
    for name in ("enable_group_offload", "enable_model_cpu_offload",
                 "enable_sequential_cpu_offload"):
        replace(pipelines, name, _refusing(f"diffusers' {name}",
                                           _refuse_of_pipeline))
    for module, mixin, refuse in (
            ("diffusers.loaders.peft", "PeftAdapterMixin",
             _refuse_if_attached),
            ("diffusers.loaders.lora_base", "LoraBaseMixin",
             _refuse_of_pipeline)):
        for name in "fuse_lora", "unfuse_lora":
            replace(_class(module, mixin), name, _refusing(
                f"{name} writes to weights", refuse))


def _find_hook(before: Any) -> Any:
    """For diffusers' checks whether a module is offloaded, and where to."""

    @functools.wraps(before)
    def find(module: nn.Module) -> Any:
        found = before(module)
        if found is None and not getattr(_hiding, "depth", 0):
            by = _attached_by(module)
            if by is not None:
                return _OffloadHook(by.parts[0].torch_device)
        return found

    return find


def _apply_again(before: Any) -> Any:
    """Replaces the function that applies group offloading again after adapters
    came or went; hoist handles those by itself."""

    @functools.wraps(before)
    def apply(module: nn.Module, config: Any) -> Any:
        if not isinstance(config, _Config):
            _refuse_if_attached(module, "diffusers' group offloading")
            return before(module, config)
        return None

    return apply


def _plain(name: str, before: Any) -> Any:
    """A model's conversion: diffusers skips offloaded modules, while hoist
    moves the worker's own weights, and refuses impossible conversions."""

    @functools.wraps(before)
    def convert(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _attached_by(module) is None:
            return before(module, *args, **kwargs)
        return getattr(nn.Module, name)(module, *args, **kwargs)

    return convert


def _pipeline_to(before: Any) -> Any:
    """Refuses before anything is moved, or moves all unattached modules."""

    @functools.wraps(before)
    def to(pipe: Any, *args: Any, **kwargs: Any) -> Any:
        asked = [*args, kwargs.get("dtype"), kwargs.get("device")]
        dtypes = [one for one in asked if isinstance(one, torch.dtype)]
        devices = [torch.device(one) for one in asked
                   if isinstance(one, (str, int, torch.device))]
        found = {id(by): by for module in pipe.components.values()
                 if isinstance(module, nn.Module)
                 for by in attachments_in(module)}
        for by in found.values():
            _check_conversion(by, dtypes, devices)
        with _hidden():
            return before(pipe, *args, **kwargs)

    return to


@contextlib.contextmanager
def _hidden() -> Iterator[None]:
    """diffusers calls modules' own conversions, as for any module."""
    _hiding.depth = getattr(_hiding, "depth", 0) + 1
    try:
        yield
    finally:
        _hiding.depth -= 1


def _check_conversion(by: Attachment, dtypes: list[torch.dtype],
                      devices: list[torch.device]) -> None:
    here = by.parts[0].torch_device
    for device in devices:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device()
                                  if torch.cuda.is_available() else 0)
        if device != here:
            raise FailedPrecondition(
                f"{by.model.name} lives in hoist, which computes on {here}, "
                f"not on {device}; hoist.detach it first, or attach it with "
                "device=")
    for module, name in ((place.module, place.key) for group in by.groups
                         for weight in group.spec.weights
                         for place in weight.places
                         if place.module is not None):
        own = module._parameters.get(name)
        weight = module._buffers.get(name) if own is None else own
        if weight is None or not weight.is_floating_point():
            continue
        for dtype in dtypes:
            if weight.dtype != dtype:
                raise FailedPrecondition(
                    f"{by.model.name} lives in hoist, where \"{name}\" of a "
                    f"{type(module).__name__} is of {weight.dtype}, not of "
                    f"{dtype}; hoist.detach it first, or load it in that type")
