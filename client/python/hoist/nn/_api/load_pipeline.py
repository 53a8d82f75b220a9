"""hoist.load_pipeline: loads a pipeline that diffusers saved, without its
weights passing through the worker."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any, Callable, Mapping, cast

import torch
from torch import nn

from ..._errors import HoistError, InvalidArgument, MissingExtra, NotFound
from .._plan.budget import Amount, parse_one
from .._store.building import default_dtype
from .attach import unwrap
from .attachment import attachment_of
from .component import Component
from .load import load
from .options import LoadOptions, Names
from .pipeline import attach_pipeline, check_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

_INDEX = "model_index.json"  # Names each component's library and class.


def load_pipeline(path: str | os.PathLike[str],
                  budget: Amount = None, *,
                  components: Names | None = None,
                  each: Mapping[str, LoadOptions] | None = None,
                  **options: Unpack[LoadOptions]) -> Any:
    """The pipeline that DiffusionPipeline.from_pretrained(path, dtype=dtype)
    makes, its modules' weights under hoist in one budget: hoist.load loads
    them, and attach_pipeline attaches the pipeline.

        pipe = hoist.load_pipeline("/models/flux", budget="8GiB",
                                   dtype=torch.bfloat16)

    path: a folder that a pipeline was saved in (save_pretrained), with
        safetensors files in its modules' folders.
    budget: attach_pipeline's.
    components: names of the modules that hoist loads; None: all of diffusers'
        and transformers'. The others are loaded by diffusers, and yours to
        move.
    each: options of some, by name, besides those of all.
    options: hoist.load's, but for `name` and `order`. Without `dtype` weights
        are as they are in the files (diffusers makes them float32).

    Raises errors of hoist.load, attach_pipeline and diffusers; then
    nothing is attached. MissingExtra: there is no diffusers.
    """
    budget = parse_one(budget)
    check_options(options, each)
    pipelines = import_diffusers("diffusers", "to make a pipeline")
    folder = pathlib.Path(path)
    classes = _chosen(_classes(folder), components, each or {})
    loaded: dict[str, nn.Module] = {}
    for name, cls in classes.items():
        # One after another: each has the whole shared budget.
        module = _load(name, cls, folder / name,
                       None if isinstance(budget, float) else budget,
                       cast(LoadOptions,
                            {**options, **(each or {}).get(name, {})}))
        found = attachment_of(unwrap(module))
        assert found is not None
        Component.join(name, module, found)
        loaded[name] = module
    given: dict[str, Any] = dict(loaded)
    if options.get("dtype") is not None:
        given[_dtype_argument()] = options["dtype"]
    pipe = pipelines.DiffusionPipeline.from_pretrained(str(folder), **given)
    return attach_pipeline(pipe, budget, components=list(loaded))


def _load(name: str, cls: Any, folder: pathlib.Path, budget: Amount,
          options: LoadOptions) -> nn.Module:
    try:
        made = _factory(cls, folder, options.get("dtype"))
        return load(made, folder, budget, **options).eval()
    except HoistError as error:
        raise type(error)(f'component "{name}": {error}') from error


def _factory(cls: Any, folder: pathlib.Path, dtype: torch.dtype | None
             ) -> Callable[[], nn.Module]:
    """Calls the constructor as from_pretrained of its library does, in that
    type: buffers in no file are made in torch's default type."""
    of_diffusers = hasattr(cls, "load_config")
    config = (cls.load_config(str(folder)) if of_diffusers else
              cls.config_class.from_pretrained(str(folder)))

    def make() -> nn.Module:
        with default_dtype(dtype):
            module: nn.Module = (cls.from_config(config) if of_diffusers
                                 else cls(config))
        return module

    return make


def _classes(folder: pathlib.Path) -> dict[str, Any]:
    """By name, of the components that are modules."""
    try:
        index = json.loads((folder / _INDEX).read_text())
    except FileNotFoundError:
        raise NotFound(
            f"{folder} has no {_INDEX}: give the folder of a pipeline as "
            "save_pretrained writes it (of a hub's, snapshot_download(...); of "
            "one model, hoist.load)") from None
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{folder / _INDEX}: {error}") from None
    found = {}
    for name, value in index.items():
        if (isinstance(value, list) and len(value) == 2
                and value[0] in ("diffusers", "transformers")
                and (folder / name).is_dir()):
            cls = getattr(importlib.import_module(value[0]), str(value[1]),
                          None)
            if isinstance(cls, type) and issubclass(cls, nn.Module):
                found[name] = cls
    return found


def _chosen(found: dict[str, Any], components: Names | None,
            each: Mapping[str, LoadOptions]) -> dict[str, Any]:
    if components is not None:
        names = [components] if isinstance(components, str) else components
        for name in names:
            if name not in found:
                raise InvalidArgument(
                    f'components names "{name}", which is no module of '
                    f"diffusers' or transformers' here; those are "
                    f"{', '.join(found)}")
        found = {name: found[name] for name in found if name in names}
    if not found:
        raise InvalidArgument("the pipeline has no modules to load")
    unknown = {*each} - {*found}
    if unknown:
        raise InvalidArgument(f"each= names {', '.join(sorted(unknown))}; the "
                              f"components are {', '.join(found)}")
    return found


def import_diffusers(name: str, purpose: str) -> Any:
    """The module of that name. MissingExtra: it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"there is no diffusers {purpose}: pip install "
                           "diffusers", "diffusers") from error


def _dtype_argument() -> str:
    """The name in from_pretrained, which warns of unknown arguments."""
    try:
        utils = importlib.import_module("diffusers.utils.deprecation_utils")
    except ImportError:
        return "torch_dtype"
    return "dtype" if hasattr(utils, "_resolve_dtype") else "torch_dtype"
