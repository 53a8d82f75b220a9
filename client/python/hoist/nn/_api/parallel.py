"""torch's data-parallel wrappers around attached modules.

Every process has the weights from its own hoistd already, read-only: there is
nothing to send and nothing to shard. DistributedDataParallel and fully_shard
ignore them, and manage all others (adapters, buffers that forwards write to);
wrappers that must own all weights are refused before they change
anything.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import Any, Callable, Iterator

import torch
from torch import nn

from ..._errors import FailedPrecondition
from .attachment import attachment_of, attachments_in
from .replaced import replace

_IGNORED = "_ddp_params_and_buffers_to_ignore"  # torch's wrapper reads it.
_FSDP = "torch.distributed.fsdp"


def replace_wrappers() -> None:
    """Those of libraries that are imported already, and torch's own in a
    process that is one of several."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        with contextlib.suppress(ImportError):
            importlib.import_module(_FSDP)
    replace(_class("torch.nn.parallel.distributed", "DistributedDataParallel"),
            "__init__", _left_alone)
    for name in "_fsdp_init", "_fully_shard":
        replace(sys.modules.get(f"{_FSDP}._fully_shard.{name}"),
                "_get_managed_states", _not_managed)
    for module, cls in (
            (f"{_FSDP}.fully_sharded_data_parallel",
             "FullyShardedDataParallel"),
            ("deepspeed.runtime.engine", "DeepSpeedEngine")):
        replace(_class(module, cls), "__init__", _refused)


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _shared_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's own weights whose bytes are hoist's."""
    by = attachment_of(module)
    for holder in (module._parameters, module._buffers) if by else ():
        for key, value in holder.items():
            if by is not None and value is not None and by.shares(module, key):
                yield key, value


def _left_alone(before: Any) -> Any:
    """DistributedDataParallel's __init__."""

    @functools.wraps(before)
    def init(wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        with (_ignoring(module) if isinstance(module, nn.Module)
              else contextlib.nullcontext()):
            before(wrapper, module, *args, **kwargs)

    return init


@contextlib.contextmanager
def _ignoring(module: nn.Module) -> Iterator[None]:
    """Like _set_params_and_buffers_to_ignore_for_model, during the wrapper's
    look-up: it keeps the names, while the weights' objects will change."""
    names = {name for prefix, one in module.named_modules(
                 remove_duplicate=False)
             for key, _ in _shared_of(one)
             # It looks up the root's own in both forms.
             for name in (f"{prefix}.{key}", f"{prefix}.{key}".lstrip("."))}
    if not names:
        yield
        return
    own = vars(module).get(_IGNORED)
    vars(module)[_IGNORED] = names | set(getattr(module, _IGNORED, ()))
    try:
        yield
    finally:
        del vars(module)[_IGNORED]
        if own is not None:
            vars(module)[_IGNORED] = own


def _not_managed(before: Any) -> Any:
    """fully_shard's list of tensors to shard and move, without hoist's."""

    @functools.wraps(before)
    def states(modules: Any, *args: Any, **kwargs: Any) -> Any:
        params, buffers = before(modules, *args, **kwargs)
        shared = {id(value) for module in modules
                  for _, value in _shared_of(module)}
        return tuple([one for one in found if id(one) not in shared]
                     for found in (params, buffers))

    return states


def _refused(before: Any) -> Callable[..., None]:
    @functools.wraps(before)
    def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
        for one in (*args, *kwargs.values()):
            if isinstance(one, nn.Module) and any(attachments_in(one)):
                raise FailedPrecondition(
                    f"{type(wrapper).__name__} takes hold of all weights of a "
                    f"{type(one).__name__}, and hoist stages some of them; "
                    "DistributedDataParallel and fully_shard leave those "
                    "alone, or hoist.detach(module) first")
        before(wrapper, *args, **kwargs)

    return init
