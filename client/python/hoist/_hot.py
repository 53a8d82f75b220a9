"""What runs for each group of each pass: hoist._fast, or the same in Python.

The extension also has gates; see nn/_show/gate.py.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import functools
import importlib.util
import os
import sys
from typing import Any, Callable, NoReturn, Protocol, Union

from . import _library as lib

# Where each value goes: `holder[key] = value`.
Swap = tuple[dict[str, Any], str, Any]
Put = Callable[[list[Swap], list[Swap]], bool]
Counts = Callable[[list[Any], list[int], Any], Any]

NAME = "_fast.abi3.so"
INTERFACE = 5  # Of the extension that this package knows.
_GONE = object()


class HasCudaStream(Protocol):
    """A stream object, such as torch.cuda.Stream."""

    @property
    def cuda_stream(self) -> int:
        """The CUDA stream's handle."""


# A stream's handle, or an object that has one; None: the default stream.
# Emulated devices ignore it.
Stream = Union[int, HasCudaStream, None]


def handle_of(stream: Stream) -> int | None:
    """The CUDA stream's handle."""
    if stream is None or isinstance(stream, int):
        return stream
    return int(stream.cuda_stream)


class Calls(Protocol):
    """A plan's calls into libhoist.

    Threads: one at a time.
    """

    # Of the last stage that has come to it, even if Ctrl-C hid the return. Set 0
    # before a stage.
    address: int

    def stage(self, group: int, stream: Stream) -> int:
        """Returns the group's address."""

    def done(self, group: int, stream: Stream) -> None:
        """Ends a stage."""

    def close(self) -> None:
        """The plan is freed: later calls raise InvalidArgument."""


class PureCalls:
    """The same through ctypes. Arguments are of C's types, made once where that
    is possible: each conversion by ctypes takes as long as the call."""

    def __init__(self, plan: int | None, groups: int) -> None:
        self._plan = c.c_void_p(plan)
        self._groups = [c.c_uint32(number) for number in range(groups)]
        # Without declared types.
        self._stage: Any = lib.load()["hoist_plan_stage"]
        self._done: Any = lib.load()["hoist_plan_done"]
        self._data, self._error = c.c_void_p(), c.c_void_p()
        self._to_data, self._to_error = c.byref(self._data), c.byref(self._error)

    @property
    def address(self) -> int:
        return self._data.value or 0

    @address.setter
    def address(self, value: int) -> None:
        self._data.value = value

    def stage(self, group: int, stream: Stream) -> int:
        code = self._stage(self._plan, self._groups[group],
                           None if stream is None else
                           c.c_void_p(handle_of(stream)),
                           self._to_data, self._to_error)
        if code:
            lib.fail(code, self._error)
        return self._data.value or 0

    def done(self, group: int, stream: Stream) -> None:
        code = self._done(self._plan, self._groups[group],
                          None if stream is None else
                          c.c_void_p(handle_of(stream)), self._to_error)
        if code:
            lib.fail(code, self._error)

    def close(self) -> None:
        self._plan = c.c_void_p()


def pure_put(on: list[Swap], swaps: list[Swap]) -> bool:
    """Puts the values of `swaps` in place of those of `on`, which has the same
    places. False: nothing is changed, as a place has another value."""
    if len(on) != len(swaps):
        return False
    for holder, key, value in on:
        if holder.get(key, _GONE) is not value:
            return False
    for holder, key, value in swaps:
        holder[key] = value
    return True


def pure_counts(values: list[Any], storages: list[int],
                uses: Callable[[int], int]) -> Any:
    """The references of each value, and the uses of each storage, to compare
    with earlier ones."""
    return ([*map(sys.getrefcount, values)], [*map(uses, storages)])


@functools.lru_cache(maxsize=None)
def fast() -> Any:
    """The extension, of this package or beside libhoist. None: there is none,
    this Python cannot load it, or $HOIST_PURE_PYTHON is 1."""
    if os.environ.get("HOIST_PURE_PYTHON") == "1":
        return None
    for folder in (os.path.dirname(__file__),
                   os.path.dirname(lib.library_path())):
        path = os.path.join(os.path.abspath(folder), NAME)
        if folder and os.path.exists(path):
            return _loaded(path)
    return None


def _loaded(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("hoist._fast", path)
    assert spec is not None and spec.loader is not None
    with contextlib.suppress(ImportError):
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.INTERFACE == INTERFACE:
            return module
    return None


def _fail(code: int, error: int) -> NoReturn:
    lib.fail(code, c.c_void_p(error))


def _address_of(name: str) -> int | None:
    return c.cast(getattr(lib.load(), name), c.c_void_p).value


def calls_of(plan: int | None, groups: int) -> Calls:
    """The calls of a plan at that address, over so many groups."""
    if fast() is None:
        return PureCalls(plan, groups)
    made: Calls = fast().Calls(plan, _address_of("hoist_plan_stage"),
                               _address_of("hoist_plan_done"), _fail)
    return made


def put() -> Put:
    """The function that `pure_put` is an example of."""
    found: Put = pure_put if fast() is None else fast().put
    return found


def fields(name: str) -> tuple[type, ...]:
    """Bases of a class whose fields the extension reads: its type of that name,
    with those fields; or none."""
    return () if fast() is None else (getattr(fast(), name),)


def counts() -> Counts:
    """The function that `pure_counts` is an example of. The extension's may be
    given None for `uses`: it reads torch's own count at a storage's address."""
    found: Counts = pure_counts if fast() is None else fast().counts
    return found
