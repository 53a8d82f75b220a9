"""Which weights are stored in a smaller type than they are computed in."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Callable, Iterable, Mapping, Union

import torch
from torch import nn

from ..._errors import InvalidArgument

# A regular expression, searched in the module's name; a class, matched with
# isinstance; or the module itself.
Pattern = Union[str, type, nn.Module]
Patterns = Union[Pattern, Iterable[Pattern]]

# diffusers' defaults (DEFAULT_SKIP_MODULES_PATTERN), and the meaning of its
# "auto" in transformers' models.
DEFAULT_SKIP: tuple[Union[str, type], ...] = (
    "pos_embed", "patch_embed", "norm", r"^proj_in$", r"^proj_out$",
    "embed", r"^lm_head$", nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.Embedding, nn.modules.batchnorm._NormBase)

STORAGE_TYPES = tuple(
    getattr(torch, name) for name in
    ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16")
    if hasattr(torch, name))


def as_patterns(option: str, given: Patterns) -> tuple[Pattern, ...]:
    """One pattern or several. A sequence of modules is the module itself.

    InvalidArgument: another type, or an invalid regular expression.
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


def converted_types(root: nn.Module, dtype: torch.dtype,
                    made: Mapping[str, torch.dtype]
                    ) -> Callable[[str], torch.dtype]:
    """By name, the type that from_pretrained(dtype=) of the model's library
    gives a floating weight. Modules of no library are converted as by
    `.to(dtype)`.

    made: the types in which the module made its weights.
    """
    keeps = _kept_in_float32(root, dtype)
    default = default_type(root, made) if is_of(root, "transformers") else None
    if default and getattr(root, "hf_quantizer", None) is not None:
        default = dtype  # Most of it may be quantised.

    def convert(name: str) -> torch.dtype:
        if keeps(name):
            return torch.float32
        # transformers' modules may insist on a type.
        insists = default is not None and made.get(name, default) != default
        return made[name] if insists else dtype

    return convert


def default_type(root: nn.Module, made: Mapping[str, torch.dtype]
                 ) -> torch.dtype | None:
    """The type of a model's parameters, except those with a fixed type."""
    types = Counter(made[name] for name, _ in root.named_parameters()
                    if name in made and made[name].is_floating_point)
    return max(types, key=types.__getitem__) if types else None


def is_of(root: nn.Module, library: str) -> bool:
    return any(cls.__module__.partition(".")[0] == library
               for cls in type(root).__mro__)


def _kept_in_float32(root: nn.Module,
                     dtype: torch.dtype) -> Callable[[str], bool]:
    """By name, the parameters that from_pretrained(dtype=) of the model's
    library keeps in float32 (T5's `wo`, Wan's norms)."""
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


def matching_modules(root: nn.Module,
                       patterns: Iterable[object]) -> set[nn.Module]:
    """The matching modules with all below them; never the root."""
    patterns = list(patterns)
    found: set[nn.Module] = set()
    for name, one in root.named_modules():
        if name and one not in found and matches(name, one, patterns):
            found.update(one.modules())
    return found


def may_be_cast(dtype: torch.dtype, storage: torch.dtype) -> bool:
    """True for larger floating types; integers and booleans stay."""
    return dtype.is_floating_point and dtype.itemsize > storage.itemsize
