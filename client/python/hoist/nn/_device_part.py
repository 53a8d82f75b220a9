"""A device that an attached module's groups are staged on."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from .. import _session
from .._errors import HoistError, NotFound, Unavailable
from .._plan import Plan
from ._link import Link


class Held:
    """What hoistd gave for the groups of one device. It refers to no module, so
    that it can be given back once one is collected."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.plan: Plan | None = None
        self.leases: dict[int, Any] = {}  # By id().

    def give_back(self) -> None:
        """Once the GPU is done with it."""
        with contextlib.ExitStack() as stack:
            leases, self.leases = self.leases, {}
            plan, self.plan = self.plan, None
            for lease in leases.values():
                stack.enter_context(contextlib.suppress(Unavailable))
                stack.callback(lease.release)
            # First: of a hoistd that is stopped it lets the GPU's waits through.
            if plan is not None:
                plan.close()
            if self.torch_device.type == "cuda" and (leases or plan):
                torch.cuda.synchronize(self.torch_device)


class DevicePart:
    """One device of an attachment: its stream, the plan that is in force there,
    and where weights are cast to. All that is staged there is `session`'s, which
    may have ended; the link's may be another one by then."""

    def __init__(self, link: Link, device: _session.Device,
                 torch_device: torch.device) -> None:
        self.link = link
        self.session = link.session
        self.ended = False  # The session has, and somebody was told.
        self.device = device
        self.torch_device = torch_device
        self._is_cuda = torch_device.type == "cuda"
        self._index = torch_device.index
        self.held = Held(torch_device)
        self.captured = False  # A CUDA graph holds the plan's addresses.
        # Groups that are there now, and are not to stay; of _saved.
        self.staged: dict[Any, None] = {}
        self.reader: Any = None
        self.scratch_needed = 0  # By the group that casts most.
        self._scratch: torch.Tensor | None = None
        self._scratch_stream: int | None = None

    @property
    def plan(self) -> Plan | None:
        return self.held.plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self.held.plan = plan

    def move(self, session: _session.Session) -> None:
        """Nothing is staged. NotFound: its hoistd does not have the device."""
        for one in session.devices:
            if one.kind == self.device.kind and (
                    one.uuid == self.device.uuid if one.kind == "cuda" else
                    one.index == self.device.index):
                self.session, self.device, self.ended = session, one, False
                return
        raise NotFound(f"hoistd no longer has device {self.device.index} "
                       f"({self.device.name}); hoist.detach(module), and "
                       "attach it to another")

    def explained(self, error: HoistError) -> HoistError:
        """What to raise for an error that came while something was staged. Of
        the session's end that is told once, and nothing has to be ended in it
        from then on."""
        found = self.link.explained(error, self.session)
        self.ended = self.ended or found is not error
        return found

    def is_capturing(self) -> bool:
        """The current stream is recorded into a CUDA graph."""
        return self._is_cuda and torch._C._cuda_isCurrentStreamCapturing()

    def stream(self) -> int | None:
        """The worker's current stream, as CUDA's handle."""
        if not self._is_cuda:
            return None
        return torch._C._cuda_getCurrentRawStream(self._index)

    def stream_to_stage(self) -> int | None:
        """The same, for what is staged now; each stage comes here."""
        if self.is_capturing():
            self.captured = True
        if not self._is_cuda:
            return None
        return torch._C._cuda_getCurrentRawStream(self._index)

    def synchronize(self, streams: list[int | None]) -> None:
        """What was put on these is computed."""
        if self.torch_device.type != "cuda":
            return
        if streams == [self.stream()]:
            torch.cuda.current_stream(self.torch_device).synchronize()
        else:
            self.synchronize_all()

    def synchronize_all(self) -> None:
        """Whatever stream this process has put work on."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize(self.torch_device)

    def scratch(self) -> torch.Tensor:
        """Where weights are cast to: one place, since groups whose weights are
        cast are used one after another."""
        if self._scratch is None:
            self._scratch = torch.empty(self.scratch_needed, dtype=torch.uint8,
                                        device=self.torch_device)
        return self._scratch

    @property
    def scratch_bytes(self) -> int:
        return 0 if self._scratch is None else self._scratch.numel()

    def order_scratch(self) -> None:
        """What the scratch held is not read any more, on whichever stream."""
        stream = self.stream()
        last, self._scratch_stream = self._scratch_stream, stream
        if last is None or last == stream or (
                torch.cuda.is_current_stream_capturing()):
            return
        torch.cuda.current_stream(self.torch_device).wait_stream(
            torch.cuda.ExternalStream(last, device=self.torch_device))
