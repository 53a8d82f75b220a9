"""Turns: passes of several threads run one after another."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import sys
import threading
import time
import types
from typing import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from ... import _hot
from ..._errors import FailedPrecondition


log = logging.getLogger("hoist.nn")

_LOOK = 0.1  # Seconds between checks that the owner still runs.
_LONG = 10.0  # Seconds until a waiting thread logs which thread holds the turn.
_BACKWARDS = -1  # The owner while backwards run; no thread has this number.
_process = os.getpid()


def _note_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


_REMEDY = ("call it from the one that runs the module, or give "
           "hoist.set_budget(module, 1.0) room for all of it")


def is_in_backward() -> bool:
    """This thread runs a graph's node."""
    return torch._C._current_graph_task_id() >= 0


class Turns(*_hot.fields("Turns")):  # type: ignore[misc]
    """A recursive lock that running modules hold.

    A thread that leaves a module by SystemExit, asyncio's CancelledError or
    KeyboardInterrupt runs no hooks, and gives no turn back. A waiting thread
    checks its stack, and takes the turn over if none of the modules runs there.

    If a stack shows that the owner waits for this thread, the thread's call is
    refused. A thread that waits for long logs that.

    A backward belongs to no thread. On a GPU its nodes run in a thread of the
    engine, which has the nodes of all backwards, while the caller waits in the
    engine. So a backward holds the turn from its first need of it to its end. A
    thread of the engine would wait for another backward, or for a thread that
    waits in the engine, for ever; instead it joins that turn.

    Threads: any. In the child of a fork every turn is refused.
    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        """modules: those that hold it while they run."""
        self._modules = modules
        self._changed = threading.Condition(threading.Lock())
        self._depth = 0  # The owner's nested modules and blocks.
        self._owner = 0  # The thread that took it.
        self.held = 0  # The running modules among those.
        self.taken_over = False  # From modules cut short; reset by the owner.
        self._process = _process
        self._put_off: collections.deque[Callable[[], None]] = (
            collections.deque())
        self._joined: set[int] = set()  # Threads in the backwards' turn.

    def take(self) -> None:
        """Waits for other threads' turns to end."""
        if _process != self._process:
            raise FailedPrecondition(
                "the module was attached in the process that this one is a "
                "fork of; attach or load it here, after the fork")
        if (self._owner == threading.get_ident() and self._depth
                and not self._joined):
            self._depth += 1  # _enter, inlined: the hot path.
        else:
            self._enter()
        self.held += 1

    def begin_backward(self) -> None:
        """In a node: the backward holds it until `end_backward`."""
        self._enter()

    def end_backward(self) -> None:
        """Any thread may call it."""
        self._leave()

    def give(self) -> None:
        self.held -= 1
        if self._depth > 1 and not self._joined:
            self._depth -= 1
        else:
            self._leave()

    def is_mine(self) -> bool:
        """Whether this thread began the running modules, or its backward may
        have."""
        return self.held > 0 and (self._owner == threading.get_ident()
                                  or is_in_backward())

    @property
    def is_first(self) -> bool:
        """The last taker is the outermost one."""
        return self._depth == 1

    @property
    def is_this_threads(self) -> bool:
        """It is no turn of backwards, nor of a thread that waits for one."""
        return self._owner == threading.get_ident()

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """Keeps other threads' turns out of the block, which does not count as
        a running module."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def once_free(self, work: Callable[[], None]) -> None:
        """Does the work while no thread has a turn: now, or when the current
        one ends. Never blocks, as finalizers call it anywhere."""
        self._put_off.append(work)
        self._run_deferred()

    def _run_deferred(self) -> None:
        while self._put_off and self._enter_if_free():
            try:
                while self._put_off:
                    self._put_off.popleft()()
            finally:
                self._leave()

    def _enter_if_free(self) -> bool:
        if _process != self._process or not self._changed.acquire(
                blocking=False):
            return False  # The holder checks again when it leaves.
        try:
            if self._depth:
                return False
            self._owner = threading.get_ident()
            self._depth = 1
            return True
        finally:
            self._changed.release()

    def _enter(self) -> None:
        me = threading.get_ident()
        if self._owner == me and self._depth and not self._joined:
            self._depth += 1  # Only the owner changes it.
            return
        backward = is_in_backward()
        began = time.monotonic()
        with self._changed:
            while self._depth and self._owner != me and not (
                    backward and self._has_a_part(me)):
                if self._changed.wait(_LOOK):
                    continue
                self._take_over()
                if self._depth and _waits_for_this_thread(self._owner):
                    raise FailedPrecondition(
                        "the module is running, and waits for this thread, "
                        "which calls it or a part of it: what comes and goes "
                        f"is for one thread at a time; {_REMEDY}")
                if self._depth and time.monotonic() - began >= _LONG:
                    began = float("inf")  # Log once.
                    self._log_holder()
            if not self._depth:
                self._owner = _BACKWARDS if backward else me
            if backward and self._owner != me:
                self._joined.add(me)
            self._depth += 1

    def _log_holder(self) -> None:
        """Releases the lock meanwhile, as a log's handler may need it."""
        owner = self._owner
        self._changed.release()
        try:
            log.warning(
                "a thread waits to call a module that %s runs; if that one "
                "waits for this one, neither goes on: %s", _whereabouts(owner),
                _REMEDY)
        finally:
            self._changed.acquire()

    def _has_a_part(self, me: int) -> bool:
        """Whether this thread's backward need not wait for the owner."""
        if self._owner == _BACKWARDS and me in self._joined:
            return True
        if _is_called_from_here():
            return False  # Only nodes of its own wait for this thread.
        return self._owner == _BACKWARDS or _waits_for_backward(self._owner)

    def _leave(self) -> None:
        if self._depth > 1 and not self._joined:
            self._depth -= 1
            return
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._joined.clear()
                self._changed.notify()
        self._run_deferred()

    def _take_over(self) -> None:
        """Takes over if the holders are modules that run no more."""
        if (self._owner == _BACKWARDS or self._depth != self.held
                or self._owner_runs()):
            return
        self.taken_over = True
        self._depth = self.held = 0

    def _owner_runs(self) -> bool:
        frame = sys._current_frames().get(self._owner)
        return calls_above(frame, list(self._modules())) > 0


def calls_on_stack(*modules: nn.Module) -> int:
    """The number of this thread's running calls of these modules; at least 1
    within compiled code, which hides them."""
    return calls_above(sys._getframe(), modules)


# The function of torch.autograd that calls the engine.
_ENGINE = "_engine_run_backward"


def _is_called_from_here() -> bool:
    """This thread called the backward whose nodes it runs; it is none of the
    engine's."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == _ENGINE:
            return True
        frame = frame.f_back
    return False


def _waits_for_backward(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_name == _ENGINE


def _whereabouts(thread: int) -> str:
    """The owner's position, for the log."""
    if thread == _BACKWARDS:
        return "a backward"
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "a thread that has ended"
    names = {one.ident: one.name for one in threading.enumerate()}
    return (f"thread {names.get(thread, thread)!r} (in {frame.f_code.co_name}, "
            f"{frame.f_code.co_filename}:{frame.f_lineno})")


def _waits_for_this_thread(thread: int) -> bool:
    """True if it would wait for ever: it joins this thread, or waits for an
    executor's result from it. (Other waits may be for other threads.)"""
    mine: set[int] = {id(threading.current_thread())}
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run":
            mine.add(id(getattr(frame.f_locals.get("self"), "future", None)))
        frame = frame.f_back
    mine.discard(id(None))
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if (frame.f_code.co_name in ("join", "result")
                and frame.f_locals.get("timeout") is None
                and id(frame.f_locals.get("self")) in mine):
            return True
        frame = frame.f_back
    return False


def calls_above(frame: types.FrameType | None,
                modules: Sequence[nn.Module]) -> int:
    """The running calls of these modules on a thread's stack."""
    found = outer = 0
    while frame is not None:
        code = frame.f_code
        # torch's calls, or compiled forms of them. A compiled call has the
        # first one alone until its code runs.
        if code.co_name in ("_wrapped_call_impl", "_call_impl"):
            called = frame.f_locals.get("self")
            times = sum(called is one for one in modules)
            if code.co_name == "_call_impl":
                found += times
            else:
                outer += times
        elif code.co_name.startswith("torch_dynamo_resume"):
            found = max(found, 1)
        frame = frame.f_back
    return max(found, outer)
