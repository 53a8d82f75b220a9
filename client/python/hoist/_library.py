"""Finds and calls libhoist."""

from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
import functools
import glob
import itertools
import os
import pathlib
from typing import Any, Iterator, Mapping, NoReturn, Sequence, TypeVar

from . import _c
from ._errors import BY_CODE, InvalidArgument, UnknownError

_NAME = "libhoist.so.0"

DEVICE_KINDS = {"emulated": _c.DEVICE_EMULATED, "cuda": _c.DEVICE_CUDA}
READERS = {None: _c.READERS_DEFAULT, "owner": _c.READERS_OWNER,
           "everyone": _c.READERS_EVERYONE}


_P = c.c_void_p  # An opaque handle.
_Facts = TypeVar("_Facts")

_HERE = pathlib.Path(__file__).resolve().parent
_CHECKOUT = _HERE.joinpath("../../..").resolve()  # Of client/python/hoist.
_BUILD = "cmake --preset release && cmake --build --preset release " \
    "--target hoist_client"


def _folders() -> Iterator[str]:
    """The folders to search, nearest to this package first."""
    yield str(_HERE)  # The wheel carries it.
    build = os.environ.get("HOIST_BUILD_DIR")
    if build:
        yield os.path.join(build, "client")
    # An unpacked package: <prefix>/.../python/hoist beside <prefix>/lib.
    for up in _HERE.parents[:4]:
        for lib in ("lib", "lib/x86_64-linux-gnu", "lib64"):
            yield str(up / lib)
    yield from sorted(glob.glob(str(_CHECKOUT / "build" / "*" / "client")),
                      key=_age)


def _age(folder: str) -> tuple[bool, float]:
    """Sanitizer builds cannot be loaded into Python, and come last."""
    path = pathlib.Path(folder)
    library = path / _NAME
    changed = library.stat().st_mtime if library.exists() else 0.0
    return path.parent.name in ("asan", "tsan"), -changed


def library_path() -> str:
    """The path of libhoist: $HOIST_LIBRARY, or the nearest one."""
    given = os.environ.get("HOIST_LIBRARY")
    if given:
        return given
    for folder in _folders():
        path = os.path.join(folder, _NAME)
        if os.path.exists(path):
            return path
    return _NAME  # By the dynamic linker's search path.


def how_to_build() -> str:
    """The remedy if there is no libhoist."""
    if not (_CHECKOUT / "CMakePresets.json").exists():
        return f"set HOIST_LIBRARY to the path of {_NAME}"
    return (f'run "{_BUILD}" in {_CHECKOUT} (scripts/quickstart.sh does that '
            f"too), or set HOIST_LIBRARY to the path of {_NAME}")


def _cannot_load(path: str, error: OSError) -> ImportError:
    if path != _NAME:
        return ImportError(f"cannot load libhoist from {path} ({error}); set "
                           f"HOIST_LIBRARY to the path of another {_NAME}")
    return ImportError(
        f"no libhoist for the package in {_HERE}: looked for {_NAME} there, "
        f"in $HOIST_BUILD_DIR/client, in lib beside it or above, in "
        f"{_CHECKOUT}/build/*/client and where the linker looks ({error}); "
        f"{how_to_build()}. If hoist-client is installed, Python finds it "
        f"from another folder than {_HERE.parent}")


@functools.lru_cache(maxsize=None)
def load() -> c.CDLL:
    """libhoist. ImportError lists the searched paths."""
    path = library_path()
    try:
        lib = c.CDLL(path)
    except OSError as error:
        raise _cannot_load(path, error) from error
    for name, (result, arguments) in _c.CALLS.items():
        with contextlib.suppress(AttributeError):  # An older one lacks some.
            function = getattr(lib, "hoist_" + name)
            function.restype = result
            function.argtypes = arguments
    return lib


def call(name: str, *arguments: Any) -> None:
    """Calls hoist_<name>; raises the typed error on failure."""
    error = _P()
    code = getattr(load(), "hoist_" + name)(*arguments, c.byref(error))
    if code:
        fail(code, error)


def make(name: str, end: str, *arguments: Any) -> c.c_void_p:
    """Returns the object that hoist_<name> makes, its last argument.
    hoist_<end> ends it on an exception: Ctrl-C, which Python raises as soon as
    a blocking call returns."""
    handle = c.c_void_p()
    try:
        call(name, *arguments, c.byref(handle))
    except BaseException:
        if handle:
            ask(end, handle)
        raise
    return handle


def fail(code: int, error: c.c_void_p) -> NoReturn:
    """Raises the error that a call returned, and frees it."""
    lib = load()
    message = lib.hoist_error_message(error).decode(errors="replace")
    lib.hoist_error_free(error)
    raise BY_CODE.get(code, UnknownError)(message)


def ask(name: str, *arguments: Any) -> Any:
    """Calls a hoist_<name> that cannot fail."""
    return getattr(load(), "hoist_" + name)(*arguments)


def described(kind: type[_Facts], record: type[c.Structure], name: str,
          *arguments: Any) -> _Facts:
    """The dataclass `kind`, whose fields are those of the record that
    hoist_<name> fills, its last argument."""
    filled = sized(record)
    call(name, *arguments, c.byref(filled))
    fields = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        value = getattr(filled, field.name)
        fields[field.name] = bool(value) if field.type == "bool" else value
    return kind(**fields)


class Owner:
    """Owns an object of libhoist, which ends with the last reference at the
    latest. Its handle is then that of nothing, which libhoist refuses."""

    _handle: c.c_void_p
    _free: Any = None  # None: there is none, or it has ended.

    def _own(self, handle: c.c_void_p, free: str) -> None:
        """hoist_<free> ends it."""
        self._handle = handle
        # Looked up now: a late end may find this module gone.
        self._free = getattr(load(), "hoist_" + free)

    def _dispose(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            handle, self._handle = self._handle, c.c_void_p()
            free(handle)

    def __del__(self) -> None:
        self._dispose()


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """In the block, calls of this thread raise DeadlineExceeded if hoistd is
    silent for this long, whatever their deadline."""
    before = ask("set_patience", milliseconds(seconds))
    try:
        yield
    finally:
        ask("set_patience", before)


def library_version() -> str:
    """libhoist's version, "0.1.0"; also `hoist.__version__`."""
    version: bytes = ask("version")
    return version.decode()


def sized(kind: type[c.Structure]) -> Any:
    value = kind()
    value.struct_size = c.sizeof(kind)
    return value


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def choice(table: Mapping[Any, int], what: str, value: Any) -> int:
    if value not in table:
        known = ", ".join(repr(name) for name in table)
        raise InvalidArgument(f"{what}={value!r} is none of {known}")
    return table[value]


def text(value: str | os.PathLike[str]) -> bytes:
    """Bytes for a C string; a NUL inside would truncate it."""
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"{value!r} holds a NUL character")
    return encoded


class Texts:
    """C strings, end to end: a model may have ten thousand names.

    addresses: of each, as long as this lives. pointers: an array of them.
    """

    def __init__(self, values: Sequence[str]) -> None:
        encoded = os.fsencode("\0".join([*values, ""]))
        sizes = [len(one) + 1 for one in encoded.split(b"\0")]
        if len(sizes) != len(values) + 1:
            for value in values:
                text(value)
        self._characters = c.create_string_buffer(encoded, len(encoded) + 1)
        begin = c.addressof(self._characters)
        self.addresses = list(itertools.accumulate(
            sizes, initial=begin))[:len(values)]
        self.pointers = (c.c_void_p * len(values))(*self.addresses)
