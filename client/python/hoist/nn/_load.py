"""hoist.load: a model on disk, attached without its weights passing through
the worker."""

from __future__ import annotations

import os
from typing import Any, Callable, Sequence, Union

import torch
from torch import nn

from .. import _session
from .._errors import InvalidArgument
from ._api import check_wanted, default_session, refuse_managed
from ._assemble import Wanted, assemble
from ._budget import Budget
from ._building import build_on_meta
from ._casting import DEFAULT_SKIP, Skip, modules_that_match
from ._grouping import Groups
from ._converting import convert
from ._layout import choose_storage, lay_out
from ._matching import Rename, file_groups, match_weights
from ._progress import progress_bar
from ._safetensors import (Paths, find_files, identity, one_path,
                           read_headers)


def load(factory: Callable[[], nn.Module] | nn.Module, path: Paths,
         budget: Budget = None, *, dtype: torch.dtype | None = None,
         rename: Rename = None, groups: Groups = "block",
         order: Union[str, Sequence[str]] = "learn",
         storage_dtype: torch.dtype | None = None, skip: Skip = DEFAULT_SKIP,
         exclude: Skip = (), idle: str = "cpu", name: str | None = None,
         device: Any = None, session: _session.Session | None = None,
         exclude_kwargs: Sequence[str] = (), progress: bool | None = None,
         deadline: float = 60.0, weight: int = 1,
         priority: int = 0) -> nn.Module:
    """Makes a module and attaches it to the weights in safetensors files.

    hoistd reads the files, once for all workers; this process opens them, so
    that its own rights count, and reads their headers only.

        model = hoist.load(lambda: AutoModel.from_config(config), folder,
                           budget="8GiB")

    factory: makes the module; its parameters are made on the meta device, its
        buffers are real. Or a module whose parameters are on meta already.
    path: a file, a folder, or a list of files.
    dtype: what floating parameters are to be; None: as they are in the files.
        Where they differ, the converted weights are made once for all workers.
    rename: from the module's names to the files': {prefix: prefix}, or a
        function, which may give a list: the parameter is these tensors, end to
        end. Without it transformers' models are filled as the library fills
        them, also where it renames, merges, fuses or splits tensors (what it
        computes from them is made once for all workers); others' names are
        tried as they are.

    The other options, and the errors, are attach's; besides, NotFound (a
    parameter that is in no file), InvalidArgument (its shape differs) and
    Unimplemented (transformers computes it with more than the files' tensors).
    Buffers that are in no file stay as the factory made them.
    """
    module = factory if isinstance(factory, nn.Module) else (
        build_on_meta(factory))
    refuse_managed(module)
    wanted = check_wanted(Wanted(
        budget, groups, order, storage_dtype, skip, exclude, idle, name,
        device, session or default_session(), exclude_kwargs, progress,
        deadline, weight, priority))
    excluded = modules_that_match(module, exclude)
    specs = lay_out(module, groups, excluded)
    with one_path(path) as found:
        files = find_files(found)
        headers = read_headers(files)
        matched = match_weights(module, specs, headers, rename)
        specs = [spec for spec in specs if spec.weights]
        if not specs:
            raise InvalidArgument("the module has no weights in these files")
        rule, joined = file_groups(specs, matched, headers)
        name = name or (f"{_base_name(path)}-"
                        f"{identity(files, repr((rule, joined)))}")
        original = wanted.session.register(found, name, groups=rule,
                                           joined=joined)
    original = convert(wanted, specs, original, dtype, matched.computed)
    if storage_dtype is not None:
        choose_storage(module, specs, storage_dtype, skip)
    total = sum(spec.nbytes for spec in specs)
    with progress_bar(progress, f"load {original.name}", total) as advance:
        attachment = assemble(module, wanted, specs, excluded, original,
                              original.name, advance)
    attachment.note_change()  # Buffers of the factory's go to the device.
    return module


def _base_name(path: Paths) -> str:
    one = path if isinstance(path, (str, os.PathLike)) else path[0]
    base = os.path.basename(os.path.abspath(one))
    return base.removesuffix(".safetensors")
