"""hoist.load: a model on disk, attached without its weights passing through
the worker."""

from __future__ import annotations

import os
import threading
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .. import _dtypes, _session
from .._errors import InvalidArgument, NotFound, Unimplemented
from .._model import Model
from ._api import check_wanted, default_session, refuse_managed
from ._assemble import Wanted, assemble
from ._budget import Budget
from ._casting import DEFAULT_SKIP, Skip, modules_that_match
from ._grouping import Groups
from ._hand_over import cast_name, known_model, publish_cast
from ._inventory import Stored, Weight
from ._layout import GroupSpec, choose_storage, lay_out
from ._progress import progress_bar
from ._safetensors import (FileTensor, Paths, find_files, identity, one_path,
                           read_headers)

Rename = Union[Mapping[str, str], Callable[[str], str], None]

_UNUSED = "(unused)"  # The group of what the module has no place for.


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
        function. Without it names are tried as they are, and with and without
        transformers' base_model_prefix.

    The other options, and the errors, are attach's; besides, NotFound (a
    parameter that is in no file) and InvalidArgument (its shape differs).
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
        _match(module, specs, headers, rename)
        specs = [spec for spec in specs if spec.weights]
        if not specs:
            raise InvalidArgument("the module has no weights in these files")
        rule = {spec.name: [stored.name for stored in spec.stored]
                for spec in specs}
        used = {tensor for tensors in rule.values() for tensor in tensors}
        if used != set(headers):
            rule[_UNUSED] = [one for one in headers if one not in used]
        name = name or (f"{_base_name(path)}-{identity(files, repr(rule))}")
        original = wanted.session.register(found, name, groups=rule)
    original, name = _convert(wanted, specs, original, dtype)
    if storage_dtype is not None:
        choose_storage(module, specs, storage_dtype, skip)
    total = sum(spec.nbytes for spec in specs)
    with progress_bar(progress, f"load {name}", total) as advance:
        attachment = assemble(module, wanted, specs, excluded, original, name,
                              advance)
    attachment.note_change()  # Buffers of the factory's go to the device.
    return module


def _base_name(path: Paths) -> str:
    one = path if isinstance(path, (str, os.PathLike)) else path[0]
    base = os.path.basename(os.path.abspath(one))
    return base.removesuffix(".safetensors")


def _match(module: nn.Module, specs: list[GroupSpec],
           headers: Mapping[str, FileTensor], rename: Rename) -> None:
    """Gives what is stored its name and type in the files, and takes weights
    that no file holds out of the groups."""
    names = {one: name for name, one in module.named_modules()}
    prefix = getattr(module, "base_model_prefix", "")
    missing, wrong = [], []
    for spec in specs:
        for weight in list(spec.weights):
            stored = _only_part(weight)
            known = [f"{names[place.module]}.{place.key}".lstrip(".")
                     for place in weight.places]
            file_name = next((one for name in known for one in
                              _candidates(name, rename, prefix)
                              if one in headers), None)
            if file_name is None:
                if weight.kind == "buffer" and not stored.meta_at_first:
                    spec.weights.remove(weight)
                else:
                    missing.append(known[0])
                continue
            there = headers[file_name]
            if there.shape != tuple(stored.meta.shape):
                wrong.append(f"{known[0]} {tuple(stored.meta.shape)} here, "
                             f"{there.shape} in the files")
                continue
            stored.name = file_name
            stored.tensor = None
            _retype(weight, _dtypes.torch_dtype(there.dtype))
    if missing:
        raise NotFound(
            f"{len(missing)} parameters are in none of the files: "
            f"{', '.join(missing[:5])}; the files hold "
            f"{', '.join(list(headers)[:5])}, ...; rename= maps names")
    if wrong:
        raise InvalidArgument(
            f"{len(wrong)} shapes differ: {'; '.join(wrong[:5])}")


def _candidates(name: str, rename: Rename, prefix: str) -> Iterator[str]:
    if callable(rename):
        yield rename(name)
        return
    for ours, theirs in (rename or {}).items():
        if name.startswith(ours):
            yield theirs + name[len(ours):]
    yield name
    if prefix:
        yield f"{prefix}.{name}"
        yield name.removeprefix(f"{prefix}.")


def _only_part(weight: Weight) -> Stored:
    if not weight.plain or len(weight.parts) != 1 or (
            weight.parts[0].offset_bytes):
        raise Unimplemented(
            f'"{weight.name}" is no plain tensor; hoist.load fills plain '
            "parameters and buffers, hoist.attach takes any")
    return weight.parts[0].stored


def _retype(weight: Weight, dtype: torch.dtype) -> None:
    part = weight.parts[0]
    part.dtype = weight.dtype = dtype
    part.stored.meta = torch.empty_strided(
        part.shape, part.strides, dtype=dtype, device="meta")


def _convert(wanted: Wanted, specs: list[GroupSpec], original: Model,
             dtype: torch.dtype | None) -> tuple[Model, str]:
    """The model with its floating parameters as `dtype`, made if need be."""
    name = original.name
    if dtype is None:
        return original, name
    for spec in specs:
        spec.storage = {
            weight.parts[0].stored.name: dtype for weight in spec.weights
            if weight.kind == "parameter" and weight.dtype != dtype
            and weight.dtype is not None and weight.dtype.is_floating_point}
    if not any(spec.storage for spec in specs):
        return original, name
    name = cast_name(name, specs, dtype)
    converted = known_model(wanted.session, name, specs, cast=True)
    if converted is None:
        for spec in specs:
            converted = publish_cast(wanted.session, name, spec,
                                     original[spec.name], wanted.deadline)
    assert converted is not None
    for spec in specs:
        for weight in spec.weights:
            if weight.parts[0].stored.name in spec.storage:
                _retype(weight, dtype)
        spec.storage = {}
    return converted, name


_building = threading.RLock()

# In-place functions that change values alone.
_FILLS = frozenset((
    "add_", "bernoulli_", "cauchy_", "clamp_", "copy_", "div_", "erfinv_",
    "exponential_", "fill_", "log_normal_", "mul_", "normal_", "random_",
    "sub_", "uniform_", "zero_"))


class _NothingToFill(TorchFunctionMode):
    """Initialising a meta tensor does nothing, as its values are nowhere.
    torch works out on the way that nothing changes, for which it imports sympy:
    longer than loading takes, and more memory than hoist does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        to = args[0] if args else kwargs.get("tensor")
        if isinstance(to, torch.Tensor) and to.is_meta and (
                getattr(func, "__module__", "") == "torch.nn.init"
                or getattr(func, "__name__", "") in _FILLS):
            return to
        return func(*args, **kwargs)


def build_on_meta(factory: Callable[[], nn.Module]) -> nn.Module:
    """Calls the factory; parameters that it registers become meta ones, so
    that initialising them costs nothing. Buffers are real."""
    builder = threading.get_ident()

    def on_meta(module: nn.Module, name: str,
                param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta and (
                threading.get_ident() == builder):
            made = nn.Parameter(param.detach().to("meta"),
                                requires_grad=param.requires_grad)
            made.__dict__.update(param.__dict__)
            module._parameters[name] = made

    with _building:
        register = nn.Module.register_parameter
        nn.Module.register_parameter = on_meta  # type: ignore[assignment]
        try:
            with _NothingToFill():
                module = factory()
        except NotImplementedError as error:
            if "meta tensor" not in str(error):
                raise
            raise InvalidArgument(
                "the factory moves or reads the module's weights, which are "
                "not there yet; it only makes the module, and hoist.load says "
                f"where it goes ({error})") from error
        finally:
            nn.Module.register_parameter = (  # type: ignore[method-assign]
                register)
    if not isinstance(module, nn.Module):
        raise InvalidArgument(
            f"the factory gave a {type(module).__name__}, not a module")
    return module
