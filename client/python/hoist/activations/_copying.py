"""Copies between a device and the host, and their order.

A `Copier` is one device's. Copies use streams of their own, beside the
computation; a `Mark` is a point in one of those streams that the computation
can wait for. The host waits for nothing here.

Copies to the device take turns on its link, which hoistd grants
(hoist._copy_permit), so that they delay streamed weights of others by a fair
share at most; copies to the host are counted.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Iterable

import torch

from .. import _copy_permit, _session
from .._errors import FailedPrecondition

# Sources and destinations; uint8, of the same length.
Copies = Iterable[tuple[torch.Tensor, torch.Tensor]]
Mark = Any  # An event, or DONE; None: the copy has not begun.
DONE = "done when the call that gave it returned"


class Copier:
    """Threads: any. "The current stream" is the calling thread's.

    This class is the emulated device's, whose memory is the host's: a copy is
    done when the call returns.
    """

    def __init__(self, device: torch.device,
                 turns: _copy_permit.CopyPermit) -> None:
        self.device = device
        self._turns = turns

    def out_stream(self) -> int:
        """The stream of copies to the host, as CUDA's handle; 0 without one."""
        return 0

    def in_stream(self) -> int:
        """The same for copies to the device."""
        return 0

    def check(self) -> None:
        """FailedPrecondition: nothing may be copied now."""

    def current(self) -> Any:
        """The current stream, for `wait`."""
        return None

    def copy_out(self, copies: Copies) -> Mark:
        """To the host, after the work queued on the current stream so far. The
        sources must stay until the mark."""
        for source, target in copies:
            self._turns.to_host(target.data_ptr(), source.data_ptr(),
                                source.nbytes)
        return DONE

    def copy_in(self, copies: Copies) -> list[Mark]:
        """To memory that the current stream may use by now; a mark for each."""
        marks: list[Mark] = []
        for source, target in copies:
            self._turns.to_device(target.data_ptr(), source.data_ptr(),
                                  source.nbytes)
            marks.append(DONE)
        return marks

    def wait(self, mark: Mark, stream: Any = None) -> None:
        """Later work on the stream (None: the current one) waits for the
        mark."""
        assert mark is DONE

    def is_done(self, mark: Mark) -> bool:
        """The mark has passed."""
        assert mark is DONE
        return True

    def synchronize(self) -> None:
        """Waits, on the host, for all copies."""


class CudaCopier(Copier):
    """A GPU's: one stream a direction, since a link carries both at once."""

    def __init__(self, device: torch.device, turns: _copy_permit.CopyPermit,
                 stream: torch.cuda.Stream | None = None) -> None:
        """stream: replaces those of both directions."""
        super().__init__(device, turns)
        self._out = stream or torch.cuda.Stream(device)
        self._in = stream or torch.cuda.Stream(device)

    def out_stream(self) -> int:
        return int(self._out.cuda_stream)

    def in_stream(self) -> int:
        return int(self._in.cuda_stream)

    def check(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise FailedPrecondition(
                "activations cannot be offloaded while a CUDA graph is "
                "captured: a replay runs no Python, and would use host memory "
                "that is another layer's by then; capture under hoist.keep(), "
                'or use torch.compile(mode="reduce-overhead")')

    def current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def copy_out(self, copies: Copies) -> Mark:
        self._out.wait_stream(self.current())
        for source, target in copies:
            self._turns.to_host(target.data_ptr(), source.data_ptr(),
                                source.nbytes, self._out)
        return self._out.record_event()

    def copy_in(self, copies: Copies) -> list[Mark]:
        self._in.wait_stream(self.current())
        marks = []
        for source, target in copies:
            self._turns.to_device(target.data_ptr(), source.data_ptr(),
                                  source.nbytes, self._in)
            marks.append(self._in.record_event())
        return marks

    def wait(self, mark: Mark, stream: Any = None) -> None:
        (stream or self.current()).wait_event(mark)

    def is_done(self, mark: Mark) -> bool:
        return bool(mark.query())

    def synchronize(self) -> None:
        self._out.synchronize()
        self._in.synchronize()


# A session has few permits: all Offloads of one device share one.
_turns_lock = threading.Lock()
_turns: weakref.WeakKeyDictionary[
    _session.Session, weakref.WeakValueDictionary[int, _copy_permit.CopyPermit]] = (
    weakref.WeakKeyDictionary())


def _turns_of(session: _session.Session, device: int) -> _copy_permit.CopyPermit:
    with _turns_lock:
        known = _turns.setdefault(session, weakref.WeakValueDictionary())
        found = known.get(device)
        if found is None:
            found = known[device] = _copy_permit.CopyPermit(session, device=device)
        return found


def copier_of(session: _session.Session, index: int, device: torch.device,
              stream: torch.cuda.Stream | None = None) -> Copier:
    """index, device: find_device's result; the CPU stands for the emulated
    device. stream: as CudaCopier's."""
    turns = _turns_of(session, index)
    if device.type == "cpu":
        return Copier(device, turns)
    return CudaCopier(device, turns, stream)
