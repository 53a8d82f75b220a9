"""Idle tensors: weights that are not staged, and are read on access.

An idle tensor has the weight's shape, type and strides, is on the CPU, and
takes no memory. Its address is reserved in a host image, whose bytes are
fetched from hoistd when an operator, data_ptr() or numpy() reads them. Few
images stay loaded, besides those that may have a reader.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes as c
import threading
import weakref
from typing import Any, Callable, Iterator

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..._errors import Unavailable
from ..._host_image import HostImage
from .resident import refuse_write

_KEPT = 1  # Images that stay loaded for the next read.


class IdleGroup:
    """A group's image in this process, loaded while it is read.

    Threads: any; a load blocks only threads that need the image.
    """

    def __init__(self, image: HostImage, shelf: Shelf, deadline: float) -> None:
        self.image = image
        self.deadline = deadline
        self.shelf = shelf
        self.readers = 0  # Operators, and memory that may be read at any time.
        # Threads that hold addresses, and may read at any time.
        self.pointers: set[int] = set()
        # Weights, by id(), whose requires_grad was set explicitly.
        self.told: dict[int, bool] = {}

    def load(self) -> None:
        """Call it within a use of the shelf."""
        try:
            self.image.load(self.deadline)
        except Unavailable:
            self.shelf.renew()  # Or raises the reason.
            self.image.load(self.deadline)

    def hold_for(self, thing: Any) -> None:
        """Keeps the bytes for the life of `thing`."""
        with self.shelf.used_by_this_thread():
            self.load()
            self.readers += 1
            self.shelf.used(self)
        weakref.finalize(thing, self.shelf.release, self).atexit = False

    def hold_for_pointers(self) -> None:
        """Keeps the bytes until this thread stages the group, or ends."""
        with self.shelf.used_by_this_thread():
            self.load()
            self.pointers.add(threading.get_ident())
            self.shelf.used(self)

    def end_pointers(self) -> None:
        """This thread stages the group, and reads no idle weight meanwhile."""
        if self.pointers:
            with self.shelf.used_by_this_thread():
                self.pointers.discard(threading.get_ident())
                self.pointers &= {one.ident for one in threading.enumerate()}
                self.shelf.used(self)

    def forget_pointers(self) -> None:
        """The pointers' module is detached. Call it within a use of the
        shelf."""
        self.pointers.clear()

    @property
    def held(self) -> bool:
        return self.readers > 0 or bool(self.pointers)

    def memory(self, address: int, nbytes: int) -> Any:
        """Host memory for torch, which keeps the reservation."""
        found: Any = (c.c_uint8 * nbytes).from_address(address)
        found.image = self.image
        return found


class Shelf:
    """The idle images of one attached module; the last one used stays loaded.

    Threads: any. The garbage collector may free memory that kept an image
    anywhere, also within a use by the same thread; that use's end releases it.
    """

    def __init__(self, renew: Callable[[], None] = lambda: None) -> None:
        """renew: makes images loadable again after hoistd's end, or raises."""
        self.renew = renew
        self.reads = 0  # Operators that read idle weights.
        self.seen: set[IdleGroup] = set()  # Theirs; cleared as passes begin.
        self._closed = False
        self._lock = threading.RLock()
        self._depth = 0  # Nested uses by the lock's owner.
        self._gone: collections.deque[IdleGroup] = collections.deque()
        self._recent: collections.OrderedDict[IdleGroup, None] = (
            collections.OrderedDict())

    @contextlib.contextmanager
    def used_by_this_thread(self) -> Iterator[None]:
        with self._lock:
            self._depth += 1
            try:
                yield
            finally:
                if self._depth == 1:
                    while self._gone:
                        group = self._gone.popleft()
                        group.readers -= 1
                        self.used(group)
                self._depth -= 1

    def used(self, group: IdleGroup) -> None:
        """Call it within a use."""
        self._recent[group] = None
        self._recent.move_to_end(group)
        idle = [one for one in list(self._recent) if not one.held]
        for one in idle if self._closed else idle[:-_KEPT]:
            self._drop(one)

    def _drop(self, group: IdleGroup) -> None:
        self._recent.pop(group, None)
        group.image.drop()

    def release(self, group: IdleGroup) -> None:
        """One of the group's readers is gone. Never blocks."""
        self._gone.append(group)
        if not self._lock.acquire(blocking=False):
            return  # The current user of the shelf does it, or the next one.
        try:
            if not self._depth:
                with self.used_by_this_thread():
                    pass
        finally:
            self._lock.release()

    def clear(self) -> None:
        """Drops all images without a possible reader."""
        with self.used_by_this_thread():
            for one in list(self._recent):
                if not one.held:
                    self._drop(one)

    def close(self) -> None:
        """The module is detached: from now on only possible readers keep
        images."""
        with self.used_by_this_thread():
            self._closed = True
            self.seen.clear()
            for one in list(self._recent):
                one.forget_pointers()
        self.clear()

    @contextlib.contextmanager
    def reading(self, groups: list[IdleGroup]) -> Iterator[None]:
        """Loads several groups at once, for one operator."""
        with self.used_by_this_thread():
            self.reads += 1
            if not self._closed:
                self.seen.update(groups)
            loaded: list[IdleGroup] = []
            try:
                for group in groups:
                    group.load()
                    group.readers += 1
                    loaded.append(group)
                yield
            finally:
                for group in loaded:
                    group.readers -= 1
                for group in loaded:
                    self.used(group)


class IdleTensor(torch.Tensor):
    """A weight that is not staged. See the module's docstring.

    Reads give the true value. Writes raise FailedPrecondition, since hoist's
    weights are shared and read-only.
    """

    _plain: torch.Tensor  # The same memory, without this class.
    _group: IdleGroup
    _held: bool = False  # Its image, for the tensor's life.
    # torch.utils.swap_tensors refuses tensors with weak references: a swap
    # would be invisible to passes.
    _self: weakref.ref[IdleTensor]
    # A parameter's detached tensor.
    _detached: weakref.ref[IdleTensor] | None = None
    _kind: type[torch.Tensor] | None = None  # of_kind's.

    @staticmethod
    def make(plain: torch.Tensor, group: IdleGroup,
             parameter: bool = False) -> IdleTensor:
        """`plain`: a view of the group's image, loaded or not."""
        made = torch.Tensor._make_subclass(IdleTensor, plain, False)
        made._plain = plain
        made._group = group
        made._self = weakref.ref(made)
        if parameter:
            made._is_param = True  # For isinstance(_, nn.Parameter).
        return made

    def of_kind(self, kind: type[torch.Tensor]) -> IdleTensor:
        """The same weight, of a subclass that has memory of its own."""
        idle_kind = _kinds.get(kind)
        if idle_kind is None:
            # The subclass handles operators only once it is staged.
            idle_kind = _kinds[kind] = type(
                f"Idle{kind.__name__}", (IdleTensor, kind), {"_kind": kind})
        made = torch.Tensor._make_subclass(idle_kind, self._plain, False)
        made._plain = self._plain
        made._group = self._group
        made._self = weakref.ref(made)
        return made

    def apart(self) -> IdleTensor:
        """The same weight as its class detaches it."""
        if self._kind is not None:
            probe = torch.Tensor._make_subclass(
                self._kind, torch.empty_like(self._plain, device="meta"), False)
            probe.__dict__.update({name: value for name, value in
                                   vars(self).items() if name not in _OWN})
            found = probe.detach()
            if type(found) is self._kind:  # Diffusers' GGUFParameter.
                made = self.of_kind(self._kind)
                made.__dict__.update(vars(found))
                return made
        return IdleTensor.make(self._plain, self._group)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        escape = _ESCAPES.get(func)
        if escape is not None and isinstance(args[0], IdleTensor):
            return escape(*args, **(kwargs or {}))
        # Not super()'s, which makes idle tensors of all results.
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (),
            kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _refuse_writes(func, args, kwargs)
        flat, spec = pytree.tree_flatten((args, kwargs))
        idle = [one for one in flat if isinstance(one, IdleTensor)]
        found = {id(one): one._plain for one in idle}
        with contextlib.ExitStack() as stack:
            if not _is_view(func):
                groups = list(dict.fromkeys(one._group for one in idle))
                stack.enter_context(groups[0].shelf.reading(groups))
                device = _device_of(flat)
                if device is not None and func not in _ACROSS_DEVICES:
                    for one in idle:
                        found[id(one)] = one._plain.to(device)
            args, kwargs = pytree.tree_unflatten(
                [found.get(id(one), one) for one in flat], spec)
            result = func(*args, **kwargs)
        return pytree.tree_map_only(
            torch.Tensor, lambda one: _wrap_view(one, idle), result)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return _copied(self)


_kinds: dict[type[torch.Tensor], type[IdleTensor]] = {}
_OWN = frozenset(IdleTensor.__annotations__)  # The others are its class's.


def _device_of(flat: list[Any]) -> torch.device | None:
    for one in flat:
        if (isinstance(one, torch.Tensor) and not isinstance(one, IdleTensor)
                and one.device.type == "cuda"):
            return one.device
    return None


def _wrap_view(made: torch.Tensor, idle: list[IdleTensor]) -> torch.Tensor:
    """Views of an image's bytes stay idle tensors."""
    if isinstance(made, IdleTensor) or made.device.type != "cpu":
        return made
    storage = made.untyped_storage()._cdata
    for one in idle:
        if one._plain.untyped_storage()._cdata == storage:
            return IdleTensor.make(made, one._group)
    return made


def _refuse_writes(func: Any, args: Any, kwargs: Any) -> None:
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = (kwargs.get(argument.name) if at >= len(args) or
                 argument.kwarg_only else args[at])
        for one in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(one, IdleTensor):
                refuse_write(str(func))


def _is_view(func: Any) -> bool:
    """The operator computes addresses alone, and reads no bytes."""
    return func._schema.returns and all(
        found.alias_info is not None and not found.alias_info.is_write
        for found in func._schema.returns)


# Copies from one device to another read the CPU's bytes.
_ACROSS_DEVICES = {torch.ops.aten._to_copy.default,
                   torch.ops.aten.copy_.default}


def _exposed(tensor: IdleTensor) -> torch.Tensor:
    """An ordinary tensor over the image, which stays for the life of that
    memory."""
    plain = tensor._plain
    storage = plain.untyped_storage()
    memory = tensor._group.memory(storage.data_ptr(), storage.nbytes())
    tensor._group.hold_for(memory)
    made = torch.frombuffer(memory, dtype=torch.uint8)
    return torch.empty(0, dtype=plain.dtype, device="cpu").set_(
        made.untyped_storage(), plain.storage_offset(), plain.shape,
        plain.stride())


def _copied(tensor: IdleTensor) -> torch.Tensor:
    with tensor._group.shelf.reading([tensor._group]):
        made = tensor._plain.clone()
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=False)
    return made


def _numpy(tensor: IdleTensor, *args: Any, **kwargs: Any) -> Any:
    made = _exposed(tensor).numpy(*args, **kwargs)
    made.flags.writeable = False
    return made


def _array(tensor: IdleTensor, dtype: Any = None) -> Any:
    made = _numpy(tensor)
    return made if dtype is None else made.astype(dtype, copy=False)


def _data_ptr(tensor: IdleTensor) -> int:
    """A module's own weight outlives the caller of data_ptr(); a tensor of a
    state_dict belongs to its reader."""
    if isinstance(tensor, nn.Parameter):
        tensor._group.hold_for_pointers()
    elif tensor.numel() and not tensor._held:
        tensor._group.hold_for(tensor)
        tensor._held = True
    return tensor._plain.data_ptr()


def _reduce(tensor: IdleTensor, protocol: Any) -> Any:
    made = _exposed(tensor)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, requires_grad=False)
    return made.__reduce_ex__(protocol)


def _detach(tensor: IdleTensor) -> IdleTensor:
    """No parameter, as with torch, unless its class insists. One object for as
    long as it is referenced, so that ties stay ties."""
    if not isinstance(tensor, nn.Parameter):
        return tensor
    made = tensor._detached() if tensor._detached is not None else None
    if made is None:
        made = tensor.apart()
        tensor._detached = weakref.ref(made)
    return made


def _format(tensor: IdleTensor, spec: str) -> str:
    """A one-element tensor formats as a number; torch asks plain ones only."""
    if tensor.dim() == 0 and not isinstance(tensor, nn.Parameter):
        return format(tensor.item(), spec)
    return object.__format__(tensor, spec)


def _set_data(tensor: IdleTensor, value: Any) -> None:
    refuse_write("assigning to .data")


def _set_requires_grad(tensor: IdleTensor, needed: bool = True) -> IdleTensor:
    """An idle tensor is no leaf of a graph; its staged one is."""
    if isinstance(tensor, nn.Parameter):
        tensor._group.told[id(tensor)] = needed
    return tensor


# Access to the memory without an operator.
_ESCAPES: dict[Any, Callable[..., Any]] = {
    torch.Tensor.data_ptr: _data_ptr,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _array,
    torch.Tensor.__dlpack__: lambda tensor, *args, **kwargs: _exposed(
        tensor).__dlpack__(*args, **kwargs),
    torch.Tensor.untyped_storage: lambda tensor: _exposed(
        tensor).untyped_storage(),
    torch.Tensor.storage: lambda tensor: _exposed(tensor).storage(),
    torch.Tensor._typed_storage: lambda tensor: _exposed(
        tensor)._typed_storage(),
    torch.Tensor.__repr__: lambda tensor, **kwargs: (
        "Parameter containing:\n" * isinstance(tensor, nn.Parameter)
        + _exposed(tensor).__repr__(**kwargs)),
    torch.Tensor.tolist: lambda tensor: _exposed(tensor).tolist(),
    torch.Tensor.__reduce_ex__: _reduce,
    torch.Tensor.__format__: _format,
    torch.Tensor.detach: _detach,
    torch.Tensor.data.__get__: _detach,  # type: ignore[attr-defined]
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch.Tensor.requires_grad_: _set_requires_grad,
    torch.Tensor.requires_grad.__set__:  # type: ignore[attr-defined]
        _set_requires_grad,
}
