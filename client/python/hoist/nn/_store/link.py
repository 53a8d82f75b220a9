"""An attached module's connection with hoistd, and its renewal.

hoistd may die and be started again, by systemd, hoist-keeper or hand. A Link
then reconnects and finds the module's weights by content, so that wrong weights
are impossible. It knows nothing of plans and passes; users of the earlier
session see by `place` that it was replaced.

It is the fallback for a libhoist without this: with one, `check` never fails,
and nothing else here is called.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import weakref
from typing import Protocol

from ... import _session
from ..._errors import FailedPrecondition, HoistError, Unavailable
from ..._model import Model

STAGE_DEADLINE = 60.0  # The default of PlanTerms.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # Between two attempts.


class Reader(Protocol):
    """Knows the weights, and reads them at fixed addresses."""

    def move(self, session: _session.Session) -> Model:
        """Reads from that session from now on: from the model with the same
        content, which it returns. After a failure it may be called again.

        DataLoss: the weights have changed. NotFound: they are gone.
        """


@dataclasses.dataclass(frozen=True)
class Place:
    """A session, and the weights there. Objects of one are never used with
    another, as the ids of models belong to one hoistd."""

    session: _session.Session
    original: Model  # With the original weights.


class Link:
    """The link of one attached module.

    Threads: any; one connects while others wait. Its lock is held over calls,
    except calls that take the attachment's lock or a shelf's.
    """

    def __init__(self, session: _session.Session, stage_deadline: float,
                 ) -> None:
        """stage_deadline: as in PlanTerms."""
        self.session = session
        self.wait = stage_deadline or STAGE_DEADLINE
        self.place: Place | None = None  # None: not attached yet.
        # Weak, as weights that are still referenced need no module.
        self._reader: weakref.ref[Reader] | None = None
        self._until: float | None = None  # The end of the wait for a hoistd.
        self._lock = threading.Lock()
        self._process = os.getpid()

    def attached(self, reader: Reader, original: Model) -> None:
        """From here on the link can be renewed."""
        self._reader = weakref.ref(reader)
        self.place = Place(self.session, original)

    @property
    def forked(self) -> bool:
        return os.getpid() != self._process

    def lives(self) -> bool:
        return _lives(self.session)

    def check(self) -> None:
        """Raises if hoistd has ended the session."""
        try:
            self.session.check()
        except Unavailable as error:
            raise self._ended(error) from None

    def explained(self, error: HoistError,
                  session: _session.Session) -> HoistError:
        """The error to raise for one of that session: the same one, or the
        meaning of the session's end."""
        try:
            session.check()
        except FailedPrecondition:
            return error  # Closed in this process, or forked.
        except HoistError as why:
            return self._ended(why)
        return error

    def renew(self, wait: bool = True, closed: bool = False) -> None:
        """Makes weights readable, in the session of `place`; a new one if the
        earlier session has ended.

        wait: waits for a hoistd as long as a stage may take, from the first
            sight of its end; later calls try once.
        closed: also if this process closed the session, not hoistd.
        Unavailable: no hoistd in time. FailedPrecondition: closed, or forked.
        Reader.move's errors.
        """
        try:
            self.session.check()
            return
        except FailedPrecondition:
            if not closed or self.forked:
                raise
        except HoistError:
            pass
        with self._lock:
            self._renew(wait)

    def _renew(self, wait: bool) -> None:
        reader = None if self._reader is None else self._reader()
        if reader is None:
            raise Unavailable("hoistd has ended the session (stopped, crashed, or "
                              "told to), and the module that these weights are "
                              "of is gone; load it again")
        pause = _FIRST_PAUSE
        if wait and self._until is None:
            self._until = time.monotonic() + self.wait
        while not self.lives():
            try:
                self._try(reader)
            except Unavailable as error:
                left = (self._until or 0.0) - time.monotonic()
                if not wait or left <= 0:
                    raise self._ended(error) from None
                time.sleep(min(pause, left))
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._until = None

    def _try(self, reader: Reader) -> None:
        session = self.session.reconnect()
        original = reader.move(session)
        before, self.session = self.session, session
        self.place = Place(session, original)
        _replace_default(before, session)

    def _ended(self, why: HoistError) -> Unavailable:
        return Unavailable(
            "hoistd has ended the session (stopped, crashed, or told to), and "
            "what was running with its weights is void, on a GPU all since the "
            "last hoist.check; the next call attaches the module again, for which it waits for a "
            f"hoistd for {self.wait:g} s once, then tries ({why})")


def _lives(session: _session.Session) -> bool:
    try:
        session.check()
    except HoistError:
        return False
    return True


_sessions: dict[tuple[int, str | None], _session.Session] = {}
_sessions_lock = threading.Lock()


def default_session() -> _session.Session:
    """The process's session, made on first use; again if it has ended."""
    key = (os.getpid(), os.environ.get("HOIST_SOCKET"))
    with _sessions_lock:
        session = _sessions.get(key)
        if session is not None:
            session = session.reconnect()
        else:
            session = _session.connect()
        _sessions[key] = session
        for other, one in list(_sessions.items()):
            if one is not session and not _lives(one):
                del _sessions[other]  # It keeps its mappings.
        return session


def _replace_default(before: _session.Session,
                     after: _session.Session) -> None:
    """The ended session keeps no mappings of the old hoistd."""
    with _sessions_lock:
        for key, session in _sessions.items():
            if session is before:
                _sessions[key] = after
