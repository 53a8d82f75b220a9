"""Which of the files' tensors a module's weights are, or are made of."""

from __future__ import annotations

from typing import Callable, Iterator, Mapping, Sequence, Union

import torch
from torch import nn

from .. import _dtypes
from .._errors import InvalidArgument, NotFound, Unimplemented
from .._registration import Joined
from ._checkpoint import library_sources
from ._inventory import Stored, Weight
from ._layout import GroupSpec
from ._pieces import Source, concatenate, reshape, whole
from ._safetensors import FileTensor

Rename = Union[Mapping[str, str],
               Callable[[str], Union[str, Sequence[str]]], None]


def match_weights(module: nn.Module, specs: list[GroupSpec],
                  headers: Mapping[str, FileTensor], rename: Rename
                  ) -> dict[str, Joined]:
    """Gives what is stored its name and type in the files, and takes weights
    that no file holds out of the groups. What is no tensor of the files as it
    is becomes a joined one: by name, these.

    NotFound: parameters that are in no file. InvalidArgument: shapes that
    differ. Unimplemented: weights that are no plain tensors, or that a library
    computes as it loads them.
    """
    finder = _Finder(module, headers, rename)
    names = {one: name for name, one in module.named_modules()}
    missing: list[str] = []
    wrong: list[str] = []
    found: list[tuple[Stored, Source, str]] = []
    for spec in specs:
        for weight in list(spec.weights):
            stored = _only_part(weight)
            known = [f"{names[place.module]}.{place.key}".lstrip(".")
                     for place in weight.places]
            source = finder.find(known, tuple(stored.meta.shape))
            if source is None:
                refused = any(name in finder.refused for name in known)
                if weight.kind == "buffer" and not (stored.meta_at_first
                                                    or refused):
                    spec.weights.remove(weight)
                else:
                    missing.append(known[0])
            elif source.shape != tuple(stored.meta.shape):
                wrong.append(f"{known[0]} {tuple(stored.meta.shape)} here, "
                             f"{source.shape} in the files")
            else:
                stored.tensor = None
                retype(weight, _dtypes.torch_dtype(source.dtype))
                found.append((stored, source, known[0]))
    _complain(missing, wrong, finder)
    return _name(found, headers)


def left_over(rule: Mapping[str, Sequence[str]], joined: Mapping[str, Joined],
              headers: Mapping[str, FileTensor]) -> list[str]:
    """The files' tensors that are in no group, nor part of what is."""
    used = {tensor for tensors in rule.values() for tensor in tensors}
    used |= {part if isinstance(part, str) else part[0]
             for one in joined.values() for part in one.parts}
    return [one for one in headers if one not in used]


def retype(weight: Weight, dtype: torch.dtype) -> None:
    part = weight.parts[0]
    part.dtype = weight.dtype = dtype
    part.stored.meta = torch.empty_strided(
        part.shape, part.strides, dtype=dtype, device="meta")


def _only_part(weight: Weight) -> Stored:
    if not weight.plain or len(weight.parts) != 1 or (
            weight.parts[0].offset_bytes):
        raise Unimplemented(
            f'"{weight.name}" is no plain tensor; hoist.load fills plain '
            "parameters and buffers, hoist.attach takes any")
    return weight.parts[0].stored


class _Finder:
    """Where a weight comes from: where `rename` says; else where the library
    that the module is of takes it from; else from its own name."""

    def __init__(self, module: nn.Module, headers: Mapping[str, FileTensor],
                 rename: Rename) -> None:
        self.headers = headers
        self._rename = rename
        self._prefix = getattr(module, "base_model_prefix", "")
        self._library, self.refused = (
            library_sources(module, headers) if rename is None else ({}, {}))

    def find(self, names: Sequence[str],
             shape: tuple[int, ...]) -> Source | None:
        """Of a weight that has these names, being tied. The shape is only
        looked at where `rename` gives several tensors, which have none."""
        if self._library or self.refused:
            # A tensor of that name may be another's, if the library renames.
            return next((self._library[name] for name in names
                         if name in self._library), None)
        for name in names:
            for one in self._candidates(name):
                if not isinstance(one, str):
                    return self._end_to_end(name, one, shape)
                if one in self.headers:
                    return whole(one, self.headers[one])
        return None

    def _candidates(self, name: str) -> Iterator[str | Sequence[str]]:
        if callable(self._rename):
            yield self._rename(name)
            return
        for ours, theirs in (self._rename or {}).items():
            if name.startswith(ours):
                yield theirs + name[len(ours):]
        yield name
        if self._prefix:
            yield f"{self._prefix}.{name}"
            yield name.removeprefix(f"{self._prefix}.")

    def _end_to_end(self, name: str, tensors: Sequence[str],
                    shape: tuple[int, ...]) -> Source | None:
        if not tensors or any(one not in self.headers for one in tensors):
            return None
        flat = [reshape(source, (source.elements,)) for source in
                (whole(one, self.headers[one]) for one in tensors)]
        made = concatenate(flat, 0)
        try:
            return reshape(made, shape)
        except InvalidArgument:
            return made  # The caller says whose shape it is.


def _complain(missing: list[str], wrong: list[str], finder: _Finder) -> None:
    refused = [name for name in missing if name in finder.refused]
    if refused:
        raise Unimplemented(
            f"{len(refused)} parameters are not in the files as they are: "
            f"{refused[0]}: {finder.refused[refused[0]]}")
    if missing:
        raise NotFound(
            f"{len(missing)} parameters are in none of the files: "
            f"{', '.join(missing[:5])}; the files hold "
            f"{', '.join(list(finder.headers)[:5])}, ...; rename= maps names")
    if wrong:
        raise InvalidArgument(
            f"{len(wrong)} shapes differ: {'; '.join(wrong[:5])}")


def _name(found: list[tuple[Stored, Source, str]],
          headers: Mapping[str, FileTensor]) -> dict[str, Joined]:
    """A file's tensor keeps its name if it is all of one weight and of none
    other; the rest is joined, under the module's names."""
    users: dict[str, int] = {}
    for _, source, _ in found:
        for tensor in {piece.tensor for piece in source.pieces}:
            users[tensor] = users.get(tensor, 0) + 1
    joined: dict[str, Joined] = {}
    for stored, source, name in found:
        own = source.file_tensor
        if own is not None and users.get(own, 1) == 1:
            stored.name = own
            continue
        if source.dtype in _dtypes.SUB_BYTE:
            raise Unimplemented(f'"{name}" is joined of {source.dtype} '
                                "tensors, whose elements are no bytes")
        while name in headers or name in joined:
            name += "'"
        stored.name = name
        size = stored.meta.dtype.itemsize
        joined[name] = Joined(source.shape, [
            (piece.tensor, piece.start * size, piece.count * size)
            for piece in source.pieces])
    return joined
