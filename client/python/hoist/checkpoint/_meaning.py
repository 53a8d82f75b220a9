"""The files' facts about a module's weights besides their bytes.

A quantised tensor's bytes are its value only with others that are stored beside
it: a scale, a zero point, a code book, an order of its rows. So an unused
tensor beside a used one is refused, whatever its name; so is a declaration in
or beside the files that they are quantised, unless the module has places for
quantised weights. A library's own converters use the scales, so computed
weights are not refused.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from typing import Any, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from .._errors import Unimplemented
from ._safetensors import FileTensor, Paths, read_metadata

INSTEAD = ("load the module as its library does (from_pretrained, say), and "
           "hoist.attach takes it")

# In names of tensors that a quantised tensor's value depends on.
_SIGN = re.compile(r"scale|zero|absmax|amax|quant|scb|g_idx|fp8|fp4",
                   re.IGNORECASE)
_QUANTISED = re.compile(r"quanti[sz]|compress|torchao", re.IGNORECASE)
_CONFIGS = ("quantization_config", "compression_config", "quantization")
# Of a batch norm that is not trained: no forward reads it.
_NO_MEANING = re.compile(r"(^|\.)num_batches_tracked$")
# As transformers: old buffers that modules make by themselves.
_MADE_AGAIN = r"rotary_emb\.inv_freq$|(^|\.)position_ids$"
_FLOATS = ("F16", "BF16", "F32", "F64", "C64")
_OWN_INTEGERS = (torch.bool, torch.int64)  # Of indices and masks.


@dataclasses.dataclass(frozen=True)
class Use:
    """A weight of the module, and its tensors in the files.

    dtype: the type in which the module made it."""

    name: str
    dtype: torch.dtype
    tensors: tuple[str, ...]


def refuse_declared(module: nn.Module, dtypes: Iterable[torch.dtype],
                    files: Sequence[pathlib.Path], path: Paths) -> None:
    """Unimplemented: the module's configuration, the files' metadata or a
    configuration beside them declares that the weights are quantised, and the
    module, whose weights have these types, has no place for those."""
    if _has_places(module, dtypes):
        return
    for where, said in _declarations(module, files, path):
        raise Unimplemented(
            f"{where} says that the weights are quantised ({said}), and the "
            "module has no place for quantised weights: hoist.load would take "
            f"their bytes for their values; {INSTEAD}")


def refuse_losses(module: nn.Module, uses: Sequence[Use],
                  headers: Mapping[str, FileTensor]) -> list[str]:
    """Names of the files' unused tensors, for a warning.

    Unimplemented: one of them changes the meaning of a used one."""
    taken = {tensor for use in uses for tensor in use.tensors}
    ignored = _ignored(module)
    own = {name for one in (module.named_parameters, module.named_buffers)
           for name, _ in one(remove_duplicate=False)}
    unused = [name for name in headers if name not in taken
              and name not in own  # Of a module that is left to the caller.
              and not _NO_MEANING.search(name)
              and not (ignored and ignored.search(name))]
    beside = _beside(module, uses, unused)
    if beside:
        name, one = next(iter(beside.items()))
        rest = len(beside) - 1
        raise Unimplemented(
            f'"{one}" is a weight of the module, and the files have "{name}" '
            "beside it, which the module has no place for"
            + f" (and {rest} more)" * bool(rest)
            + ": without that the weight's bytes are not its value; "
            + INSTEAD)
    signs = [name for name in unused
             if _SIGN.search(name.rpartition(".")[2])]
    # Those beside an unused weight are that one's.
    others = {name.rpartition(".")[0] for name in {*unused} - {*signs}}
    signs = [name for name in signs
             if name.rpartition(".")[0] not in others - {""}]
    for use in uses:
        narrow = [one for one in use.tensors
                  if headers[one].dtype not in _FLOATS]
        if (signs and narrow and use.dtype.is_floating_point
                and use.dtype.itemsize > 1):
            raise Unimplemented(
                f'"{narrow[0]}" is {headers[narrow[0]].dtype} in the files and '
                f'{use.dtype} in the module, and nobody takes "{signs[0]}", '
                f"which may be its scale; {INSTEAD}")
    return unused


def _beside(module: nn.Module, uses: Sequence[Use],
            unused: Sequence[str]) -> dict[str, str]:
    """The unused tensors that belong to a used one, with its name. Theirs
    continues its name, or is in or below its module, which is one without other
    used tensors below."""
    taken = {tensor: use for use in uses for tensor in use.tensors}
    leaves: dict[str, str] = {}
    above: set[str] = set()
    for tensor, use in taken.items():
        parent, _, last = tensor.rpartition(".")
        # Otherwise `rename` gave it, and its neighbours may be unrelated.
        if last == "weight":
            leaves[parent] = tensor
        elif last == use.name.rpartition(".")[2]:
            leaves.setdefault(parent, tensor)
        above.update(_ancestors(parent))
    found = {}
    for name in unused:
        one = _continued(name, taken)
        for parent in _ancestors(name) if one is None else ():
            if parent in leaves and parent not in above and (
                    parent or "." not in name):
                one = leaves[parent]
                if _makes(module, taken[one].name, name[len(parent):]):
                    one = None
                break
        if one is not None:
            found[name] = one
    return found


def _ancestors(name: str) -> Iterator[str]:
    """Of "a.b.c": "a.b", "a" and ""."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _continued(name: str, taken: Mapping[str, Use]) -> str | None:
    """The used tensor whose name this begins with: "w.absmax", "w_scale"."""
    for at, letter in enumerate(name):
        rest = name[at + 1:]
        if letter in "._" and name[:at] in taken and (
                letter == "." or rest == "bias" or (
                    "." not in rest and _SIGN.search(rest))):
            return name[:at]
    return None


def _makes(module: nn.Module, weight: str, rest: str) -> bool:
    """The weight's module makes a tensor of that name itself, and saves none:
    the files' one is from a version that did."""
    last = rest.removeprefix(".")
    owner: Any = module.get_submodule(weight.rpartition(".")[0])
    return not _SIGN.search(last) and isinstance(
        owner._buffers.get(last, vars(owner).get(last)), torch.Tensor)


def _ignored(module: nn.Module) -> re.Pattern[str] | None:
    """The names that the module's library ignores."""
    patterns = getattr(module, "_keys_to_ignore_on_load_unexpected", None)
    if not hasattr(module, "_keys_to_ignore_on_load_unexpected"):
        return None
    return re.compile("|".join(
        f"({one})" for one in [*(patterns or ()), _MADE_AGAIN]))


def _has_places(module: nn.Module, dtypes: Iterable[torch.dtype]) -> bool:
    """For quantised weights: its library has prepared it, or it holds them."""
    if getattr(module, "is_quantized", False) or (
            getattr(module, "hf_quantizer", None) is not None):
        return True
    return any(dtype.itemsize == 1 and dtype not in _OWN_INTEGERS
               or not (dtype.is_floating_point or dtype.is_complex
                       or dtype in _OWN_INTEGERS) for dtype in dtypes)


def _declarations(module: nn.Module, files: Sequence[pathlib.Path],
                  path: Paths) -> Iterator[tuple[str, str]]:
    """Declarations that the weights are quantised: their places and texts."""
    yield from configured(module, path)
    for file in files:
        for key, value in read_metadata(file).items():
            if _is_quantised(key, value):
                yield f"the metadata of {file.name}", f"{key}: {value[:80]}"


def configured(module: nn.Module, path: Paths) -> Iterator[tuple[str, str]]:
    """Those of configurations: a library's quantiser has a part in it."""
    said = _in_config(_as_dict(getattr(module, "config", None)))
    if said:
        yield "the module's configuration", said
    for folder in _folders(path):
        said = _in_config(_read_json(folder / "config.json"))
        if said:
            yield str(folder / "config.json"), said
        for other in sorted(folder.glob("*quant*.json")):
            # Quantisers': quantize_config.json, quanto_qmap.json.
            if _read_json(other):
                yield str(other), "by its name"


def _is_quantised(key: str, value: str) -> bool:
    """Of an entry of a file's metadata; torchao has one for each tensor, which
    names the whole that it is a part of."""
    nothing = ("", "null", "none", "false", "{}", "[]", "0")
    if _QUANTISED.search(key):
        return value.strip().lower() not in nothing
    try:
        said = json.loads(value)
    except ValueError:
        return False
    return isinstance(said, dict) and (
        said.get("_type", "Tensor") != "Tensor"
        or any(_QUANTISED.search(one) and said[one] for one in said))


def _in_config(config: Any) -> str:
    """A configuration's text on quantisation, also of a nested one."""
    if not isinstance(config, Mapping):
        return ""
    for key in _CONFIGS:
        said = config.get(key)
        if isinstance(said, Mapping) and said:
            method = said.get("quant_method", said.get("quant_algo"))
            return f"{key}: " + (str(getattr(method, "value", method))
                                 if method else ", ".join(map(str, said)))
    return next(filter(None, map(_in_config, config.values())), "")


def _as_dict(config: Any) -> Any:
    to_dict = getattr(config, "to_dict", None)
    if to_dict is None or isinstance(config, Mapping):
        return config
    return to_dict()


def config_of(path: Paths) -> Mapping[str, Any]:
    """The configuration beside the files; empty, if there is none."""
    found = (_read_json(folder / "config.json") for folder in _folders(path))
    return next((one for one in found if isinstance(one, Mapping)), {})


def _folders(path: Paths) -> list[pathlib.Path]:
    """The folders of the files, as the caller names them."""
    named = [pathlib.Path(one) for one in
             ([path] if isinstance(path, (str, os.PathLike)) else path)]
    return list(dict.fromkeys(one if one.is_dir() else one.parent
                              for one in named))


def _read_json(path: pathlib.Path) -> Any:
    """None: there is none, or it has another format."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
