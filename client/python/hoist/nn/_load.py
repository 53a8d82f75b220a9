"""hoist.load: a model on disk, attached without its weights passing through
the worker."""

from __future__ import annotations

import os
from typing import (TYPE_CHECKING, Any, Callable, Iterator, Protocol, TypeVar,
                    cast, overload)

import torch
from torch import nn

from .. import _session
from .._errors import InvalidArgument
from .._plan import PlanTerms
from ..checkpoint import (Paths, Rename, find_files, identity, one_path,
                          read_headers)
from . import _libraries
from ._api import check_wanted, refuse_managed, unwrap
from ._assemble import assemble
from ._budget import Budget
from ._building import build_on_meta
from ._casting import (DEFAULT_SKIP, Patterns, as_patterns,
                       modules_that_match)
from ._grouping import Groups
from ._converting import convert
from ._in_place import choose, pieces_of
from ._layout import choose_storage, lay_out
from ._link import default_session
from ._matching import (check_ties, file_groups, match_pieces,
                        match_weights, why_not_as_it_is)
from ._options import (Idle, InPlaceOption, LoadOptions, M, Names, Wanted,
                       Where, as_names)
from .._progress import progress_bar
from ._sources import Files

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _HasWeights(Protocol):
    """Modules do and functions do not, also for callers without torch, where
    nn.Module is anything to a type checker."""

    def parameters(self) -> Iterator[Any]: ...


W = TypeVar("W", bound=_HasWeights)


@overload
def load(factory: W, path: Paths, budget: Budget = None,
         **options: Unpack[LoadOptions]) -> W: ...


@overload
def load(factory: Callable[[], M], path: Paths, budget: Budget = None,
         **options: Unpack[LoadOptions]) -> M: ...


# A module has weights, which type checkers cannot know.
def load(  # type: ignore[misc]
         factory: Callable[[], M] | M, path: Paths, budget: Budget = None, *,
         dtype: torch.dtype | None = None, rename: Rename = None,
         groups: Groups = "block", order: Names = "learn",
         storage_dtype: torch.dtype | None = None,
         skip: Patterns = DEFAULT_SKIP, exclude: Patterns = (),
         idle: Idle = "cpu", name: str | None = None, device: Where = None,
         session: _session.Session | None = None, exclude_kwargs: Names = (),
         progress: bool | None = None, deadline: float = 60.0,
         in_place: InPlaceOption = None, **terms: Unpack[PlanTerms]) -> M:
    """Makes a module and attaches it to the weights in safetensors files.

    hoistd reads the files, once for all workers; this process opens them, so
    that its own rights count, and reads their headers only.

        model = hoist.load(lambda: AutoModel.from_config(config), folder,
                           budget="8GiB")

    factory: makes the module; its parameters are made on the meta device, its
        buffers are real. Or a module whose parameters are on meta already.
    path: a file, a folder, or a list of files.
    dtype: what floating parameters are to be; None: as they are in the files.
        Those that transformers and diffusers keep in float32 then, are; of
        diffusers' models, buffers in the files are converted, too.
        Where they differ, the converted weights are made once for all workers.
    rename: from the module's names to the files': {prefix: prefix}, or a
        function, which may give a list: the parameter is these tensors, end to
        end. Without it transformers' models are filled as the library fills
        them, also where it renames, merges, fuses or splits tensors (what it
        computes from them is made once for all workers); others' names are
        tried as they are.

    The other options, and the errors, are attach's; besides, NotFound (a
    parameter that is in no file), InvalidArgument (its shape differs, it needs
    gradients and is of integers, or the files have two values for what is
    tied) and Unimplemented (transformers computes it with more than the files'
    tensors, or is of a version that does not tell; rename={} takes the names as
    they are).
    Buffers that are in no file stay as the factory made them.
    """
    made = cast(M, factory if isinstance(factory, nn.Module)
                else build_on_meta(factory))
    module = unwrap(made)
    refuse_managed(module)
    wanted = Wanted(
        budget, groups, order, storage_dtype, as_patterns("skip", skip),
        as_patterns("exclude", exclude), idle, name, device,
        session or default_session(), as_names(exclude_kwargs), progress,
        deadline, in_place, **terms)
    check_wanted(wanted)
    excluded = modules_that_match(module, wanted.exclude)
    specs = lay_out(module, groups, excluded)
    with one_path(path) as found:
        files = find_files(found)
        headers = read_headers(files)
        matched = match_weights(module, specs, headers, rename)
        check_ties(matched, files)
        specs = [spec for spec in specs if spec.weights]
        placed = choose(module, specs, in_place, wanted.session,
                        why_not_as_it_is(module, matched, dtype))
        pieces = pieces_of(placed)
        match_pieces(placed, matched)
        if not specs and not placed:
            raise InvalidArgument("the module has no weights in these files")
        rule, joined = file_groups([*specs, *pieces], matched, headers)
        name = name or (f"{_base_name(path)}-"
                        f"{identity(files, repr((rule, joined)))}")
        registered = wanted.session.register(found, name, groups=rule,
                                             joined=joined)
        unchanged = identity(files, "")
    original, conversion = convert(module, wanted, specs, registered, name,
                                   dtype, matched.computed)
    if original is not registered:
        wanted.session.done_with(registered)
    source = Files(path, name, rule, joined, registered.fingerprint, unchanged,
                   conversion, wanted.deadline)
    if storage_dtype is not None:
        choose_storage(module, specs, storage_dtype, wanted.skip)
    total = sum(spec.nbytes for spec in [*specs, *pieces])
    with progress_bar(progress, f"load {original.name}", total) as advance:
        attachment = assemble(module, wanted, specs, excluded, original,
                              name, advance, lambda _: source,
                              placed=placed, placed_model=registered)
    attachment.note_change()  # Buffers of the factory's go to the device.
    _libraries.know(module)
    return made


def _base_name(path: Paths) -> str:
    one = path if isinstance(path, (str, os.PathLike)) else path[0]
    base = os.path.basename(os.path.abspath(one))
    return base.removesuffix(".safetensors")
