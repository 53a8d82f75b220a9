"""Whose turn it is: passes of several threads come one after another."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
from typing import Iterator

from torch import nn

from .._errors import FailedPrecondition


class Turns:
    """A lock that running modules hold, as often as they are nested.

    Threads: any. In the child of a fork every turn is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.held = 0  # Times that running modules took it.
        self._owner = 0  # The thread that took it.
        self._process = os.getpid()

    def take(self) -> None:
        """Waits for other threads' turns to end."""
        if os.getpid() != self._process:
            raise FailedPrecondition(
                "the module was attached in the process that this one is a "
                "fork of; attach or load it here, after the fork")
        self._lock.acquire()
        self.held += 1
        self._owner = threading.get_ident()

    def give(self) -> None:
        self.held -= 1
        self._lock.release()

    @property
    def is_mine(self) -> bool:
        """Whether what is running was begun by this thread."""
        return self.held > 0 and self._owner == threading.get_ident()

    @contextlib.contextmanager
    def between(self) -> Iterator[None]:
        """For the block no other thread runs; this one counts as not running
        by it."""
        with self._lock:
            yield


def calls_on_stack(*modules: nn.Module) -> int:
    """Of these modules, by this thread; 1 at least within compiled code,
    which does not tell."""
    found = 0
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code is nn.Module._call_impl.__code__:
            found += any(frame.f_locals["self"] is one for one in modules)
        elif code.co_name.startswith("torch_dynamo_resume"):
            found = max(found, 1)
        frame = frame.f_back
    return found
