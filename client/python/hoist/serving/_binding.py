"""A module's parameters and buffers, shown over tensors of hoistd's."""

from __future__ import annotations

from typing import Any, Collection, Iterator, Mapping

import torch
from torch import nn

from .._errors import FailedPrecondition
from ._meta import storage_id
from ._recipes import held_by


def bind(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Parameters become read-only ones over the tensors of their names.
    Buffers, which engines write to, get the values in memory of their own.

    Tensors that several modules share stay one object. Other names are
    unchanged.
    """
    modules = modules_of(module)
    bound: dict[int, torch.Tensor] = {}
    for held in held_by(module):
        given = next((tensors[name] for name in held.names if name in tensors),
                     None)
        if given is None:
            continue
        made = _parameter(given) if held.is_parameter else given.clone()
        put(modules, held.names, made)
        bound[id(held.tensor)] = made
    tell_others(module, bound)


def modules_of(module: nn.Module) -> dict[str, nn.Module]:
    """By all of their names."""
    return dict(module.named_modules(remove_duplicate=False))


def put(modules: Mapping[str, nn.Module], names: Collection[str],
        tensor: torch.Tensor) -> None:
    """Replaces the attributes of these names by the tensor. modules: as
    modules_of has them."""
    for name in names:
        owner, _, leaf = name.rpartition(".")
        holder: dict[str, Any] = (
            modules[owner]._parameters if isinstance(tensor, nn.Parameter)
            else modules[owner]._buffers)
        modules[owner]._parameters.pop(leaf, None)
        if leaf not in modules[owner]._buffers or holder is not (
                modules[owner]._buffers):
            modules[owner]._buffers.pop(leaf, None)
        holder[leaf] = tensor


def tell_others(module: nn.Module,
                replaced: Mapping[int, torch.Tensor]) -> None:
    """Objects that are no modules, and have kept a parameter of a layer's (an
    attention's kernel its sinks), get what is in its place. replaced: by id().
    """
    for _, holder in _attributes(module):
        for leaf, value in holder.items():
            if isinstance(value, torch.Tensor) and id(value) in replaced:
                holder[leaf] = replaced[id(value)]


def _attributes(module: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the modules, and of the objects that they have: with their names."""
    seen = set()
    for path, one in module.named_modules():
        yield path, vars(one)
        for leaf, value in vars(one).items():
            if hasattr(value, "__dict__") and id(value) not in seen and (
                    not isinstance(value, (torch.Tensor, nn.Module, type))):
                seen.add(id(value))
                yield f"{path}.{leaf}", vars(value)


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    made = nn.Parameter(tensor, requires_grad=False)
    made.weight_loader = refuse_to_write  # type: ignore[attr-defined]
    return made


def refuse_to_write(*_: object, **__: object) -> None:
    """The engines' method to set a parameter's values, once it is hoistd's."""
    raise FailedPrecondition(
        "this parameter is hoistd's, shared with other processes, read-only; "
        "start the engine anew to give it other weights, or with another "
        "--load-format to give it weights of its own")


def settle_the_rest(module: nn.Module, device: torch.device,
                    lost: Collection[int] = ()) -> None:
    """Buffers and attributes that were made without values get uninitialised
    memory, as from torch.empty; so do tensors without elements.
    FailedPrecondition: another tensor is still on the meta device, and would be
    computed with.

    lost: storages (storage_id) whose values, from a constructor or from traced
    loading code, are gone.
    """
    modules = modules_of(module)
    for held in held_by(module):
        if held.tensor.is_meta and (not held.tensor.numel() or (
                not held.is_parameter
                and storage_id(held.tensor) not in lost)):
            made = torch.empty_like(held.tensor, device=device)
            put(modules, held.names, nn.Parameter(made, requires_grad=False)
                if held.is_parameter else made)
    for _, holder in _attributes(module):
        for leaf, value in holder.items():
            if isinstance(value, torch.Tensor) and value.is_meta and (
                    storage_id(value) not in lost):
                holder[leaf] = torch.empty_like(value, device=device)
    left = list(_on_meta(module))
    if left:
        raise FailedPrecondition(
            f"{len(left)} of {type(module).__name__}'s tensors have no values, "
            f"neither of the files nor of its constructor: "
            f"{', '.join(left[:5])}")


def _on_meta(module: nn.Module) -> Iterator[str]:
    holders = list(_attributes(module))
    for path, one in module.named_modules():
        holders += [(path, one._parameters), (path, one._buffers)]
    for path, holder in holders:
        for leaf, value in holder.items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                yield f"{path}.{leaf}".lstrip(".")
