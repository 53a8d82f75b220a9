"""Host memory that this worker alone has, and writes to."""

from __future__ import annotations

import ctypes as c
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from . import _library as lib
from ._library import call, milliseconds, sized

if TYPE_CHECKING:
    from ._session import Session


class Block(NamedTuple):
    """A part of an arena: its address, for this process and for the device, and
    its bytes, no less than were asked for."""

    address: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class ArenaStats:
    """See hoist_arena_stats; bytes, blocks that are taken, takes so far."""

    bytes: int
    used_bytes: int
    peak_used_bytes: int
    largest_free_bytes: int
    pinned_bytes: int
    blocks: int
    takes: int
    waits: int


class Arena:
    """Host memory of hoistd's that no other process has, of which blocks are
    taken and given in the order of streams; see hoist/c/arena.h.

    nbytes: rounded up to 2 MiB; zeroed. device: hoistd's number of the one whose
        copies reach it. deadline: seconds for hoistd to find room.

    A stream is a raw cudaStream_t as an int, 0 the default one; on an emulated
    device it means nothing: what the CPU does is done when it returns. Any thread
    may call. In the child of a fork it raises FailedPrecondition.

    ResourceExhausted: there is no room, and how much would do. Unimplemented:
    this hoistd has no memory for arenas.
    """

    def __init__(self, session: Session, nbytes: int, *, device: int = 0,
                 deadline: float = 60.0) -> None:
        self._session = session
        options = sized(lib.ArenaOptions)
        options.device = device
        options.bytes = nbytes
        options.deadline_ms = milliseconds(deadline)
        handle = c.c_void_p()
        call("arena_open", session._handle, c.byref(options), c.byref(handle))
        self._handle = handle
        library = lib.load()
        self._close = library.hoist_arena_close
        # Looked up once: a layer calls these for each of its tensors.
        self._take = library.hoist_arena_take
        self._give = library.hoist_arena_give

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Arena:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, nbytes: int, stream: int = 0) -> Block:
        """What is put on the stream from now on may use the block, until it is
        given. Waits for nothing, and asks nobody: where its last use was on
        another stream, the stream is made to wait for that.

        ResourceExhausted: there is no room in one piece. Unavailable: hoistd has
        told the session to end. FailedPrecondition: the stream is being captured
        into a graph, or the session was closed here.
        """
        block, error = lib.ArenaBlock(), c.c_void_p()
        code = self._take(self._handle, nbytes, stream, c.byref(block),
                          c.byref(error))
        if code:
            lib.fail(code, error)
        return Block(block.address, block.bytes)

    def give(self, block: Block, stream: int = 0) -> None:
        """What was put on the stream before is the block's last use.

        InvalidArgument: it is none of this arena's, or was given.
        """
        error = c.c_void_p()
        code = self._give(self._handle, block.address, stream, c.byref(error))
        if code:
            lib.fail(code, error)

    @property
    def stats(self) -> ArenaStats:
        """What is taken now, and was so far."""
        record = sized(lib.ArenaStatsRecord)
        call("arena_get_stats", self._handle, c.byref(record))
        return ArenaStats(**{field.name: getattr(record, field.name)
                             for field in dataclasses.fields(ArenaStats)})

    def close(self) -> None:
        """Gives the memory back, once what was given is not used any more;
        nothing uses other blocks. Again: nothing happens."""
        close, self._close = getattr(self, "_close", None), None
        if close is not None:
            handle, self._handle = self._handle, c.c_void_p()
            close(handle)
