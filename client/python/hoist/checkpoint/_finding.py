"""Finds a weight's source, by its names in the module."""

from __future__ import annotations

from typing import Callable, Collection, Iterator, Mapping, Sequence, Union

from torch import nn

from .._errors import InvalidArgument
from ._pieces import Source, concatenate, reshape, whole
from ._safetensors import FileTensor
from ._transformers import Computed, library_computations, library_sources

Rename = Union[Mapping[str, str],
               Callable[[str], Union[str, Sequence[str]]], None]
RENAME = "rename= maps names"  # The remedy if a weight is in no file.


class Finder:
    """Asks `rename`; else the module's library; else uses the weight's own
    name.

    refused: weights that the library makes from more than runs of the files'
    tensors, by the module's names: why, and the remedy. Those that it computes
    from the files' tensors alone are found all the same.
    """

    def __init__(self, module: nn.Module, headers: Mapping[str, FileTensor],
                 rename: Rename, packed: Collection[str] = (),
                 named: Mapping[str, Source | Computed] | None = None
                 ) -> None:
        """packed: the library's weights that are made already; named: its other
        ones, if it has named them."""
        self.headers = headers
        self._rename = rename
        self._prefix = getattr(module, "base_model_prefix", "")
        self._library: Mapping[str, Source | Computed]
        self._library, self.refused = (
            (named, {}) if named else
            library_sources(module, headers, packed) if rename is None else
            ({}, {}))
        self._computed = library_computations(
            module, headers, self.refused) if self.refused else {}

    def find(self, names: Sequence[str], shape: tuple[int, ...]
             ) -> list[Source | Computed]:
        """For a weight with these names, which are ties: the source for each
        name that the files have. The shape only matters if `rename` gives
        several tensors, which have none."""
        found = (self._find(name, shape) for name in names)
        return [one for one in found if one is not None]

    def _find(self, name: str,
              shape: tuple[int, ...]) -> Source | Computed | None:
        if self._library or self.refused:
            # A library that renames may use that name for another tensor.
            return self._library.get(name) or self._computed.get(name)
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
            return made  # The caller knows whose shape it is.
