"""Whose turn it is: passes of several threads come one after another."""

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

from .._errors import FailedPrecondition


log = logging.getLogger("hoist.nn")

_LOOK = 0.1  # Seconds between looks at whether the owner still runs.
_LONG = 10.0  # Seconds after which whoever waits says for whom.
_BACKWARDS = -1  # The owner where backwards run; no thread has this number.
_process = os.getpid()


def _note_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


_REMEDY = ("call it from the one that runs the module, or give "
           "hoist.set_budget(module, 1.0) room for all of it")


def is_in_backward() -> bool:
    """A node of a graph runs in this thread."""
    return torch._C._current_graph_task_id() >= 0


class Turns:
    """A lock that running modules hold, as often as they are nested.

    A thread that leaves a module by SystemExit, asyncio's CancelledError or a
    KeyboardInterrupt runs no hooks, and gives nothing back: whoever waits looks
    at its stack, and takes the turn over if no module of these runs there.

    A thread that the owner waits for is refused, where its stack shows that;
    whoever waits for long says so in the log.

    A backward is no thread's. On a GPU its nodes run in a thread of the
    engine's, which has the nodes of all backwards, while whoever called it
    waits within the engine. So a backward holds the turn from its first need of
    it to its end; and where a thread of the engine's would have to wait for
    another backward, or for who waits within the engine, which would be for
    ever, it has a part of that turn.

    Threads: any. In the child of a fork every turn is refused.
    """

    def __init__(self, modules: Callable[[], Iterable[nn.Module]]) -> None:
        """modules: those that hold it while they run."""
        self._modules = modules
        self._changed = threading.Condition(threading.Lock())
        self._depth = 0  # Times that the owner took it, by modules or blocks.
        self._owner = 0  # The thread that took it.
        self.held = 0  # Times that running modules took it.
        self.taken_over = False  # What ran was cut short; the owner resets it.
        self._process = _process
        self._put_off: collections.deque[Callable[[], None]] = (
            collections.deque())
        self._joined: set[int] = set()  # Threads, where backwards own it.

    def take(self) -> None:
        """Waits for other threads' turns to end."""
        if _process != self._process:
            raise FailedPrecondition(
                "the module was attached in the process that this one is a "
                "fork of; attach or load it here, after the fork")
        if (self._owner == threading.get_ident() and self._depth
                and not self._joined):
            self._depth += 1  # As _enter; each stage comes here.
        else:
            self._enter()
        self.held += 1

    def begin_backward(self) -> None:
        """In a node: until `end_backward` the backward holds it."""
        self._enter()

    def end_backward(self) -> None:
        """Of any thread."""
        self._leave()

    def give(self) -> None:
        self.held -= 1
        if self._depth > 1 and not self._joined:
            self._depth -= 1
        else:
            self._leave()

    @property
    def is_mine(self) -> bool:
        """Whether what is running was begun by this thread, or may have been
        by the backward that runs in it."""
        return self.held > 0 and (self._owner == threading.get_ident()
                                  or is_in_backward())

    @property
    def is_first(self) -> bool:
        """What took it last has nothing around it."""
        return self._depth == 1

    @property
    def is_this_threads(self) -> bool:
        """Rather than that of backwards, or of a thread that waits for one."""
        return self._owner == threading.get_ident()

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """For the block no other thread runs; this one counts as not running
        by it."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def once_free(self, work: Callable[[], None]) -> None:
        """Does it while no thread runs: now, or when the one that does ends.
        Waits for nobody, as it is called by what is collected, anywhere."""
        self._put_off.append(work)
        self._do_what_was_put_off()

    def _do_what_was_put_off(self) -> None:
        while self._put_off and self._enter_if_free():
            try:
                while self._put_off:
                    self._put_off.popleft()()
            finally:
                self._leave()

    def _enter_if_free(self) -> bool:
        if _process != self._process or not self._changed.acquire(
                blocking=False):
            return False  # Who has it looks again, when leaving.
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
            self._depth += 1  # Nobody else changes it meanwhile.
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
                    began = float("inf")  # Once.
                    self._say_who_has_it()
            if not self._depth:
                self._owner = _BACKWARDS if backward else me
            if backward and self._owner != me:
                self._joined.add(me)
            self._depth += 1

    def _say_who_has_it(self) -> None:
        """While this waits; nobody else does for what a log's handler does."""
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
        """Of this thread's backward: whether it is not to wait for the owner.
        """
        if self._owner == _BACKWARDS and me in self._joined:
            return True
        if _is_called_from_here():
            return False  # Nobody's nodes but its own wait for this thread.
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
        self._do_what_was_put_off()

    def _take_over(self) -> None:
        """If all that holds it are modules that do not run any more."""
        if (self._owner == _BACKWARDS or self._depth != self.held
                or self._owner_runs()):
            return
        self.taken_over = True
        self._depth = self.held = 0

    def _owner_runs(self) -> bool:
        frame = sys._current_frames().get(self._owner)
        return _calls_above(frame, list(self._modules())) > 0


def calls_on_stack(*modules: nn.Module) -> int:
    """Of these modules, by this thread; 1 at least within compiled code,
    which does not tell."""
    return _calls_above(sys._getframe(), modules)


# torch.autograd's function that calls the engine.
_ENGINE = "_engine_run_backward"


def _is_called_from_here() -> bool:
    """This thread runs nodes of the backward that it has called itself, rather
    than being the engine's."""
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
    """Of who has the turn, for the log."""
    if thread == _BACKWARDS:
        return "a backward"
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "a thread that has ended"
    names = {one.ident: one.name for one in threading.enumerate()}
    return (f"thread {names.get(thread, thread)!r} (in {frame.f_code.co_name}, "
            f"{frame.f_code.co_filename}:{frame.f_lineno})")


def _waits_for_this_thread(thread: int) -> bool:
    """For ever: it joins this one, or waits for what this one computes for an
    executor. (Who waits in other ways may wait for somebody else.)"""
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


def _calls_above(frame: types.FrameType | None,
                 modules: Sequence[nn.Module]) -> int:
    found = outer = 0
    while frame is not None:
        code = frame.f_code
        # Of torch, or what torch.compile has made of that. Of a call that is
        # compiled the first is there alone until the code runs.
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
