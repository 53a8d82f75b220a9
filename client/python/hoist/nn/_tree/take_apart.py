"""A weight as plain tensors, and back.

A weight is the value under one name of a module: a parameter, a buffer, or the
side state of a quantised parameter. hoist stores plain tensors, so a weight is
taken apart once, and put together once for each address of its bytes. Values
other than tensors (scales' block sizes, shapes, types) stay here.
"""

from __future__ import annotations

import copy
import types
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..._errors import Unimplemented
from .._tensors.idle import IdleTensor

# Rebuilds a weight from plain tensors, in the order of its parts.
PutTogether = Callable[[Sequence[torch.Tensor]], Any]
# The part's name after the weight's name, and the part.
Parts = list[tuple[str, torch.Tensor]]

# nn.Buffer came with torch 2.5.
PLAIN = (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", nn.Parameter))
_DEPTH = 4  # Of nested objects: bitsandbytes' state2 is the third.
_OPAQUE = (nn.Module, type, types.ModuleType, types.FunctionType,
           types.MethodType, types.BuiltinFunctionType, torch.dtype,
           torch.device, str, bytes, int, float, complex, bool, type(None))


def take_apart(value: Any) -> tuple[Parts, PutTogether]:
    """The plain tensors in a tensor, or in an object with tensors.

    Unimplemented: a tensor subclass with neither memory of its own nor
    `__tensor_flatten__`; or see `_plain`.
    """
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    return _of_object(value, _DEPTH)


def holds_tensors(value: Any) -> bool:
    """True for objects (not modules) with tensors in their attributes."""
    if isinstance(value, (torch.Tensor, *_OPAQUE)):
        return False
    return bool(_of_object(value, _DEPTH)[0])


def _of_tensor(tensor: torch.Tensor) -> tuple[Parts, PutTogether]:
    if is_traceable_wrapper_subclass(tensor):
        return _of_wrapper(tensor)
    if type(tensor) not in PLAIN:
        return _of_subclass(tensor)
    parameter = isinstance(tensor, nn.Parameter)
    state = dict(tensor.__dict__)

    def put_together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        made = parts[0]
        if parameter:
            made = nn.Parameter(made, requires_grad=False)
        if state:
            made.__dict__.update(state)
        return made

    return [("", _plain(tensor))], put_together


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its value as bytes: a copy if torch conjugates or negates
    a view on reading.

    Unimplemented: sparse, or quantised by torch itself.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = ("a quantised tensor of torch's own" if tensor.is_quantized
                else f"a tensor of layout {tensor.layout}")
        raise Unimplemented(
            f"{kind} has more than its elements in memory, which hoist does "
            "not keep; exclude the module that holds it")
    return tensor.detach().resolve_conj().resolve_neg()


def _of_wrapper(tensor: torch.Tensor) -> tuple[Parts, PutTogether]:
    """Subclasses without memory of their own, by torch's protocol."""
    kind: Any = type(tensor)
    names, context = kind.__tensor_flatten__(tensor)
    size, stride = tensor.size(), tensor.stride()
    parameter = isinstance(tensor, nn.Parameter)
    parts, builders = _several([(f".{name}", getattr(tensor, name))
                                for name in names])

    def put_together(found: Sequence[torch.Tensor]) -> torch.Tensor:
        inner = dict(zip(names, builders(found)))
        made = kind.__tensor_unflatten__(inner, context, size, stride)
        return nn.Parameter(made, requires_grad=False) if parameter else made

    return parts, put_together


def _of_subclass(tensor: torch.Tensor) -> tuple[Parts, PutTogether]:
    """Subclasses with memory: that memory, and their attributes' tensors."""
    kind = type(tensor)
    if not _has_memory(tensor):
        raise Unimplemented(
            f"{kind.__module__}.{kind.__qualname__} is a tensor without memory "
            "of its own and has no __tensor_flatten__, so hoist cannot see its "
            "bytes; exclude the module that holds it")
    state, parts, builders = _attributes(tensor, _DEPTH)

    def put_together(found: Sequence[torch.Tensor]) -> torch.Tensor:
        made = (found[0].of_kind(kind) if isinstance(found[0], IdleTensor) else
                torch.Tensor._make_subclass(kind, found[0], False))
        made.__dict__.update(state)
        made.__dict__.update(builders(found[1:]))
        return made

    plain = tensor.detach().as_subclass(torch.Tensor)
    return [("", _plain(plain)), *parts], put_together


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return True
    try:
        return tensor.untyped_storage().nbytes() > 0 and (
            tensor.data_ptr() != 0)
    except (RuntimeError, NotImplementedError):
        return False


def _of_object(value: Any, depth: int) -> tuple[Parts, PutTogether]:
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, (list, tuple)) and depth:
        parts, builders = _several(
            [(f".{i}", item) for i, item in enumerate(value)], depth - 1)
        kind = type(value)
        make = (lambda items: kind(*items)) if hasattr(value, "_fields") else (
            lambda items: kind(items))
        return parts, (lambda found: make(builders(found))) if parts else (
            lambda found: value)
    if isinstance(value, dict) and depth:
        parts, builders = _several(
            [(f".{key}", item) for key, item in value.items()], depth - 1)
        keys = list(value)
        return parts, (lambda found: dict(zip(keys, builders(found)))
                       ) if parts else (lambda found: value)
    if isinstance(value, _OPAQUE) or not depth or not hasattr(
            value, "__dict__"):
        return [], lambda found: value
    _, parts, attributes = _attributes(value, depth - 1)
    if not parts:
        return [], lambda found: value

    def put_together(found: Sequence[torch.Tensor]) -> Any:
        made = copy.copy(value)
        made.__dict__.update(attributes(found))
        return made

    # The tensors themselves are not kept.
    value = copy.copy(value)
    value.__dict__.update(attributes([part.to("meta") for _, part in parts]))
    return parts, put_together


def _attributes(value: Any, depth: int) -> tuple[
        dict[str, Any], Parts,
        Callable[[Sequence[torch.Tensor]], dict[str, Any]]]:
    """An object's attributes without tensors; the parts of the others, and the
    function that rebuilds those."""
    plain: dict[str, Any] = {}
    held: list[tuple[str, Any]] = []
    for name, item in vars(value).items():
        parts, _ = _of_object(item, depth)
        if parts:
            held.append((name, item))
        else:
            plain[name] = item
    parts, builders = _several([(f".{name}", item) for name, item in held],
                               depth)
    names = [name for name, _ in held]
    return plain, parts, lambda found: dict(zip(names, builders(found)))


def _several(items: list[tuple[str, Any]], depth: int = _DEPTH) -> tuple[
        Parts, Callable[[Sequence[torch.Tensor]], list[Any]]]:
    parts: Parts = []
    builders: list[tuple[int, PutTogether]] = []
    for name, item in items:
        own, build = _of_object(item, depth)
        parts += [(name + rest, part) for rest, part in own]
        builders.append((len(own), build))

    def put_together(found: Sequence[torch.Tensor]) -> list[Any]:
        made, at = [], 0
        for count, build in builders:
            made.append(build(found[at:at + count]))
            at += count
        return made

    return parts, put_together
