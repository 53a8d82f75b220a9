"""Which weights are stored in a smaller type than they compute in."""

from __future__ import annotations

import re
from typing import Any, Callable, Iterable, Union

import torch
from torch import nn

from .._errors import InvalidArgument

# A regular expression, searched for in the module's name; a class, which
# matches with isinstance; or the module itself.
Pattern = Union[str, type, nn.Module]
Patterns = Union[Pattern, Iterable[Pattern]]

# diffusers' own defaults (DEFAULT_SKIP_MODULES_PATTERN), and what its "auto"
# stands for in transformers' models.
DEFAULT_SKIP: tuple[Union[str, type], ...] = (
    "pos_embed", "patch_embed", "norm", r"^proj_in$", r"^proj_out$",
    "embed", r"^lm_head$", nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.Embedding, nn.modules.batchnorm._NormBase)

STORAGE_TYPES = tuple(
    getattr(torch, name) for name in
    ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
    if hasattr(torch, name))


def as_patterns(option: str, given: Patterns) -> tuple[Pattern, ...]:
    """One pattern or several. A sequence of modules is one: itself.

    InvalidArgument: something else, or no regular expression.
    """
    if isinstance(given, (str, type, nn.Module)):
        given = (given,)
    elif not isinstance(given, Iterable):
        raise InvalidArgument(f"{option}={given!r}: patterns of names, classes "
                              "or modules")
    patterns = tuple(given)
    for pattern in patterns:
        if not isinstance(pattern, (str, type, nn.Module)):
            raise InvalidArgument(f"{option} holds {pattern!r}: neither a "
                                  "pattern of names, a class nor a module")
        if isinstance(pattern, str):
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidArgument(f"{option} holds {pattern!r}, which is "
                                      f"no regular expression: {error}"
                                      ) from None
    return patterns


def kept_in_float32(root: nn.Module,
                    dtype: torch.dtype) -> Callable[[str], bool]:
    """By their names, the parameters that from_pretrained(dtype=) of the model's
    library makes float32 instead (T5's `wo`, Wan's norms)."""
    model: Any = root
    plan = getattr(model, "_get_dtype_plan", None)  # transformers 5.
    if plan is not None:
        patterns = [re.compile(name.replace("*", ".*")) for name in plan(dtype)]
        return lambda name: any(one.search(name) for one in patterns)
    names = getattr(model, "_keep_in_fp32_modules", None) or ()
    parts = {names} if isinstance(names, str) else set(names)
    if hasattr(model, "_keep_in_fp32_modules_strict"):  # transformers 4.
        if dtype != torch.float16:
            parts = set()
        if dtype in (torch.float16, torch.bfloat16):
            parts |= set(model._keep_in_fp32_modules_strict or ())
    return lambda name: not parts.isdisjoint(name.split("."))


def converted_kinds(root: nn.Module) -> set[str]:
    """Of weights in files, what from_pretrained(dtype=) of the model's library
    converts. diffusers (0.42: load_model_dict_into_meta) converts all that
    floats, transformers what its modules make in torch's default type."""
    of_diffusers = any(cls.__module__.partition(".")[0] == "diffusers"
                       for cls in type(root).__mro__)
    return {"parameter", "buffer"} if of_diffusers else {"parameter"}


def check_storage_type(dtype: torch.dtype) -> None:
    if dtype not in STORAGE_TYPES:
        raise InvalidArgument(
            f"storage_dtype={dtype} is none of "
            + ", ".join(str(known) for known in STORAGE_TYPES))


def matches(name: str, module: nn.Module, patterns: Iterable[object]) -> bool:
    for pattern in patterns:
        if isinstance(pattern, str):
            if re.search(pattern, name):
                return True
        elif isinstance(pattern, type):
            if isinstance(module, pattern):
                return True
        elif pattern is module:
            return True
    return False


def modules_that_match(root: nn.Module,
                       patterns: Iterable[object]) -> set[nn.Module]:
    """Those that match, and all below them; never the root."""
    patterns = list(patterns)
    found: set[nn.Module] = set()
    for name, one in root.named_modules():
        if name and one not in found and matches(name, one, patterns):
            found.update(one.modules())
    return found


def may_be_cast(dtype: torch.dtype, storage: torch.dtype) -> bool:
    """Floating types that are larger; integers and booleans stay."""
    return dtype.is_floating_point and dtype.itemsize > storage.itemsize
