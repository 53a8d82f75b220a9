"""Idle engines: their weights leave the device until the next step."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
import time
import types
import weakref
from typing import Any, Callable, Iterator

import torch

from .._errors import HoistError
from ..serving._weights import Weights

_log = logging.getLogger("hoist.vllm")

# Of a worker: these need no weights.
_WITHOUT_WEIGHTS = frozenset({"check_health", "shutdown"})


class IdleRest:
    """Has weights rest once a worker has had no call for a while, and brings
    them back with the next one.

    Each public method of the worker's class is a call: its steps, and what
    `collective_rpc` names. A function that is given to `collective_rpc` in place
    of a name is none, and may read no weights.

    Threads: any; one of its own, for the process's life.
    """

    def __init__(self, after: float, device: torch.device) -> None:
        """after: seconds. device: the worker's, which is current for CUDA."""
        self._after = after
        self._gpu = (torch.cuda.current_device() if device.type == "cuda"
                     else None)
        self._weights: weakref.WeakSet[Weights] = weakref.WeakSet()
        self._resting: list[Weights] = []  # None of a sleep mode's.
        self._changed = threading.Condition(threading.Lock())
        self._running = 0  # Calls, nested ones too.
        self._used: float | None = None  # None: no call since the load.

    def add(self, weights: Weights) -> None:
        with self._changed:
            self._weights.add(weights)

    def begin(self, worker: type) -> None:
        """Once. RuntimeError: no thread."""
        threading.Thread(target=self._run, name="hoist-idle",
                         daemon=True).start()
        for name in dir(worker):
            method = inspect.getattr_static(worker, name)
            if (isinstance(method, types.FunctionType)
                    and not name.startswith("_")
                    and name not in _WITHOUT_WEIGHTS):
                setattr(worker, name, self._counted(method))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.use():
                return method(*args, **kwargs)

        return counted

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """The weights are there in the block. Weights.resume's errors."""
        with self._changed:
            if self._resting:
                self._bring_back()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._used = time.monotonic()
                self._changed.notify()

    def _bring_back(self) -> None:
        begin = time.monotonic()
        while self._resting:
            self._resting[-1].resume()
            self._resting.pop()
        _log.info("the weights are back after %.0f ms",
                  (time.monotonic() - begin) * 1e3)

    def _run(self) -> None:
        with self._changed:
            while True:
                if self._used is None or self._running or self._resting:
                    self._changed.wait()
                    continue
                left = self._used + self._after - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                else:
                    self._rest()

    def _rest(self) -> None:
        awake = [one for one in self._weights if not one.suspended]
        if not awake:  # They sleep.
            self._changed.wait()
            return
        if self._gpu is not None:  # A step's end is its launch.
            torch.cuda.synchronize(self._gpu)
        try:
            for one in awake:
                self._resting.append(one)
                one.rest()
        except HoistError as error:
            return _log.warning("the weights of an idle engine stay: %s", error)
        _log.info("the weights rest, as the engine has been idle for %g s",
                  self._after)


_of_process: IdleRest | None = None


def rest_when_idle(weights: Weights, after: float, device: torch.device,
                   worker: type) -> None:
    """worker: the class of this process's. Only the first call's is taken: a
    draft's weights rest with the model's."""
    global _of_process
    if _of_process is None:
        _of_process = IdleRest(after, device)
        try:
            _of_process.begin(worker)
        except RuntimeError as error:
            _log.warning("the weights stay on the device of an idle engine: %s",
                         error)
    _of_process.add(weights)
