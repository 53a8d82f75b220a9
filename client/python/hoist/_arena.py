"""Host memory that only this worker maps and writes."""

from __future__ import annotations

import ctypes as c
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _c
from . import _library as lib
from ._library import Owner, call, described, make, milliseconds, sized

if TYPE_CHECKING:
    from ._session import Session


class Block(NamedTuple):
    """A part of an arena: its address, for this process and for the device, and
    its bytes, at least as many as requested."""

    address: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class ArenaStats:
    """See hoist_arena_stats; bytes, taken blocks, takes so far."""

    bytes: int
    used_bytes: int
    peak_used_bytes: int
    largest_free_bytes: int
    pinned_bytes: int
    blocks: int
    takes: int
    waits: int


class Arena(Owner):
    """hoistd's host memory, private to this process. Its blocks are taken and
    given in stream order; see hoist/c/arena.h.

    nbytes: rounded up to 2 MiB; zeroed. device: hoistd's number of the device
        whose copies reach it. deadline: seconds for hoistd to find room.

    A stream is a raw cudaStream_t as an int; 0 is the default stream. Emulated
    devices ignore it: the CPU's work is done when its call returns. Any thread
    may call. In the child of a fork it raises FailedPrecondition.

    ResourceExhausted: there is no room; the text says how much would be enough.
    Unimplemented: this hoistd has no memory for arenas.
    """

    def __init__(self, session: Session, nbytes: int, *, device: int = 0,
                 deadline: float = 60.0) -> None:
        self._session = session
        options = sized(_c.ArenaOptions)
        options.device = device
        options.bytes = nbytes
        options.deadline_ms = milliseconds(deadline)
        self._own(make("arena_open", "arena_close", session._handle,
                       c.byref(options)), "arena_close")
        library = lib.load()
        # Looked up once: layers make these calls for each tensor.
        self._take: Any = library.hoist_arena_take
        self._give: Any = library.hoist_arena_give

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, nbytes: int, stream: int = 0) -> Block:
        """Later work on the stream may use the block, until it is given. The
        call neither waits nor sends a message. After a last use on another
        stream, the stream waits for that use.

        ResourceExhausted: there is no contiguous room. Unavailable: hoistd told
        the session to end. FailedPrecondition: the stream is being captured
        into a graph, or the session was closed here.
        """
        block, error = _c.ArenaBlock(), c.c_void_p()
        code = self._take(self._handle, nbytes, stream, c.byref(block),
                          c.byref(error))
        if code:
            lib.fail(code, error)
        return Block(block.address, block.bytes)

    def give(self, block: Block, stream: int = 0) -> None:
        """The block's last use is the stream's work so far.

        InvalidArgument: the block is not this arena's, or was already given.
        """
        error = c.c_void_p()
        code = self._give(self._handle, block.address, stream, c.byref(error))
        if code:
            lib.fail(code, error)

    @property
    def stats(self) -> ArenaStats:
        """The blocks that are taken now, and the takes so far."""
        return described(ArenaStats, _c.ArenaStats, "arena_get_stats", self._handle)

    def close(self) -> None:
        """Waits for the last uses of given blocks, then returns the memory. All
        other blocks must be unused. Idempotent."""
        self._dispose()
