"""What copies between a device and the host, and in what order.

A `Copier` is one device's. Copies go on streams of their own, beside the
computation; a `Mark` is a point in one of those streams, which the computation
can be made to come after. The host waits for nothing here.
"""

from __future__ import annotations

from typing import Any, Iterable, Protocol

import torch

from .._errors import FailedPrecondition

# Where bytes come from, and where they go; uint8, of the same length.
Copies = Iterable[tuple[torch.Tensor, torch.Tensor]]
Mark = Any  # None: done when the call that gave it returned.


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

    def __init__(self) -> None:
        self.device = torch.device("cpu")

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
            target.copy_(source)

    def copy_in(self, copies: Copies) -> list[Mark]:
        return [self.copy_out([copy]) for copy in copies]

    def wait(self, mark: Mark, stream: Any = None) -> None:
        pass

    def is_done(self, mark: Mark) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class CudaCopier:
    """A GPU's: one stream a direction, since a link carries both at once."""

    def __init__(self, device: torch.device,
                 stream: torch.cuda.Stream | None = None) -> None:
        """stream: for both directions, in their place."""
        self.device = device
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
        with torch.cuda.stream(self._out):
            for source, target in copies:
                target.copy_(source, non_blocking=True)
        return self._out.record_event()

    def copy_in(self, copies: Copies) -> list[Mark]:
        self._in.wait_stream(self.current())
        marks = []
        with torch.cuda.stream(self._in):
            for source, target in copies:
                target.copy_(source, non_blocking=True)
                marks.append(self._in.record_event())
        return marks

    def wait(self, mark: Mark, stream: Any = None) -> None:
        (stream or self.current()).wait_event(mark)

    def is_done(self, mark: Mark) -> bool:
        return bool(mark.query())

    def synchronize(self) -> None:
        self._out.synchronize()
        self._in.synchronize()


def copier_of(device: torch.device,
              stream: torch.cuda.Stream | None = None) -> Copier:
    """device: as find_device names it; the CPU stands for the emulated one.
    stream: as CudaCopier has it."""
    return HostCopier() if device.type == "cpu" else CudaCopier(device, stream)
