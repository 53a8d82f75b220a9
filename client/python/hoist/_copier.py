"""Copies that this process makes itself, in turns of a device's link."""

from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
from typing import Any, Iterator

from . import _library as lib
from ._errors import FailedPrecondition
from ._library import call, sized
from ._plan import Stream, _handle, check_terms
from ._session import Session

# The most that is begun at once; see hoist_c.h.
PIECE_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True)
class CopierStats:
    """What a copier has done so far; see hoist_copier_stats."""

    granted_bytes: int
    ungranted_bytes: int
    to_host_bytes: int
    wake_ups: int
    grants: bool  # Copies are granted now.


class Copier:
    """Turns of a device's link for copies that this process makes itself.

    What is copied to the device under it is shared fairly with plans and other
    copiers (`hoistctl status` counts it); what is copied from the device is
    counted. No call sends a message, and on a GPU none waits: the stream does.
    Streams are a torch.cuda.Stream, a handle, or None for the default stream;
    on an emulated device they are ignored, and calls return when what they
    stand for is done. Any thread may use it. A stream that is being captured is
    refused with FailedPrecondition; so is every call in the child of a fork.

    session: lives on while this does, unless it is closed.
    device: its index.
    weight, priority, max_bytes_per_second: as a plan's.

    ResourceExhausted: the session has 8 already, or its user 256.
    Unimplemented: this hoistd grants nothing.
    """

    def __init__(self, session: Session, *, device: int = 0, weight: int = 1,
                 priority: int = 0, max_bytes_per_second: int = 0) -> None:
        self._free: Any = None
        check_terms({"weight": weight, "priority": priority,
                     "max_bytes_per_second": max_bytes_per_second})
        options = sized(lib.CopierOptions)
        options.device = device
        options.weight = weight
        options.priority = priority
        options.max_bytes_per_second = max_bytes_per_second
        handle = c.c_void_p()
        call("copier_open", session._handle, c.byref(options), c.byref(handle))
        self._handle = handle
        self._free = lib.load().hoist_copier_free

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets through what waits for grants; where something does, waits for
        the GPU. Again: nothing happens."""
        free, self._free = getattr(self, "_free", None), None
        if free is not None:
            handle, self._handle = self._handle, c.c_void_p()
            free(handle)

    def _open(self) -> c.c_void_p:
        if self._free is None:
            raise FailedPrecondition("the copier is closed; open a new one")
        return self._handle

    def to_device(self, to: int, source: int, nbytes: int,
                  stream: Stream = None) -> None:
        """Puts a copy on the stream, in pieces, each of which waits there for
        its grant.

        to, source: addresses, on the device and on the host. Both stay as they
            are until the stream has come so far.
        """
        call("copier_to_device", self._open(), to, source, nbytes,
             _handle(stream))

    def to_host(self, to: int, source: int, nbytes: int,
                stream: Stream = None) -> None:
        """The other way. Waits for no grant."""
        call("copier_to_host", self._open(), to, source, nbytes,
             _handle(stream))

    @contextlib.contextmanager
    def turn(self, nbytes: int, stream: Stream = None) -> Iterator[None]:
        """For a block that puts copies of so many bytes to the device on the
        stream.

        InvalidArgument: more than PIECE_BYTES.
        """
        handle = _handle(stream)
        call("copier_begin", self._open(), nbytes, handle)
        try:
            yield
        finally:
            call("copier_end", self._open(), nbytes, handle)

    def add_to_host(self, nbytes: int) -> None:
        """Counts what others copy from the device."""
        call("copier_add_to_host", self._open(), nbytes)

    @property
    def stats(self) -> CopierStats:
        """A snapshot."""
        record = sized(lib.CopierStatsRecord)
        call("copier_get_stats", self._open(), c.byref(record))
        return CopierStats(record.granted_bytes, record.ungranted_bytes,
                           record.to_host_bytes, record.wake_ups,
                           bool(record.grants))
