"""Groups while a module is attached: staged, and ended."""

from __future__ import annotations

import logging
from typing import Any

import torch

from .._errors import FailedPrecondition, HoistError
from .._model import Group
from ._binding import Binding
from ._device_part import DevicePart
from ._idle import Shelf
from ._layout import GroupSpec
from ._operators import Operands
from ._resident import KeptLease, ResidentParameter

log = logging.getLogger("hoist.nn")


class LiveGroup:
    """One group of an attached module: on the device, or not.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, spec: GroupSpec, part: DevicePart, staged: Group,
                 original: Group, shelf: Shelf, deadline: float,
                 idle: str) -> None:
        """See Binding."""
        self.spec = spec
        self.part = part
        self.staged = staged
        self.binding = Binding(spec, part, staged, original, shelf, deadline,
                               idle)
        self.depth = 0  # Modules that are running and need it.
        self.is_staged = False
        self.bound = False  # See bind.
        self.pinned = spec.pinned
        self._deadline = deadline
        self._lease: Any = None
        self._stream: int | None = None
        self._address = 0  # Where it was staged last.
        self._nbytes = staged.image_bytes
        self._warned = False  # That it is staged beside the plan.
        # Of compiled code that stages it; see _one_graph.
        self.operable = True
        self.operands: Operands | None = None

    @property
    def is_in_plans_place(self) -> bool:
        """Staged by the plan, which cannot be made anew meanwhile."""
        return self.is_staged and self._lease is None

    def stage(self, beside_plan: bool = False) -> None:
        """The weights are there for what is put on the current stream.

        beside_plan: by a lease, whose bytes this waits for.
        """
        self._stream = self.part.stream()
        if self.part.is_capturing():
            self.part.captured = True
        try:
            self._address = self._bring(beside_plan or self.pinned)
            self.binding.fill_and_show(self._address)
        except BaseException as error:
            raised = (self.part.explained(error)
                      if isinstance(error, HoistError) else error)
            self.end()  # What was staged must be ended.
            try:
                raise raised
            finally:
                del raised  # Or it would keep this frame, and itself.
        if self.binding.idle.pointers:
            self.binding.idle.end_pointers()

    # Within compiled code.

    def planned_weights(self, kind: type[ResidentParameter]
                        ) -> list[torch.Tensor] | None:
        """Where the plan will put them, made of that type; the same list for
        as long as they stay the same tensors. None: it does not, or something
        is to be done to them at each forward."""
        plan = self.part.plan
        if (plan is None or self.bound or self.pinned
                or plan.kind(self.staged) != "streamed"):
            return None
        placed = self.binding.placed()
        if placed is not None:
            return placed
        tensors = plan.tensors(self.staged)
        for info in self.staged.tensors:
            if info.nbytes:
                at = tensors[info.name].address - info.offset
                with torch.inference_mode(False):
                    return self.binding.place(at, kind)
        return None

    def show_in_place(self, with_grad: bool) -> bool:
        """Before it is staged, what `planned_weights` gave. False: code that
        stages it would put its own in the place of others'."""
        return self.binding.show_placed(with_grad)

    def stage_in_place(self) -> bool:
        """Stages it to where its weights are shown; False: it cannot be."""
        self._stream = self.part.stream()
        if self.part.is_capturing():
            self.part.captured = True
        assert self.part.plan is not None
        try:
            self._address = self.part.plan.stage(self.staged,
                                                 stream=self._stream)
        except FailedPrecondition:
            self.part.plan.check()
            return False
        except HoistError as error:
            raise self.part.explained(error) from None
        self.is_staged = True
        return self.binding.is_placed_at(self._address)

    def end_in_place(self) -> None:
        """What is on the stream by now is the last that reads it."""
        if self.is_in_plans_place:
            self.is_staged = False
            self._give_back()

    # For good.

    @property
    def is_resident(self) -> bool:
        """The plan keeps it on the device, or a lease for the module's life."""
        if self.pinned or not self.staged.image_bytes:
            return True
        return (self.part.plan is not None
                and self.part.plan.kind(self.staged) == "resident")

    def bind(self) -> bool:
        """Of a resident: its weights are shown on the device from now on, until
        `unbind`, and nothing is to be done at its modules' calls. Waits for the
        bytes. False: not yet, as its next forward is to be looked at."""
        if self.bound or self.depth or not self.binding.may_stay:
            return self.bound
        lease: KeptLease | None = None
        with torch.inference_mode(False):
            if self.staged.image_bytes:
                lease = KeptLease(self.part.session.stage(
                    self.staged, device=self.part.device.index,
                    deadline=self._deadline), self.part.torch_device)
            self.binding.stay(lease, lease.address if lease else 0)
        self.bound = True
        return True

    def unbind(self, show_idle: bool = True) -> None:
        """Weights that somebody holds keep their bytes."""
        if self.bound:
            self.bound = False
            self.binding.end_stay(show_idle)

    def leave_out(self) -> None:
        """No module has its weights any more; nobody runs in it."""
        try:
            self.end(show_idle=False)
        finally:
            self.unbind(show_idle=False)

    def show(self) -> None:
        """Of a pinned group: its weights, which are there."""
        address = self._lease.address
        if not address and self.staged.image_bytes:
            try:
                self._lease.check()
            except HoistError as error:
                raise self.part.explained(error) from None
        self.binding.show(address)

    def forget(self) -> None:
        """What was staged is hoistd's no more, nor hoistd there."""
        self.unbind()
        self.is_staged = False
        self.depth = 0
        self._lease = None
        self.binding.forget_addresses()
        self.binding.end_alone()
        self.binding.show_idle()

    def move(self, staged: Group) -> None:
        """From now on it is staged from there; it is forgotten."""
        self.staged = staged
        self.binding.move(staged)

    def _bring(self, by_lease: bool) -> int:
        """Returns its address."""
        plan = self.part.held.plan
        if plan is not None and not by_lease:
            try:
                address = plan.stage(self.staged, stream=self._stream)
                self.is_staged = True
                return address
            except FailedPrecondition as error:
                plan.check()
                log.log(logging.DEBUG if self._warned else logging.WARNING,
                        "%s is staged beside the plan: %s", self.spec.name,
                        error)
                self._warned = True
        self._lease = self.part.session.stage(
            self.staged, device=self.part.device.index,
            deadline=self._deadline)
        self.part.held.leases[id(self._lease)] = self._lease
        self.is_staged = True
        with torch.inference_mode(False):
            self.binding.lie_alone()
        return int(self._lease.address)

    def end(self, show_idle: bool = True) -> None:
        """What is on the stream by now is the last that reads it."""
        if not self.is_staged:
            return
        self.is_staged = False
        try:
            self.binding.end_forward(self._address)
        finally:
            if show_idle:
                self.binding.show_idle()
            self._give_back()

    def is_lent(self, tensor: torch.Tensor) -> bool:
        """It shows bytes that are staged now, and not for good."""
        return self.is_staged and not self.pinned and (
            0 <= tensor.data_ptr() - self._address < self._nbytes)

    def _give_back(self) -> None:
        try:
            if self._lease is not None:
                self.part.synchronize()
                lease, self._lease = self._lease, None
                self.binding.end_alone()
                self.part.held.leases.pop(id(lease), None)
                if not self.part.ended:
                    lease.release()
                return
            plan = self.part.held.plan
            if plan is not None and not self.part.ended:
                plan.done(self.staged, stream=self._stream)
        except HoistError as error:
            raise self.part.explained(error) from None
