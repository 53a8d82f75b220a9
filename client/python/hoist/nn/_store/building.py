"""Builds modules without memory for their parameters."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, Sequence, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..._errors import InvalidArgument
from .._tree.casting import default_type, is_of

M = TypeVar("M", bound=nn.Module)

LIBRARIES = ("transformers", "diffusers")
# Even untouched, a tensor of this size may exceed the memory.
LARGE_BYTES = 256 << 20

_building = threading.RLock()

# In-place functions that change values alone.
_FILLS = frozenset((
    "add_", "bernoulli_", "cauchy_", "clamp_", "copy_", "div_", "erfinv_",
    "exponential_", "fill_", "log_normal_", "mul_", "normal_", "random_",
    "sub_", "uniform_", "zero_"))
_MAKERS = frozenset((torch.empty, torch.full, torch.ones, torch.rand,
                     torch.randn, torch.zeros))


def build_on_meta(factory: Callable[[], M], dtype: torch.dtype | None = None,
                  libraries: Sequence[str] = LIBRARIES) -> M:
    """Calls the factory; the parameters that it registers become meta tensors,
    so that neither their memory nor their initialisation costs anything.
    Buffers are real.

    dtype: torch's default type for models of the libraries, as in their
        from_pretrained(dtype=). The library is known only from the made model,
        so the factory is called once more.

    A large tensor is assumed to be a parameter when it is made. If that was
    wrong, the factory is called once more. InvalidArgument: it makes no module,
    or moves or reads the weights.
    """
    module = _built(factory)
    if dtype is not None and _may_be_default(dtype) and (
            any(is_of(module, one) for one in libraries)
            and default_type(module, {
                name: value.dtype for name, value in
                module.named_parameters()}) != dtype):
        with default_dtype(dtype):
            module = _built(factory)
    return module


def _built(factory: Callable[[], M]) -> M:
    with _building, _parameters_on_meta():
        try:
            module = _make(factory, _OnMeta(LARGE_BYTES))
        except _WrongGuess:
            module = _make(factory, _OnMeta(None))
    if not isinstance(module, nn.Module):
        raise InvalidArgument(
            f"the factory gave a {type(module).__name__}, not a module")
    return module


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """torch's default type, if it may be one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(
        before if dtype is None or not _may_be_default(dtype) else dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _may_be_default(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1


def _make(factory: Callable[[], M], mode: _OnMeta) -> M:
    try:
        with mode:
            module = factory()
    except (NotImplementedError, RuntimeError) as error:
        # "Cannot copy out of meta tensor", "cannot be called on meta tensors",
        # "... with arguments from the 'Meta' backend".
        if mode.made_any and "meta" in str(error).lower():
            raise _WrongGuess from error
        if "meta tensor" not in str(error):
            raise
        raise InvalidArgument(
            "the factory moves or reads the module's weights, which are not "
            "there yet; it only makes the module, and hoist.load says where it "
            f"goes ({error})") from error
    if mode.made_any and _has_values_on_meta(module):
        raise _WrongGuess
    return module


class _WrongGuess(Exception):
    """A tensor that was made on the meta device is no parameter."""


class _OnMeta(TorchFunctionMode):
    """Skips the initialisation of meta tensors, which have no values. torch
    would work out that nothing changes, and import sympy for it: that takes
    longer than loading, and more memory than hoist.

    Makes tensors of at least `large` bytes on the meta device."""

    def __init__(self, large: int | None) -> None:
        super().__init__()
        self._large = large
        self.made_any = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _MAKERS and self._large is not None and all(
                kwargs.get(one) is None for one in (
                    "device", "out", "pin_memory")):
            made = func(*args, **{**kwargs, "device": "meta"})
            if made.nbytes >= self._large:
                self.made_any = True
                return made
        to = args[0] if args else kwargs.get("tensor")
        if isinstance(to, torch.Tensor) and to.is_meta and (
                getattr(func, "__module__", "") == "torch.nn.init"
                or getattr(func, "__name__", "") in _FILLS):
            return to
        return func(*args, **kwargs)


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """For modules that this thread makes. Call it under the lock."""
    builder = threading.get_ident()
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str,
                param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta and (
                threading.get_ident() == builder):
            made = nn.Parameter(param.detach().to("meta"),
                                requires_grad=param.requires_grad)
            made.__dict__.update(param.__dict__)
            module._parameters[name] = made

    nn.Module.register_parameter = on_meta  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _has_values_on_meta(module: Any) -> bool:
    """Buffers, or tensors that are attributes."""
    return isinstance(module, nn.Module) and any(
        isinstance(value, torch.Tensor) and value.is_meta
        for one in module.modules()
        for holder in (one._buffers, vars(one)) for value in holder.values())
