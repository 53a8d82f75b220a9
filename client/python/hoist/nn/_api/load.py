"""hoist.load: a model on disk, attached without its weights passing through
the worker."""

from __future__ import annotations

import logging
import os
import pathlib
from typing import (TYPE_CHECKING, Any, Callable, Iterator, Mapping, Protocol,
                    TypeVar, cast, overload)

import torch
from torch import nn

from ... import _session
from ..._errors import InvalidArgument
from ..._plan import PlanTerms
from ..._progress import progress_bar
from ...checkpoint import (RENAME, FileTensor, Packed, Paths, Rename, find_files,
                           identity, is_gguf, one_path, pack,
                           pack_diffusers, pack_gguf, pack_scaled, quantise,
                           read_headers, refuse_declared, refuse_losses,
                           single_file_sources, unscale)
from .._plan.budget import Budget, first_device
from .._store.building import LIBRARIES, build_on_meta, default_dtype
from .._store.converting import convert
from .._store.matching import (check_ties, conversion_reasons, file_groups,
                               match_weights)
from .._store.sources import Files
from .._store.uses import ended_if_it_fails
from .._tree.casting import DEFAULT_SKIP, Patterns, matching_modules
from .._tree.grouping import Groups
from .._tree.layout import GroupSpec, choose_storage, lay_out
from .._tree.pieces import InPlaceOption, choose
from .._tree.stacks import AheadOption
from .assemble import assemble
from .attach import check_wanted, refuse_managed, unwrap
from .options import Idle, LoadOptions, M, Names, Wanted, Where

if TYPE_CHECKING:
    from typing_extensions import Unpack


_log = logging.getLogger("hoist.nn")


class _HasWeights(Protocol):
    """Modules have weights and functions do not, also for callers without
    torch, to whose type checkers nn.Module is Any."""

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
         in_place: InPlaceOption = None, ahead: AheadOption = None,
         **terms: Unpack[PlanTerms]) -> M:
    """Makes a module and attaches it to the weights in safetensors files, or in
    one GGUF file.

    hoistd reads the files, once for all workers; this process opens them, with
    its own rights, and reads the headers alone.

        model = hoist.load(lambda: AutoModel.from_config(config), folder,
                           budget="8GiB")

    factory: makes the module; its parameters are made on the meta device, its
        buffers are real. Or a module whose parameters are on meta already.
    path: a file, a folder, or a list of files.
    dtype: the type of the files' floating weights, buffers included; None:
        unchanged. transformers' and diffusers' exceptions apply. Their models
        make other buffers in torch's default type, which is `dtype` meanwhile,
        as in from_pretrained. Converted weights are made once for all workers.
    rename: from the module's names to the files': {prefix: prefix}, or a
        function, which may return a list: the parameter is these tensors, end
        to end. Without it transformers' models are filled as the library fills
        them: renamed, merged, fused or split tensors included. (Computed
        tensors are made once for all workers.) diffusers' models are filled
        from a file with the original's names as by from_single_file, if that
        computes nothing. Others' names are used as they are.

    A configuration of transformers' or diffusers' that names a quantiser (the
    module's, or the folder's) has it make the factory's module its own, as
    from_pretrained does. Packed weights and their scales are staged as they lie
    in the files. With its `dequantize=True` they are plain weights, which the
    quantiser computes once for all workers.

    For a GGUF file the factory makes a model of diffusers, whose quantiser makes
    it its own; dtype= is what it computes in, else float32. So it does for 8-bit
    floats with scales; without dtype= it computes in bfloat16. Or it makes a
    model of transformers: its functions unpack the file to plain weights, once
    for all workers, of dtype=, else float32. Of 8-bit floats with scales its
    models have plain weights, too, without dtype= in bfloat16.

    The other options, and the errors, are attach's. Also: NotFound (a parameter
    in no file); InvalidArgument (its shape differs, it needs gradients and is
    of integers, or the files have two values for tied parameters);
    Unimplemented (transformers computes it with more than the files' tensors,
    or its version does not tell; rename={} takes the names as they are; or a
    quantiser is not known, or would unpack the weights).
    Buffers in no file stay as the factory made them.
    """
    packs = (isinstance(path, (str, os.PathLike))
             and is_gguf(pathlib.Path(path)))
    # diffusers makes the buffers of a packed one in torch's default type.
    made = cast(M, factory if isinstance(factory, nn.Module)
                else build_on_meta(factory, dtype, ("transformers",)
                                   if packs else LIBRARIES))
    module = unwrap(made)
    refuse_managed(module)
    wanted = Wanted.of(budget, {
        "groups": groups, "order": order, "storage_dtype": storage_dtype,
        "skip": skip, "exclude": exclude, "idle": idle, "name": name,
        "device": device, "session": session, "exclude_kwargs": exclude_kwargs,
        "progress": progress, "deadline": deadline, "in_place": in_place,
        "ahead": ahead, **terms})
    check_wanted(wanted)
    computes = first_device(wanted.session, wanted.budget, wanted.device)
    with one_path(path) as found, ended_if_it_fails() as uses:
        files = find_files(found)
        headers = read_headers(files)
        quantised: Packed | None = None
        if packs:
            _check_gguf(made is not factory, rename)
            quantised = pack_gguf(module, files[0], headers, dtype)
        elif made is not factory and rename is None:
            quantised = _quantised(module, path, files, headers, dtype)
        if not packs:
            quantised = quantised or unscale(module, path, files, headers,
                                             dtype, rename)
        if not (quantised is None or quantised.unpacks
                or storage_dtype is None):
            raise InvalidArgument(
                "storage_dtype= of a module whose weights are quantised in "
                "the files, and stay so: its own layers unpack them; leave it "
                "out")
        excluded = matching_modules(module, wanted.exclude)
        specs = lay_out(module, groups, excluded, wanted.in_parts)
        if quantised is None:
            refuse_declared(module, _made_types(specs), files, path)
        packed = quantised or Packed(
            plain={**single_file_sources(module, headers)} if rename is None
            else {}, remedy=RENAME)
        dtype = dtype or packed.dtype
        matched = match_weights(module, specs, headers, rename, packed)
        _tell_unused(refuse_losses(module, matched.uses, headers))
        check_ties(matched, files)
        specs = [spec for spec in specs if spec.weights]
        placed = choose(module, specs, in_place, wanted.session,
                        conversion_reasons(module, matched, dtype))
        if not specs and not placed:
            raise InvalidArgument("the module has no weights in these files")
        rule, joined = file_groups(specs, placed, matched, headers)
        name = name or (f"{_base_name(path)}-"
                        f"{identity(files, repr((rule, joined)))}")
        uses.makes(wanted.session, name)
        registered = wanted.session.register(found, name, groups=rule,
                                             joined=joined)
        uses.add(wanted.session, registered)
        unchanged = identity(files, "")
        original, conversion = convert(
            module, wanted.session, specs, registered, name, dtype, matched,
            computes, wanted.deadline, uses, wanted.progress)
        if original is not registered:
            wanted.session.done_with(registered)
        source = Files(path, name, rule, joined, registered.fingerprint,
                       unchanged, conversion, wanted.deadline)
        if storage_dtype is not None:
            choose_storage(module, specs, storage_dtype, wanted.skip)
        total = (sum(spec.nbytes for spec in specs)
                 + sum(one.stored.nbytes for one in placed))
        with progress_bar(progress, f"load {original.name}", total) as advance:
            attachment = assemble(module, wanted, specs, excluded, original,
                                  name, advance, lambda _: source, uses,
                                  placed=placed, placed_model=registered)
    attachment.note_change()  # The factory's buffers go to the device.
    attachment.commit()
    return made


def _check_gguf(by_factory: bool, rename: Rename) -> None:
    if not by_factory:
        raise InvalidArgument(
            "a GGUF file's library has a part in making the module: give "
            "hoist.load the function that makes it")
    if rename is not None:
        raise InvalidArgument(
            "rename= of a GGUF file, whose names its library maps itself: leave "
            "it out")


def _quantised(module: nn.Module, path: Paths, files: list[pathlib.Path],
               headers: Mapping[str, FileTensor],
               dtype: torch.dtype | None) -> Packed | None:
    with default_dtype(dtype):
        quantizer = quantise(module, path, files, dtype)
    if quantizer is not None:
        return pack(module, quantizer, files, headers)
    return (pack_diffusers(module, path, files, headers, dtype)
            or pack_scaled(module, path, files, headers, dtype))


def _made_types(specs: list[GroupSpec]) -> list[torch.dtype]:
    return [stored.meta.dtype for spec in specs for stored in spec.stored]


def _tell_unused(names: list[str]) -> None:
    if names:
        _log.warning("%d tensors of the files are no weights of the module: "
                     "%s%s", len(names), ", ".join(names[:5]),
                     ", ..." * (len(names) > 5))


def _base_name(path: Paths) -> str:
    one = path if isinstance(path, (str, os.PathLike)) else path[0]
    base = os.path.basename(os.path.abspath(one))
    return base.removesuffix(".safetensors").removesuffix(".gguf")
