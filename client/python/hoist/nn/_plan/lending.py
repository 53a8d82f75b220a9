"""Plans that give way: a thread of the process notices hoistd's asks.

A module with the default budget has all that was free when it was planned. When
others need that memory, hoistd asks for it; see hoist_plan_info. An idle module
returns it, and has what is free then in its next pass. `hoistctl sleep` asks for
the memory of each module, and `hoistctl wake` has them plan again before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import threading
import weakref
from typing import Callable, Protocol

from ..._errors import HoistError
from ..._plan import Plan
from ..._session import Session

log = logging.getLogger("hoist.nn")


class Lender(Protocol):
    """A module whose plan gives way."""

    def consider(self) -> None:
        """hoistd may have asked for the plan. Must not block."""

    def wake(self) -> None:
        """hoistd asks it to plan again. It has a thread for that."""


class _Asks:
    """Threads: any; one thread of its own, begun with the first plan."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By session: those that it may ask to wake.
        self._sleepers: weakref.WeakKeyDictionary[
            Session, weakref.WeakSet[Lender]] = weakref.WeakKeyDictionary()
        # A poll set of its own: a fork would share epoll's.
        self._loop = asyncio.SelectorEventLoop(selectors.PollSelector())
        self._thread: threading.Thread | None = None

    def add(self, plan: Plan, lender: Lender) -> None:
        """Until the plan's object is collected."""
        ref = weakref.ref(lender)
        self._listen(plan, plan.event_fd, lambda: self._consider(ref))
        session = plan.session
        with self._lock:
            is_new = session not in self._sleepers
            sleepers = self._sleepers.setdefault(session, weakref.WeakSet())
            sleepers.add(lender)
        if is_new:
            try:
                self._listen(session, session.wake_fd, lambda: _wake(sleepers))
            except OSError:  # The next plan tries again.
                self._sleepers.pop(session, None)
                raise
        self._begin()

    def _listen(self, owner: object, event_fd: int,
                told: Callable[[], None]) -> None:
        """Until the owner is collected, which closes its own descriptor."""
        fd = os.dup(event_fd)

        def read() -> None:
            with contextlib.suppress(OSError):  # Another has read it.
                os.eventfd_read(fd)
            told()

        def forget() -> None:
            self._loop.remove_reader(fd)
            os.close(fd)

        soon = self._loop.call_soon_threadsafe  # Also within a finalizer.
        soon(self._loop.add_reader, fd, read)
        weakref.finalize(owner, soon, forget).atexit = False

    def look_again(self, lender: Lender, seconds: float) -> None:
        """Calls `consider` after that time."""
        self._loop.call_soon_threadsafe(
            self._loop.call_later, seconds, self._consider,
            weakref.ref(lender))
        self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._loop.run_forever,
                                          name="hoist-asks", daemon=True)
                thread.start()
                self._thread = thread

    @staticmethod
    def _consider(ref: weakref.ref[Lender]) -> None:
        lender = ref()
        if lender is None:
            return
        try:
            lender.consider()
        except HoistError as error:  # The next pass raises it, if it matters.
            log.debug("a plan does not give way: %s", error.message)
        except Exception:  # The thread serves others, too.
            log.exception("a plan does not give way")


def _wake(sleepers: weakref.WeakSet[Lender]) -> None:
    """In a thread: a plan may wait for others of this process to give way."""
    def work() -> None:
        for lender in list(sleepers):
            try:
                lender.wake()
            except HoistError as error:
                log.warning("a module stays asleep: %s", error.message)
            except Exception:  # Others wake all the same.
                log.exception("a module stays asleep")

    try:
        threading.Thread(target=work, name="hoist-wake", daemon=True).start()
    except RuntimeError as error:
        log.warning("nothing wakes: %s", error)


_asks: _Asks | None = None
_asks_lock = threading.Lock()


def _after_fork() -> None:
    global _asks, _asks_lock
    _asks = None  # The child has neither the thread nor the plans.
    _asks_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def asks() -> _Asks:
    """This process's."""
    global _asks
    with _asks_lock:
        if _asks is None:
            _asks = _Asks()
        return _asks


def heed(plan: Plan, lender: Lender) -> None:
    """Has the lender consider hoistd's asks for the plan. A process without a
    descriptor or a thread for that keeps the plan's memory."""
    try:
        asks().add(plan, lender)
    except (OSError, RuntimeError) as error:
        log.warning("hoistd's asks for device memory go unheard: %s", error)
