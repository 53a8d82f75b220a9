"""A device on which an attached module's groups are staged."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, TypeVar

import torch

from ... import _hot, _session
from ..._errors import (HoistError, InvalidArgument, NotFound,
                        Unavailable)
from ..._plan import Plan, PlanInfo, PlanStats
from .._store.link import Link

T = TypeVar("T")


class Held:
    """hoistd's grants for the groups of one device. It refers to no module, so
    that they can be given back once one is collected."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self.plan: Plan | None = None
        self.leases: dict[int, Any] = {}  # By id().

    def give_back(self) -> None:
        """Gives all back once the GPU is done with it."""
        with contextlib.ExitStack() as stack:
            leases, self.leases = self.leases, {}
            plan, self.plan = self.plan, None
            for lease in leases.values():
                stack.enter_context(contextlib.suppress(Unavailable))
                stack.callback(lease.release)
            # First: if hoistd has stopped, this ends the GPU's waits for it.
            if plan is not None:
                plan.close()
            if self.torch_device.type == "cuda" and (leases or plan):
                torch.cuda.synchronize(self.torch_device)


def give_back(held: list[Held]) -> None:
    """All of them, even if some fail."""
    with contextlib.ExitStack() as stack:
        for one in held:
            stack.callback(one.give_back)


class DevicePart(*_hot.fields("Part")):  # type: ignore[misc]
    """One device of an attachment: its stream, its current plan, and the
    scratch for casts. All staged memory is `session`'s, which may have ended;
    the link may already have a new one."""

    def __init__(self, link: Link, device: _session.Device,
                 torch_device: torch.device) -> None:
        self.link = link
        self.session = link.session
        self.ended = False  # The session has ended, and a caller was told.
        self.device = device
        self.torch_device = torch_device
        self._is_cuda = torch_device.type == "cuda"
        self._index = torch_device.index
        self.cuda_index = self._index if self._is_cuda else None
        self.held = Held(torch_device)
        self.captured = False  # A CUDA graph holds the plan's addresses.
        # Groups with a temporary stage, which all held ones have.
        self.staged: dict[Any, None] = {}
        self.reader: Any = None
        self.scratch_needed = 0  # By the group with the most casts.
        self._scratch: torch.Tensor | None = None
        self._scratch_stream: int | None = None

    @property
    def is_held(self) -> bool:
        """One of its groups is; see Group.hold. Of hundreds few are staged."""
        return any(group.state.holds for group in tuple(self.staged))

    @property
    def plan(self) -> Plan | None:
        return self.held.plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self.held.plan = plan

    @property
    def info(self) -> PlanInfo | None:
        """The plan's; None: there is none, or it has just given way."""
        return self._read(lambda plan: plan.info)

    @property
    def stats(self) -> PlanStats | None:
        """As `info`."""
        return self._read(lambda plan: plan.stats)

    def _read(self, facts: Callable[[Plan], T]) -> T | None:
        plan = self.plan
        try:
            return None if plan is None else facts(plan)
        except InvalidArgument:
            return None

    def move(self, session: _session.Session) -> None:
        """Nothing is staged. NotFound: the new hoistd lacks the device."""
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
        """The error to raise for one that came during a stage. The session's
        end is reported once, and nothing has to be ended in it from then on."""
        found = self.link.explained(error, self.session)
        self.ended = self.ended or found is not error
        return found

    def is_capturing(self) -> bool:
        """The current stream is being captured into a CUDA graph."""
        return self._is_cuda and torch._C._cuda_isCurrentStreamCapturing()

    def stream(self) -> int | None:
        """The worker's current stream, as CUDA's handle."""
        if not self._is_cuda:
            return None
        return torch._C._cuda_getCurrentRawStream(self._index)

    def stream_to_stage(self) -> int | None:
        """The same, at a stage; each stage comes here."""
        if self.is_capturing():
            self.captured = True
        if not self._is_cuda:
            return None
        return torch._C._cuda_getCurrentRawStream(self._index)

    def synchronize(self, streams: list[int | None]) -> None:
        """Waits for the work on these streams."""
        if self.torch_device.type != "cuda":
            return
        if streams == [self.stream()]:
            torch.cuda.current_stream(self.torch_device).synchronize()
        else:
            self.synchronize_all()

    def synchronize_all(self) -> None:
        """Waits for the work on all streams of this process."""
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize(self.torch_device)

    def scratch(self) -> torch.Tensor:
        """The memory for cast weights: one place, since groups with casts are
        used one after another."""
        if self._scratch is None:
            self._scratch = torch.empty(self.scratch_needed, dtype=torch.uint8,
                                        device=self.torch_device)
        return self._scratch

    @property
    def scratch_bytes(self) -> int:
        return 0 if self._scratch is None else self._scratch.numel()

    def order_scratch(self) -> None:
        """The current stream waits for the scratch's last reader."""
        stream = self.stream()
        last, self._scratch_stream = self._scratch_stream, stream
        if last is None or last == stream or (
                torch.cuda.is_current_stream_capturing()):
            return
        torch.cuda.current_stream(self.torch_device).wait_stream(
            torch.cuda.ExternalStream(last, device=self.torch_device))
