"""Finds libhoist, and declares the part of hoist_c.h that is used here."""

from __future__ import annotations

import contextlib
import ctypes as c
import functools
import glob
import os
import pathlib
from typing import Any, Iterator, Mapping, NoReturn

from ._errors import BY_CODE, InvalidArgument, UnknownError

_NAME = "libhoist.so.0"

READERS = {None: 0, "owner": 1, "everyone": 2}


class ConnectOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("socket_path", c.c_char_p),
                ("client_name", c.c_char_p),
                ("device_budget_bytes", c.c_uint64),
                ("connect_deadline_ms", c.c_uint64),
                ("call_deadline_ms", c.c_uint64)]


class DeviceInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("index", c.c_uint32),
                ("kind", c.c_int), ("name", c.c_char_p),
                ("uuid", c.c_uint8 * 16), ("pool_bytes", c.c_uint64)]


class GroupSpec(c.Structure):
    _fields_ = [("name", c.c_char_p), ("tensors", c.POINTER(c.c_char_p)),
                ("tensor_count", c.c_size_t)]


class JoinedPart(c.Structure):
    _fields_ = [("tensor", c.c_char_p), ("offset_bytes", c.c_uint64),
                ("size_bytes", c.c_uint64), ("count", c.c_uint64),
                ("stride_bytes", c.c_uint64)]


class JoinedTensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("rank", c.c_int),
                ("shape", c.POINTER(c.c_int64)),
                ("parts", c.POINTER(JoinedPart)), ("part_count", c.c_size_t)]


class RegisterOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p),
                ("path", c.c_char_p), ("grouping", c.c_int),
                ("groups", c.POINTER(GroupSpec)), ("group_count", c.c_size_t),
                ("readers", c.c_int), ("joined", c.POINTER(JoinedTensor)),
                ("joined_count", c.c_size_t)]


class PublishTensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("dtype", c.c_int), ("rank", c.c_int),
                ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("data", c.c_void_p)]


class PublishOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("model", c.c_char_p),
                ("group", c.c_char_p), ("tensors", c.POINTER(PublishTensor)),
                ("tensor_count", c.c_size_t), ("readers", c.c_int),
                ("deadline_ms", c.c_uint64), ("on_device", c.c_int),
                ("device", c.c_uint32), ("of_session", c.c_int),
                ("content", c.c_char_p)]


class GroupInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p),
                ("image_bytes", c.c_uint64), ("tensor_count", c.c_uint32),
                ("content", c.POINTER(c.c_uint8))]


class TensorRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("name", c.c_char_p),
                ("dtype", c.c_int), ("rank", c.c_int),
                ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)),
                ("offset_bytes", c.c_uint64), ("size_bytes", c.c_uint64),
                ("data", c.c_void_p)]


class PlanOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("device", c.c_uint32),
                ("budget_bytes", c.c_uint64), ("order", c.POINTER(c.c_uint32)),
                ("order_length", c.c_size_t), ("deadline_ms", c.c_uint64),
                ("stage_deadline_ms", c.c_uint64), ("weight", c.c_uint32),
                ("priority", c.c_int32),
                ("max_bytes_per_second", c.c_uint64), ("learn", c.c_int)]


class PlanInfoRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("id", c.c_uint64),
                ("device", c.c_uint32), ("budget_bytes", c.c_uint64),
                ("resident_bytes", c.c_uint64), ("ring_bytes", c.c_uint64),
                ("streamed_bytes", c.c_uint64), ("group_count", c.c_uint32),
                ("streamed_count", c.c_uint32), ("lead", c.c_uint32),
                ("learning", c.c_int), ("generation", c.c_uint64)]


class PlanStatsRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("stages", c.c_uint64),
                ("resident_stages", c.c_uint64), ("ready_stages", c.c_uint64),
                ("skipped", c.c_uint64), ("unplanned", c.c_uint64),
                ("host_waits", c.c_uint64), ("wake_ups", c.c_uint64)]


class InPlaceTensorRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t),
                ("groups", c.POINTER(c.c_uint32)),
                ("group_count", c.c_size_t), ("units", c.c_uint32),
                ("first_count", c.c_uint64)]


class InPlaceOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("device", c.c_uint32),
                ("hot_budget_bytes", c.c_uint64), ("deadline_ms", c.c_uint64),
                ("counts", c.c_void_p), ("count_length", c.c_uint64)]


class CopierOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("device", c.c_uint32),
                ("weight", c.c_uint32), ("priority", c.c_int32),
                ("max_bytes_per_second", c.c_uint64)]


class CopierStatsRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("granted_bytes", c.c_uint64),
                ("ungranted_bytes", c.c_uint64),
                ("to_host_bytes", c.c_uint64), ("wake_ups", c.c_uint64),
                ("grants", c.c_int)]


class ArenaOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("device", c.c_uint32),
                ("bytes", c.c_uint64), ("deadline_ms", c.c_uint64)]


class ArenaBlock(c.Structure):
    _fields_ = [("address", c.c_void_p), ("bytes", c.c_uint64)]


class ArenaStatsRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("bytes", c.c_uint64),
                ("used_bytes", c.c_uint64), ("peak_used_bytes", c.c_uint64),
                ("largest_free_bytes", c.c_uint64),
                ("pinned_bytes", c.c_uint64), ("blocks", c.c_uint64),
                ("takes", c.c_uint64), ("waits", c.c_uint64)]


class InPlaceStatsRecord(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("bytes", c.c_uint64),
                ("hot_budget_bytes", c.c_uint64), ("hot_bytes", c.c_uint64),
                ("piece_count", c.c_uint32), ("hot_piece_count", c.c_uint32),
                ("moves", c.c_uint64), ("touched_hot_bytes", c.c_uint64),
                ("touched_cold_bytes", c.c_uint64)]


_P = c.c_void_p  # An opaque handle.
_U32P = c.POINTER(c.c_uint32)

# Name -> (result, arguments). A result of None as first element marks a call
# that returns a code and fills a last argument hoist_error**.
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "connect": (None, [c.POINTER(ConnectOptions), c.POINTER(_P)]),
    "session_check": (None, [_P]),
    "session_device": (None, [_P, c.c_size_t, c.POINTER(DeviceInfo)]),
    "register_model": (None, [_P, c.POINTER(RegisterOptions), c.POINTER(_P)]),
    "describe_model": (None, [_P, c.c_char_p, c.POINTER(_P)]),
    "find_content": (None, [_P, c.c_char_p, c.POINTER(_P)]),
    "forget_model": (None, [_P, _P]),
    "publish_group": (None, [_P, c.POINTER(PublishOptions), c.POINTER(_P)]),
    "model_group": (None, [_P, c.c_uint32, c.POINTER(GroupInfo)]),
    "model_tensor": (None,
                     [_P, c.c_uint32, c.c_uint32, c.POINTER(TensorRecord)]),
    "stage": (None, [_P, _P, c.c_uint32, c.c_uint32, c.c_uint64,
                     c.POINTER(_P)]),
    "lease_release": (None, [_P]),
    "lease_check": (None, [_P]),
    "lease_tensor": (None, [_P, c.c_uint32, c.POINTER(TensorRecord)]),
    "lease_find_tensor": (None, [_P, c.c_char_p, c.POINTER(TensorRecord)]),
    "prefetch": (None, [_P, _P, _U32P, c.c_size_t, c.c_int, c.c_uint32]),
    "arena_open": (None, [_P, c.POINTER(ArenaOptions), c.POINTER(_P)]),
    "arena_take": (None, [_P, c.c_uint64, _P, c.POINTER(ArenaBlock)]),
    "arena_give": (None, [_P, _P, _P]),
    "arena_get_stats": (None, [_P, c.POINTER(ArenaStatsRecord)]),
    "host_image_create": (None, [_P, _P, c.c_uint32, c.POINTER(_P)]),
    "host_image_load": (None, [_P, c.c_uint64]),
    "host_image_move": (None, [_P, _P, _P, c.c_uint32]),
    "done_with_model": (None, [_P, _P]),
    "set_order": (None, [_P, _P, _U32P, c.c_size_t]),
    "set_plan": (None, [_P, _P, c.POINTER(PlanOptions), c.POINTER(_P)]),
    "plan_stage": (None, [_P, c.c_uint32, _P, c.POINTER(_P)]),
    "plan_done": (None, [_P, c.c_uint32, _P]),
    "plan_check": (None, [_P]),
    "plan_end_pass": (None, [_P, c.POINTER(c.c_int)]),
    "plan_set_budget": (None, [_P, c.c_uint64]),
    "plan_set_order": (None, [_P, _U32P, c.c_size_t]),
    "plan_describe": (None, [_P, c.POINTER(PlanInfoRecord)]),
    "plan_group_kind": (None, [_P, c.c_uint32, c.POINTER(c.c_int)]),
    "plan_tensor": (None, [_P, c.c_uint32, c.c_uint32,
                           c.POINTER(TensorRecord)]),
    "plan_get_stats": (None, [_P, c.POINTER(PlanStatsRecord)]),
    "copier_open": (None, [_P, c.POINTER(CopierOptions), c.POINTER(_P)]),
    "copier_to_device": (None, [_P, _P, _P, c.c_uint64, _P]),
    "copier_to_host": (None, [_P, _P, _P, c.c_uint64, _P]),
    "copier_begin": (None, [_P, c.c_uint64, _P]),
    "copier_end": (None, [_P, c.c_uint64, _P]),
    "copier_add_to_host": (None, [_P, c.c_uint64]),
    "copier_get_stats": (None, [_P, c.POINTER(CopierStatsRecord)]),
    "berth_create": (None, [_P, _P, _U32P, c.c_size_t, c.c_uint32,
                            c.POINTER(_P)]),
    "berth_fill": (None, [_P, _P, _P, _U32P, c.c_size_t, c.c_uint64]),
    "berth_empty": (None, [_P]),
    "berth_address": (None, [_P, c.c_size_t, c.POINTER(_P)]),
    "session_has_in_place": (None, [_P]),
    "in_place_create": (None, [_P, _P, c.POINTER(InPlaceTensorRecord),
                               c.c_size_t, c.POINTER(InPlaceOptions),
                               c.POINTER(_P)]),
    "in_place_address": (None, [_P, c.c_size_t, c.POINTER(_P)]),
    "in_place_begin": (None, [_P, _P]),
    "in_place_end": (None, [_P]),
    "in_place_touch": (None, [_P, c.c_size_t, _U32P, _U32P, c.c_size_t]),
    "in_place_advance": (None, [_P, c.c_int]),
    "in_place_set_budget": (None, [_P, c.c_uint64]),
    "in_place_check": (None, [_P]),
    "in_place_get_stats": (None, [_P, c.POINTER(InPlaceStatsRecord)]),
}
_PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "error_message": (c.c_char_p, [_P]),
    "error_free": (None, [_P]),
    "version": (c.c_char_p, []),
    "set_patience": (c.c_uint64, [c.c_uint64]),
    "session_close": (None, [_P]),
    "session_free": (None, [_P]),
    "session_id": (c.c_uint64, [_P]),
    "session_daemon_version": (c.c_char_p, [_P]),
    "session_device_count": (c.c_size_t, [_P]),
    "dtype_name": (c.c_char_p, [c.c_int]),
    "dtype_bits": (c.c_int, [c.c_int]),
    "model_free": (None, [_P]),
    "model_id": (c.c_uint64, [_P]),
    "model_name": (c.c_char_p, [_P]),
    "model_fingerprint": (c.POINTER(c.c_uint8), [_P]),
    "model_owner": (c.c_uint32, [_P]),
    "model_owner_tenant": (c.c_char_p, [_P]),
    "model_readers": (c.c_int, [_P]),
    "model_image_bytes": (c.c_uint64, [_P]),
    "model_is_published": (c.c_int, [_P]),
    "model_group_count": (c.c_uint32, [_P]),
    "lease_free": (None, [_P]),
    "plan_free": (None, [_P]),
    "copier_free": (None, [_P]),
    "berth_free": (None, [_P]),
    "in_place_free": (None, [_P]),
    "arena_close": (None, [_P]),
    "in_place_pending": (c.c_uint32, [_P]),
    "host_image_free": (None, [_P]),
    "host_image_drop": (None, [_P]),
    "host_image_is_loaded": (c.c_int, [_P]),
    "host_image_data": (_P, [_P]),
    "host_image_bytes": (c.c_uint64, [_P]),
    "lease_data": (_P, [_P]),
    "lease_bytes": (c.c_uint64, [_P]),
    "lease_id": (c.c_uint64, [_P]),
    "lease_device": (c.c_uint32, [_P]),
    "lease_device_kind": (c.c_int, [_P]),
    "lease_was_resident": (c.c_int, [_P]),
    "lease_tensor_count": (c.c_uint32, [_P]),
}


_HERE = pathlib.Path(__file__).resolve().parent
_CHECKOUT = _HERE.joinpath("../../..").resolve()  # Of client/python/hoist.
_BUILD = "cmake --preset release && cmake --build --preset release " \
    "--target hoist_client"


def _folders() -> Iterator[str]:
    """Where to look, in order: what is nearest to this package first."""
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
    """Builds with a sanitizer load into no Python, and come last."""
    path = pathlib.Path(folder)
    library = path / _NAME
    changed = library.stat().st_mtime if library.exists() else 0.0
    return path.parent.name in ("asan", "tsan"), -changed


def library_path() -> str:
    """The libhoist that is loaded: $HOIST_LIBRARY, or the nearest one."""
    given = os.environ.get("HOIST_LIBRARY")
    if given:
        return given
    for folder in _folders():
        path = os.path.join(folder, _NAME)
        if os.path.exists(path):
            return path
    return _NAME  # The dynamic linker's own search.


def how_to_build() -> str:
    """What would do where there is no libhoist."""
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
    """libhoist. ImportError says where it was looked for."""
    path = library_path()
    try:
        lib = c.CDLL(path)
    except OSError as error:
        raise _cannot_load(path, error) from error
    for name, (_, arguments) in _CALLS.items():
        function = getattr(lib, "hoist_" + name)
        function.restype = c.c_int
        function.argtypes = [*arguments, c.POINTER(_P)]
    for name, (result, arguments) in _PLAIN.items():
        function = getattr(lib, "hoist_" + name)
        function.restype = result
        function.argtypes = arguments
    return lib


def call(name: str, *arguments: Any) -> None:
    """Calls hoist_<name>; raises the typed error if it fails."""
    error = _P()
    code = getattr(load(), "hoist_" + name)(*arguments, c.byref(error))
    if code:
        fail(code, error)


def make(name: str, end: str, *arguments: Any) -> c.c_void_p:
    """What hoist_<name> makes, its last argument. hoist_<end> ends it if an
    exception comes with it: Ctrl-C, which Python raises as soon as a call that
    waited is over."""
    handle = c.c_void_p()
    try:
        call(name, *arguments, c.byref(handle))
    except BaseException:
        if handle:
            ask(end, handle)
        raise
    return handle


def fail(code: int, error: c.c_void_p) -> NoReturn:
    """Raises what a call has returned, and frees it."""
    lib = load()
    message = lib.hoist_error_message(error).decode(errors="replace")
    lib.hoist_error_free(error)
    raise BY_CODE.get(code, UnknownError)(message)


def ask(name: str, *arguments: Any) -> Any:
    """Calls a hoist_<name> that cannot fail."""
    return getattr(load(), "hoist_" + name)(*arguments)


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """For the block, calls of this thread raise DeadlineExceeded where hoistd
    gives no sign of life for so long, whatever their deadline."""
    before = ask("set_patience", milliseconds(seconds))
    try:
        yield
    finally:
        ask("set_patience", before)


def library_version() -> str:
    """libhoist's own, "0.1.0"; also `hoist.__version__`."""
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
    """For a C string; a NUL inside would cut it short there."""
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"{value!r} holds a NUL character")
    return encoded
