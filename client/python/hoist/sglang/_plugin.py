"""SGLang's entry point in each of its processes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Callable

from .._errors import FailedPrecondition

if TYPE_CHECKING:
    from torch import nn

_log = logging.getLogger("hoist.sglang")
_FORMAT = "hoist"


def register() -> None:
    """Makes `--load-format hoist` valid. A server that does not ask for hoist
    must start whatever is wrong here, so missing parts of SGLang are only
    logged."""
    try:
        from sglang.srt.arg_groups.choices import (LOAD_FORMAT_CHOICES,
                                                   add_load_format_choices)
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as error:
        _log.warning("--load-format hoist is not there, as this SGLang lacks "
                     "what it builds on (0.5.23 is known to have it): %s",
                     error)
        return
    if _FORMAT in LOAD_FORMAT_CHOICES:
        return
    add_load_format_choices([_FORMAT])
    HookRegistry.register(
        "sglang.srt.configs.load_config.LoadConfig._verify_load_format",
        _verify, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.model_loader.loader.get_model_loader", _loader_of,
        HookType.AROUND)


def _verify(theirs: Callable[..., Any], config: Any) -> None:
    """Accepts hoist, which SGLang's own enum lacks."""
    if config.load_format != _FORMAT:
        theirs(config)


def _loader_of(theirs: Callable[..., Any], load_config: Any,
               *rest: Any, **named: Any) -> Any:
    if load_config.load_format != _FORMAT:
        return theirs(load_config, *rest, **named)
    from ._loader import HoistModelLoader
    return HoistModelLoader(load_config)


def check_parity(wanted: nn.Module, given: nn.Module) -> None:
    """FailedPrecondition: the two models' parameters and buffers differ in
    names, ties, shapes, strides, types or bytes; the text says in which.

    wanted: by SGLang's own loader. given: by hoist's.
    """
    from ..serving._compared import compare
    found = compare(wanted, given)
    if found.differences:
        raise FailedPrecondition(
            f"{len(found.differences)} tensors differ from the files': "
            + "; ".join(found.differences[:5]))
