"""The agent: one actor per node, between Ray and the node's hoistd."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import threading
from typing import Any, Iterator

import ray
from ray.exceptions import RayError

from .. import _session
from .._errors import (FailedPrecondition, HoistError, InvalidArgument,
                       NotFound, Unavailable)
from .._model import Model
from .._publish import model_content
from .._registration import Groups
from ._ctl import Ctl
from ._image import GroupHead, raw_tensors
from ._source import (FileReader, GroupSource, Held, HeldReader,
                      IterableReader, Keep, KeptFiles, ModelReader, Reader,
                      forget_left, published_heads)

_KNOWN_SOURCES = 64  # Sources whose heads are remembered.


@dataclasses.dataclass
class _Reading:
    """A load's reader on this node."""

    reader: Reader
    files: bytes | None  # Model.fingerprint, if it reads files.
    heads: list[GroupHead] = dataclasses.field(default_factory=list)
    # Held while Ray copies the reader's buffer, which close() would free.
    busy: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Agent:
    """Serves other nodes' requests to this node's hoistd.

    It keeps the models that came through it in use, so hoistd does not evict
    them, until they are forgotten. For each running call it holds one group's
    buffer (mapped in Ray's object store) and one image (libhoist's memfd); it
    also holds the heads of 64 sources that it has read.

    Threads: any; Ray gives it a few.
    """

    def __init__(self, node: str, socket: str | None,
                 ctl: str | None) -> None:
        self._node = node
        self._socket = socket or os.environ.get("HOIST_SOCKET") or None
        self._ctl = Ctl(ctl, self._socket)
        self._lock = threading.Lock()
        self._held: dict[str, Model] = {}
        self._kept: dict[str, KeptFiles] = {}
        self._readings: dict[str, _Reading] = {}
        self._known: collections.OrderedDict[bytes, list[GroupHead]] = (
            collections.OrderedDict())
        self._session = _session.connect(
            self._socket, name="hoist.ray", connect_deadline=10)
        forget_left(self._session)

    def _here(self) -> _session.Session:
        """A live session; after a restart of hoistd a new one, in which the
        kept files are registered again."""
        with self._lock:
            before, self._session = self._session, self._session.reconnect()
            session = self._session
            if session is before:
                return session
            self._held.clear()
            kept = dict(self._kept)
        for name, files in kept.items():
            with contextlib.suppress(HoistError):
                model = files.register_again(session, name)
                if model is not None:
                    self._hold(name, model)
        return session

    def _hold(self, name: str, model: Model) -> None:
        with self._lock:
            self._held[name] = model

    def ready(self) -> dict[str, Any]:
        """Identifies the agent."""
        session = self._here()
        return {"node": self._node, "pid": os.getpid(),
                "version": session.daemon_version}

    # --- Inventory.

    def contents(self, model: str) -> dict[str, bytes]:
        """Content by group of a model; {}: there is none. FailedPrecondition:
        the model is read from files, which this agent has not read
        completely."""
        session = self._here()
        try:
            found = session.model(model)
        except NotFound:
            return {}
        try:
            return {head.name: head.content for head in self._heads(found)}
        finally:
            self._release(session, found)

    def _release(self, session: _session.Session, model: Model) -> None:
        """Releases a model that this agent has only inspected."""
        with self._lock:
            held = self._held.get(model.name)
        if held is None or held.id != model.id:
            with contextlib.suppress(HoistError):
                session.done_with(model)

    def _heads(self, model: Model) -> list[GroupHead]:
        if model.published:
            return published_heads(model)
        with self._lock:
            known = self._known.get(model.fingerprint)
        if known is None:
            raise FailedPrecondition(
                f'model "{model.name}" is read from files on node '
                f"{self._node}, and no load has read their headers yet; load "
                "it there with from_files=True, or choose another name")
        return known

    def models(self) -> list[dict[str, Any]]:
        """As `hoistctl models` reports; `content`: 32 bytes, for models that
        this user may read and whose content is known."""
        self._here()
        rows = self._ctl.models()
        for row in rows:
            contents: dict[str, bytes] = {}
            with contextlib.suppress(HoistError):
                contents = self.contents(row["name"])
            row["content"] = model_content(contents.values()) if (
                contents) else None
        return rows

    def where(self, model: str) -> list[dict[str, Any]]:
        """Each group by tier: bytes, pins, leases, seconds since last use."""
        self._here()
        return self._ctl.where(model)

    def status(self) -> dict[str, Any]:
        """The tiers' free space."""
        return self._ctl.status()

    def pin(self, model: str, tier: str, pinned: bool) -> None:
        """An admin's verb of hoistctl."""
        self._ctl.run("pin" if pinned else "unpin", model, "--tier", tier)

    def evict(self, model: str, tier: str) -> None:
        """Likewise."""
        self._ctl.run("evict", model, "--tier", tier)

    def forget(self, model: str) -> bool:
        """Drops the model from this node; False: it is not there."""
        session = self._here()
        try:
            found = session.model(model)
        except NotFound:
            return False
        with self._lock:
            held = self._held.pop(model, None)
            self._kept.pop(model, None)
        if held is not None:
            session.done_with(held)
        session.done_with(found)
        session.forget(found)
        return True

    # --- Reading.

    def open(self, load: str, source: str | Held | GroupSource,
             groups: Groups, deadline: float, turn: Any,
             keep: Keep | None = None) -> dict[str, Any]:
        """Begins a reading. `heads`: the groups' heads, if they are published
        or this agent has read the files before; `sizes`: of the coming groups,
        if known; `new`: the kept model is new. The reading ends with the turn,
        which ends with its driver."""
        if isinstance(source, str) and not os.path.exists(source):
            raise NotFound(f"there is no {source} on node {self._node}; "
                           "read on a node that has it: source_node=")
        new = False
        if isinstance(source, str) and keep is not None:
            reading, new = self._begin_kept(source, groups, deadline, keep)
        else:
            reading = self._begin(source, groups, deadline)
        heads: list[GroupHead] | None = None
        if isinstance(reading.reader, HeldReader):
            heads = reading.reader.heads()
        with self._lock:
            if reading.files is not None:
                heads = self._known.get(reading.files)
            self._readings[load] = reading
        threading.Thread(target=self._close_after, args=(load, turn),
                         name="hoist.ray turn", daemon=True).start()
        return {"sizes": reading.reader.sizes(), "heads": heads, "new": new}

    def _begin(self, source: str | Held | GroupSource, groups: Groups,
               deadline: float) -> _Reading:
        session = self._here()
        if isinstance(source, Held):
            model = session.model(source.model)
            try:
                heads = self._heads(model)
            except FailedPrecondition:
                self._release(session, model)
                raise
            return _Reading(HeldReader(session, model, heads, deadline), None)
        if callable(source):
            return _Reading(IterableReader(source()), None)
        files = FileReader(session, source, groups, deadline)
        return _Reading(files, files.fingerprint)

    def _begin_kept(self, source: str, groups: Groups, deadline: float,
                    keep: Keep) -> tuple[_Reading, bool]:
        session = self._here()
        kept, model, new = KeptFiles.register(session, source, groups, keep)
        # NotFound: it is another user's, of that name.
        reader = ModelReader(session, session.model(keep.name), deadline)
        with self._lock:
            self._held[keep.name] = model
            self._kept[keep.name] = kept
        return _Reading(reader, kept.fingerprint), new

    def _close_after(self, load: str, turn: Any) -> None:
        with contextlib.suppress(RayError):
            ray.get(turn.ended.remote())
        self.close(load)

    def peek(self, load: str, group: str) -> GroupHead:
        """The head of a group that is still to come."""
        reading = self._reading(load)
        with reading.busy:
            self._reading(load)  # It may have been closed meanwhile.
            return reading.reader.peek(group)

    def read(self, load: str) -> Iterator[Any]:
        """Two objects: the next group's head, or None at the end, and its
        buffer, which Ray makes an object of this node's store."""
        reading = self._reading(load)
        with reading.busy:
            self._reading(load)
            found = reading.reader.next()
            if found is None:
                self._remember(reading)
                yield None
                yield None
                return
            reading.heads.append(found[0])
            yield found[0]
            yield found[1]

    def _remember(self, reading: _Reading) -> None:
        if reading.files is None:
            return
        with self._lock:
            self._known[reading.files] = reading.heads
            while len(self._known) > _KNOWN_SOURCES:
                self._known.popitem(last=False)

    def _reading(self, load: str) -> _Reading:
        with self._lock:
            reading = self._readings.get(load)
        if reading is None:
            raise Unavailable(f"the agent of node {self._node} has begun anew "
                              "while it read; load again")
        return reading

    def close(self, load: str) -> None:
        """Ends a reading in any state, after the group that is being read.
        Idempotent."""
        with self._lock:
            reading = self._readings.pop(load, None)
        if reading is not None:
            with reading.busy:
                reading.reader.close()

    # --- Taking.

    def fetch(self, image: Any) -> None:
        """Does nothing: Ray brings the argument to this node's store first."""

    def relay(self, image: Any) -> Iterator[Any]:
        """Two objects: a receipt, and the buffer as this node's own object,
        which others fetch only from here."""
        yield None
        yield image

    def take(self, model: str, head: GroupHead, image: Any,
             readers: str | None, deadline: float) -> None:
        """Publishes a group into this node's hoistd, which compares the bytes
        with the head.

        DataLoss: they differ. ResourceExhausted: no room.
        """
        if len(image) != head.nbytes:
            raise InvalidArgument(f'the buffer of group "{head.name}" has '
                                  f"{len(image)} bytes, not {head.nbytes}")
        session = self._here()
        published = session.publish(
            model, head.name, raw_tensors(head, image), readers,
            deadline=deadline, content=head.content)
        self._hold(model, published)

    def hold(self, model: str) -> None:
        """Holds a model that is already there, as if this agent took it."""
        self._hold(model, self._here().model(model))
