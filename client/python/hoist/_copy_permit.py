"""This process's own copies, which take turns on a device's link."""

from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
from typing import Iterator

from . import _c
from ._errors import FailedPrecondition
from ._library import Owner, call, described, make, sized
from ._hot import Stream, handle_of
from ._plan import check_terms
from ._session import Session

# The maximum of one begin; see hoist/c/copy_permit.h.
PIECE_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True)
class PermitStats:
    """A permit's counts so far; see hoist_copy_permit_stats."""

    granted_bytes: int
    ungranted_bytes: int
    to_host_bytes: int
    wake_ups: int
    grants: bool  # Copies are granted now.


class CopyPermit(Owner):
    """Turns on a device's link for this process's own copies.

    Copies to the device share the link fairly with plans and other permits
    (`hoistctl status` counts them); copies from the device are only counted. No
    call sends a message. On a GPU no call waits: the stream does. A stream is a
    torch.cuda.Stream, a handle, or None for the default stream. Emulated
    devices ignore it; calls then return when their work is done. Any thread may
    use a permit. FailedPrecondition: the stream is being captured, or the
    process is the child of a fork.

    session: stays open while the permit does, unless it is closed.
    device: its index.
    weight, priority, max_bytes_per_second: as a plan's.

    ResourceExhausted: the session already has 8 permits, or its user 256.
    Unimplemented: this hoistd grants no permits.
    """

    def __init__(self, session: Session, *, device: int = 0, weight: int = 1,
                 priority: int = 0, max_bytes_per_second: int = 0) -> None:
        check_terms({"weight": weight, "priority": priority,
                     "max_bytes_per_second": max_bytes_per_second})
        options = sized(_c.CopyPermitOptions)
        options.device = device
        options.weight = weight
        options.priority = priority
        options.max_bytes_per_second = max_bytes_per_second
        self._own(make("copy_permit_open", "copy_permit_free", session._handle,
                       c.byref(options)), "copy_permit_free")

    def __enter__(self) -> CopyPermit:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets pending copies proceed without grants; if there are any, waits
        for the GPU. Idempotent."""
        self._dispose()

    def _open(self) -> c.c_void_p:
        if self._free is None:
            raise FailedPrecondition("the permit is closed; open a new one")
        return self._handle

    def to_device(self, to: int, source: int, nbytes: int,
                  stream: Stream = None) -> None:
        """Puts a copy on the stream, in pieces, each of which waits there for
        its grant.

        to, source: device and host address. Both ranges must stay
            valid and unchanged until the stream has passed the copy.
        """
        call("copy_permit_to_device", self._open(), to, source, nbytes,
             handle_of(stream))

    def to_host(self, to: int, source: int, nbytes: int,
                stream: Stream = None) -> None:
        """The reverse copy. Waits for no grant."""
        call("copy_permit_to_host", self._open(), to, source, nbytes,
             handle_of(stream))

    @contextlib.contextmanager
    def turn(self, nbytes: int, stream: Stream = None) -> Iterator[None]:
        """Grants a block its copies of nbytes to the device, on the stream.

        InvalidArgument: more than PIECE_BYTES.
        """
        handle = handle_of(stream)
        call("copy_permit_begin", self._open(), nbytes, handle)
        try:
            yield
        finally:
            call("copy_permit_end", self._open(), nbytes, handle)

    def add_to_host(self, nbytes: int) -> None:
        """Counts copies from the device that others make."""
        call("copy_permit_add_to_host", self._open(), nbytes)

    @property
    def stats(self) -> PermitStats:
        """A snapshot."""
        return described(PermitStats, _c.CopyPermitStats, "copy_permit_get_stats",
                     self._open())
