"""Matches a module's weights with the tensors in the files."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import pathlib
from typing import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from ... import _dtypes
from ..._errors import InvalidArgument, NotFound, Unimplemented
from ..._registration import Joined
from ...checkpoint import (MAX_OWN_BYTES, Bytes, Computed, FileTensor, Finder,
                           Packed, Rename, Source, Use)
from .._tree.casting import converted_types
from .._tree.inventory import Stored, Weight, keep_own
from .._tree.layout import GroupSpec
from .._tree.pieces import InPlaceWeight

_UNUSED = "(unused)"  # The group of tensors without a place in the module.


@dataclasses.dataclass
class Matched:
    """By name, the stored tensors that are not a file's tensor unchanged: those
    joined of several, or computed, with their names in the results."""

    joined: dict[str, Joined] = dataclasses.field(default_factory=dict)
    computed: dict[str, tuple[Computed, str]] = dataclasses.field(
        default_factory=dict)
    # Files' tensors that are one weight of the module.
    ties: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    uses: list[Use] = dataclasses.field(default_factory=list)
    # Weights whose bytes are values only to their library's layers.
    packed: set[str] = dataclasses.field(default_factory=set)


def match_weights(module: nn.Module, specs: list[GroupSpec],
                  headers: Mapping[str, FileTensor],
                  rename: Rename, packed: Packed) -> Matched:
    """Names and types the stored tensors, and takes weights that no file holds
    out of the groups.

    packed: weights that are already made of the files' tensors.

    NotFound: parameters that are in no file. InvalidArgument: shapes that
    differ, or types that no parameter has. Unimplemented: weights that are no
    plain tensors, or that a library computes from more than the files hold.
    """
    finder = Finder(module, headers, rename, packed.targets, packed.plain)
    names = {one: name for name, one in module.named_modules()}
    missing: list[str] = []
    unmade: list[str] = []
    wrong: list[str] = []
    found: list[tuple[Stored, Source | Computed, str]] = []
    ties: list[tuple[str, str]] = []
    uses: list[Use] = []
    opaque: set[str] = set()
    for spec in specs:
        made, own = _packed(spec, packed)
        opaque |= {weight.name for weight in spec.weights} - {
            weight.name for weight in own}
        found += [(stored, source, stored.name) for stored, source in made]
        uses += [Use(stored.name, stored.meta.dtype,
                     packed.made_of(_file_tensors(source)))
                 for stored, source in made]
        for weight in own:
            stored = _only_part(weight)
            known = [f"{names[place.module]}.{place.key}".lstrip(".")
                     for place in weight.places if place.module is not None]
            sources = finder.find(known, tuple(stored.meta.shape))
            if not sources:
                refused = any(name in finder.refused for name in known)
                if weight.kind == "buffer" and not (stored.meta_at_first
                                                    or refused):
                    spec.weights.remove(weight)
                elif weight.kind == "buffer" and not refused:
                    unmade.append(known[0])
                else:
                    missing.append(known[0])
                continue
            source = sources[0]
            name, shape, dtype = _facts(source, known)
            if shape != tuple(stored.meta.shape):
                wrong.append(f"{known[0]} {tuple(stored.meta.shape)} here, "
                             f"{shape} in the files")
                continue
            if weight.requires_grad and not (dtype.is_floating_point
                                             or dtype.is_complex):
                said = source.dtype if isinstance(source, Source) else dtype
                wrong.append(f"{known[0]} is to have gradients, and is {said} "
                             "in the files")
                continue
            ties += _ties(sources)
            uses.append(Use(weight.name, stored.meta.dtype, packed.made_of(
                tensor for one in sources for tensor in _file_tensors(one))))
            stored.tensor = None
            retype(weight, dtype)
            found.append((stored, source, name))
    _complain(missing, unmade, wrong, finder, packed.remedy)
    return dataclasses.replace(_name(found, headers), ties=ties, uses=uses,
                               packed=opaque)


def _packed(spec: GroupSpec, packed: Packed
            ) -> tuple[list[tuple[Stored, Source]], list[Weight]]:
    """The group's stored tensors as they lie in the files, and the weights
    without any. Other results of a quantiser stay the worker's own.

    Unimplemented: those are more than a few values."""
    sources = {id(stored): source for stored in spec.stored
               for source in [packed.find(stored.tensor)] if source is not None}
    others = []
    for weight in spec.weights:
        own = [part for part in weight.parts if id(part.stored) not in sources]
        if len(own) == len(weight.parts):
            others.append(weight)
            continue
        nbytes = sum(part.stored.nbytes for part in own)
        if nbytes > MAX_OWN_BYTES:
            raise Unimplemented(
                f'"{weight.name}" has {nbytes} bytes that are not in the files '
                "as they are; hoist.attach takes the module once its library "
                "has loaded it")
        if own:
            keep_own(weight, [weight.parts.index(part) for part in own])
    made = [(stored, sources[id(stored)]) for stored in spec.stored
            if id(stored) in sources]
    for stored, source in made:
        stored.tensor = None
        dtype = _dtypes.torch_dtype(source.dtype)
        if dtype.itemsize != stored.meta.dtype.itemsize:
            # The part in the module is a view of its bytes.
            stored.meta = torch.empty(source.shape, dtype=dtype, device="meta")
    return made, others


def check_ties(matched: Matched, files: Sequence[pathlib.Path]) -> None:
    """InvalidArgument: one weight of the module is several in the files. Reads
    the bytes of tensors that are there more than once."""
    reader = Bytes(files) if matched.ties else None
    for one, other in matched.ties:
        if reader is not None and not reader.same(one, other):
            raise InvalidArgument(
                f"{one} and {other} are one weight of the module, and differ in "
                "the files; make the module without that tie (transformers' "
                "configurations: tie_word_embeddings=False)")


def _ties(sources: Sequence[Source | Computed]) -> list[tuple[str, str]]:
    made_of = [one.inputs if isinstance(one, Computed) else
               () if one.file_tensor is None else (one.file_tensor,)
               for one in sources]
    names = list(dict.fromkeys(one[0] for one in made_of if len(one) == 1))
    return [(names[0], one) for one in names[1:]]


def file_groups(specs: list[GroupSpec], placed: Iterable[InPlaceWeight],
                matched: Matched, headers: Mapping[str, FileTensor]
                ) -> tuple[dict[str, list[str]], dict[str, Joined]]:
    """The groups of the files' tensors, and of joined ones: a group has its
    stored tensors, or the inputs that they are computed from, or is a piece of
    what is read in place. Every tensor of the files is in a group, directly or
    as a part."""
    rule: dict[str, list[str]] = {}
    joined = dict(matched.joined)
    for spec in specs:
        names = rule[spec.name] = []
        for stored in spec.stored:
            if stored.name not in matched.computed:
                names.append(stored.name)
                continue
            computed, _ = matched.computed[stored.name]
            for tensor in computed.inputs:
                name = input_name(spec, tensor)
                if name not in names:
                    names.append(name)
                    joined[name] = Joined(headers[tensor].shape, [tensor])
    for one in placed:
        _add_pieces(one, rule, joined)
    used = {tensor for tensors in rule.values() for tensor in tensors}
    used |= {part if isinstance(part, str) else part[0]
             for made in joined.values() for part in made.parts}
    rest = [one for one in headers if one not in used]
    if rest:
        rule[_UNUSED] = rest
    return rule, joined


def _add_pieces(one: InPlaceWeight, rule: dict[str, list[str]],
                joined: dict[str, Joined]) -> None:
    """Each piece is a group, joined from the files' tensors."""
    stored = one.stored
    whole = joined.pop(stored.name, None)
    runs = ([(stored.name, 0, stored.nbytes)] if whole is None else
            [part for part in whole.parts if not isinstance(part, str)])
    size = stored.meta.dtype.itemsize
    ends = list(itertools.accumulate(nbytes for _, _, nbytes in runs))
    for name, start, count in one.cuts():
        rule[name] = [name]
        joined[name] = Joined((count,), list(
            _cut(runs, ends, start * size, (start + count) * size)))


def _cut(runs: Sequence[tuple[str, int, int]], ends: Sequence[int],
         begin: int, end: int) -> Iterator[tuple[str, int, int]]:
    """The part within a range, of bytes that lie end to end: a matrix of experts
    has hundreds of runs, and of pieces."""
    for number in range(bisect.bisect_right(ends, begin), len(runs)):
        tensor, start, nbytes = runs[number]
        at = ends[number] - nbytes
        if at >= end:
            return
        first, last = max(begin, at), min(end, ends[number])
        if first < last:
            yield tensor, start + first - at, last - first


def conversion_reasons(module: nn.Module, matched: Matched,
                     dtype: torch.dtype | None
                     ) -> Callable[[Weight], str | None]:
    """The reason why a weight is not the files' bytes."""
    converts = conversions(module, dtype, matched)

    def why(weight: Weight) -> str | None:
        if weight.parts[0].stored.name in matched.computed:
            return "it is computed from the files' tensors"
        return None if converts(weight) is None else (
            f"dtype= converts it from {weight.dtype}")

    return why


def conversions(module: nn.Module, dtype: torch.dtype | None,
                matched: Matched) -> Callable[[Weight], torch.dtype | None]:
    """The conversions that dtype= asks for, of weights of other types."""
    types = None if dtype is None else converted_types(
        module, dtype, {use.name: use.dtype for use in matched.uses})

    def convert(weight: Weight) -> torch.dtype | None:
        if types is None or weight.dtype is None or not weight.plain or (
                not weight.dtype.is_floating_point
                or weight.name in matched.packed):
            return None
        to = types(weight.name)
        return None if to == weight.dtype else to

    return convert


def input_name(spec: GroupSpec, tensor: str) -> str:
    """The name of a file's tensor as an input of a group's weights; it may be
    an input of other groups too."""
    return f"{spec.name}/{tensor}"


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


def _complain(missing: list[str], unmade: list[str], wrong: list[str],
              finder: Finder, remedy: str) -> None:
    refused = [name for name in missing if name in finder.refused]
    if refused:
        raise Unimplemented(
            f"{len(refused)} parameters are not in the files as they are: "
            f"{refused[0]}: {finder.refused[refused[0]]}")
    if missing:
        raise NotFound(
            f"{len(missing)} parameters are in none of the files: "
            f"{', '.join(missing[:5])}; the files hold "
            f"{', '.join(list(finder.headers)[:5])}, ...; {remedy}")
    if unmade:
        raise NotFound(
            f"{len(unmade)} buffers are in none of the files, and on the meta "
            f"device here: {', '.join(unmade[:5])}; give hoist.load the "
            "function that makes the module, whose buffers are real then")
    if wrong:
        raise InvalidArgument(
            f"{len(wrong)} do not fit: {'; '.join(wrong[:5])}")


def _facts(source: Source | Computed, names: Sequence[str]
           ) -> tuple[str, tuple[int, ...], torch.dtype]:
    """The name under which the weight is found, its shape and type."""
    if isinstance(source, Source):
        return names[0], source.shape, _dtypes.torch_dtype(source.dtype)
    name = next(one for one in names if one in source.results)
    return name, tuple(source.results[name].shape), source.results[name].dtype


def _name(found: list[tuple[Stored, Source | Computed, str]],
          headers: Mapping[str, FileTensor]) -> Matched:
    """A file's tensor keeps its name if it is all of exactly one weight; the
    others get the module's names."""
    users: dict[str, int] = {}
    for _, source, _ in found:
        for tensor in _file_tensors(source):
            users[tensor] = users.get(tensor, 0) + 1
    matched = Matched()
    for stored, source, key in found:
        own = source.file_tensor if isinstance(source, Source) else None
        if own is not None and users.get(own, 1) == 1:
            stored.name = own
            continue
        name = key
        while (name in headers or name in matched.joined
               or name in matched.computed):
            name += "'"
        stored.name = name
        if isinstance(source, Computed):
            matched.computed[name] = source, key
            continue
        if source.dtype in _dtypes.SUB_BYTE:
            raise Unimplemented(f'"{key}" is joined of {source.dtype} '
                                "tensors, whose elements are no bytes")
        size = stored.meta.dtype.itemsize
        matched.joined[name] = Joined(source.shape, [
            (piece.tensor, piece.start * size, piece.count * size)
            for piece in source.pieces])
    return matched


def _file_tensors(source: Source | Computed) -> set[str]:
    if isinstance(source, Computed):
        return set(source.inputs)
    if source.file_tensor is not None:
        return {source.file_tensor}
    return {piece.tensor for piece in source.pieces}
