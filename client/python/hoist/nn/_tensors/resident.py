"""Weights that stay on the device: read-only, with a lease of their own.

A plan's residents have one address for the plan's life. Their weights are
plain tensors over a lease of their own: a weight that is still referenced
keeps its bytes over a new plan or budget, detach and hoistd's eviction.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import weakref
from typing import Any, Callable, NoReturn

import torch
import torch.utils._python_dispatch
from torch import nn

from ..._errors import FailedPrecondition

_is_in_dispatch_mode: Callable[[], bool] = getattr(
    torch.utils._python_dispatch, "is_in_torch_dispatch_mode", lambda: False)


_NEW_PARAMETER = nn.Parameter.__new__.__code__


class KeptLease:
    """A lease that lives as long as the views of its bytes, and until the GPU
    has finished the work queued by then. Threads: any."""

    def __init__(self, lease: Any, device: torch.device) -> None:
        self._lease = lease
        self._device = device
        release_late()

    @property
    def address(self) -> int:
        return int(self._lease.address)

    def __del__(self) -> None:
        if self._device.type == "cuda":
            _late.append((self._lease, self._device))
            release_late()


# Unreferenced leases whose bytes the GPU may still read.
_late: collections.deque[tuple[Any, torch.device]] = collections.deque()


def release_late() -> None:
    """Releases unreferenced leases. During the capture of a CUDA graph, which
    forbids waits, the next call does it."""
    if not _late:
        return
    with contextlib.suppress(RuntimeError):
        if torch.cuda.is_current_stream_capturing():
            return
        mine = [_late.popleft() for _ in range(len(_late))]
        try:
            for device in {device for _, device in mine}:
                torch.cuda.synchronize(device)
        except RuntimeError:  # Another thread captures a graph.
            _late.extend(mine)
            raise


def refuse_write(what: str) -> NoReturn:
    raise FailedPrecondition(
        f"{what} would write to a weight that lives in hoist, where it is "
        "shared and read-only; hoist.detach(module) gives the module its own "
        "weights, or exclude the module that changes them")


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(tensor: torch.Tensor, *_: Any, **__: Any) -> NoReturn:
        refuse_write(f"Tensor.{name}")

    return refuse


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """A cast keeps the value: bitsandbytes casts biases in forward."""
    if value.dtype == tensor.dtype or value.shape != tensor.shape:
        refuse_write("assigning to .data")
    torch.Tensor.data.__set__(tensor, value)  # type: ignore[attr-defined]


def _detach(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.Tensor.detach(tensor)
    if _is_in_dispatch_mode():
        return plain  # torch's own; its modes refuse types they do not know.
    kind: type[torch.Tensor] = ResidentTensor
    if (not torch.compiler.is_compiling()  # No frames there.
            and sys._getframe(1).f_code is _NEW_PARAMETER):
        kind = type(tensor)  # nn.Parameter(weight) expects the same type.
    return torch.Tensor._make_subclass(kind, plain, False)


def _numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Tensor.__array__ calls it too."""
    made = torch.Tensor.numpy(tensor, *args, **kwargs)
    made.flags.writeable = False
    return made


class _ReadOnly:
    """Refuses in-place writes through this object, and gives NumPy a read-only
    flag. A write through a view, or by an operator's out=, hits read-only
    memory: it ends the process, or the GPU's context."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    data = property(_detach, _set_data)
    detach = _detach
    numpy = _numpy

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> torch.Tensor:
        return _own(self, torch.Tensor.detach(self).clone())

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        plain = torch.Tensor.detach(self)
        return _own(self, plain).__reduce_ex__(protocol)


def _own(tensor: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(plain, requires_grad=tensor.requires_grad)
    return plain


# In place, but without a write to the elements.
_HARMLESS = {"requires_grad_", "detach_", "rename_"}
for _name in dir(torch.Tensor):
    if (_name.endswith("_") and not _name.startswith("_")
            and _name not in _HARMLESS):
        setattr(_ReadOnly, _name, _refusing(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow",
              "matmul", "and", "or", "xor", "lshift", "rshift"):
    setattr(_ReadOnly, f"__i{_name}__", _refusing(f"__i{_name}__"))
setattr(_ReadOnly, "__setitem__", _refusing("__setitem__"))


class ResidentTensor(_ReadOnly, torch.Tensor):  # type: ignore[misc]
    """A parameter's elements."""


class ResidentParameter(_ReadOnly, nn.Parameter):  # type: ignore[misc]
    """A module's parameter over bytes that stay there."""

    # torch.utils.swap_tensors refuses tensors with weak references: the
    # swapped-in value would be neither hoist's nor its owner's.
    _self: weakref.ref[ResidentParameter]

    @staticmethod
    def __new__(cls, data: torch.Tensor, requires_grad: bool = False) -> Any:
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        plain: Any = torch.Tensor.detach(self)
        return f"Parameter containing:\n{plain.__repr__(**kwargs)}"


def new_kind() -> type[ResidentParameter]:
    """A type for weights that are shown before their bytes are there, because
    of the current hooks. torch.compile guards a parameter's type, not hooks: so
    code that was compiled under other hooks, or none, is not used for these
    weights."""
    return type("PlacedParameter", (ResidentParameter,), {})


def guarded(value: Any, kind: type[ResidentParameter] =
            ResidentParameter) -> Any:
    """A plain parameter, made read-only; anything else unchanged."""
    if type(value) is not nn.Parameter:
        return value
    made = torch.Tensor._make_subclass(kind, value.detach(),
                                       value.requires_grad)
    made.__dict__.update(value.__dict__)
    made._self = weakref.ref(made)
    return made
