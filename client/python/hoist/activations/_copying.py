"""What copies between a device and the host, and in what order.

A `Copier` is one device's. Copies go on streams of their own, beside the
computation; a `Mark` is a point in one of those streams, which the computation
can be made to come after. The host waits for nothing here.

Copies to the device come in turns of its link, which hoistd grants
(hoist._copier), so that weights that others stream are not held up by more than
a fair share; those to the host are counted.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Iterable, Protocol

import torch

from .. import _copier, _session
from .._errors import FailedPrecondition

# Where bytes come from, and where they go; uint8, of the same length.
Copies = Iterable[tuple[torch.Tensor, torch.Tensor]]
Mark = Any  # An event, or DONE; None is a copy that was not begun.
DONE = "done when the call that gave it returned"


class Copier(Protocol):
    """Threads: any. "The current stream" is the calling thread's."""

    device: torch.device

    def out_stream(self) -> int:
        """What copies to the host go on, as CUDA's handle; 0 without streams."""

    def in_stream(self) -> int:
        """The same for copies to the device."""

    def check(self) -> None:
        """FailedPrecondition: nothing may be copied now."""

    def current(self) -> Any:
        """The current stream, for `wait`."""

    def copy_out(self, copies: Copies) -> Mark:
        """To the host, after all that is on the current stream by now. The
        sources must stay until the mark."""

    def copy_in(self, copies: Copies) -> list[Mark]:
        """To memory that the current stream may use by now: a mark a copy."""

    def wait(self, mark: Mark, stream: Any = None) -> None:
        """What is put on the stream (None: the current one) from now on comes
        after the mark."""

    def is_done(self, mark: Mark) -> bool:
        """The mark has come to pass."""

    def synchronize(self) -> None:
        """Waits, on the host, for all copies."""


class HostCopier:
    """The emulated device's: its memory is the host's, and a copy is done when
    the call returns."""

    def __init__(self, turns: _copier.Copier) -> None:
        self.device = torch.device("cpu")
        self._turns = turns

    def out_stream(self) -> int:
        return 0

    def in_stream(self) -> int:
        return 0

    def check(self) -> None:
        pass

    def current(self) -> Any:
        return None

    def copy_out(self, copies: Copies) -> Mark:
        for source, target in copies:
            self._turns.to_host(target.data_ptr(), source.data_ptr(),
                                source.nbytes)
        return DONE

    def copy_in(self, copies: Copies) -> list[Mark]:
        marks: list[Mark] = []
        for source, target in copies:
            self._turns.to_device(target.data_ptr(), source.data_ptr(),
                                  source.nbytes)
            marks.append(DONE)
        return marks

    def wait(self, mark: Mark, stream: Any = None) -> None:
        assert mark is DONE

    def is_done(self, mark: Mark) -> bool:
        assert mark is DONE
        return True

    def synchronize(self) -> None:
        pass


class CudaCopier:
    """A GPU's: one stream a direction, since a link carries both at once."""

    def __init__(self, device: torch.device, turns: _copier.Copier,
                 stream: torch.cuda.Stream | None = None) -> None:
        """stream: for both directions, in their place."""
        self.device = device
        self._turns = turns
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


# A session may have a few copiers: those who offload to one device share one.
_turns_lock = threading.Lock()
_turns: weakref.WeakKeyDictionary[
    _session.Session, weakref.WeakValueDictionary[int, _copier.Copier]] = (
    weakref.WeakKeyDictionary())


def _turns_of(session: _session.Session, device: int) -> _copier.Copier:
    with _turns_lock:
        known = _turns.setdefault(session, weakref.WeakValueDictionary())
        found = known.get(device)
        if found is None:
            found = known[device] = _copier.Copier(session, device=device)
        return found


def copier_of(session: _session.Session, index: int, device: torch.device,
              stream: torch.cuda.Stream | None = None) -> Copier:
    """index, device: as find_device names it; the CPU stands for the emulated
    one. stream: as CudaCopier has it."""
    turns = _turns_of(session, index)
    if device.type == "cpu":
        return HostCopier(turns)
    return CudaCopier(device, turns, stream)
