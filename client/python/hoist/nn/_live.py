"""Groups while a module is attached: staged, and ended."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .._errors import FailedPrecondition, HoistError
from .._model import Group
from ._binding import Binding
from ._device_part import DevicePart
from ._idle import Shelf
from ._inventory import Stored, as_stored
from ._layout import GroupSpec
from ._lent import Read
from ._operators import Operands
from ._resident import KeptLease, ResidentParameter
from ._shown import scratch_places, unseen

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
        self.holds = 0  # See hold.
        self.is_staged = False
        self._is_shown = False  # It was staged for its modules.
        self.bound = False  # See bind.
        self.pinned = spec.pinned
        self._cast = scratch_places(spec)  # Places of what is cast.
        self.saved: weakref.WeakSet[Any] = weakref.WeakSet()  # See _saved.
        self._reads: dict[str, Read] = {}
        self._reads_at = (0, 0)  # Addresses of the group and its casts.
        self._deadline = deadline
        self._lease: Any = None
        self._streams: list[int | None] = []  # That it was staged on.
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

    def needs_own_scratch(self) -> bool:
        """A cast has one place to go to for all groups of the plan, and another
        group's weights are there."""
        return self.binding.casts_bytes > 0 and any(
            one is not self and not one.pinned and one.binding.casts_bytes > 0
            for one in self.part.staged)

    def stage(self, beside_plan: bool = False) -> None:
        """The weights are there for what is put on the current stream.

        beside_plan: by a lease, whose bytes this waits for.
        """
        try:
            self._reach(beside_plan)
            self._is_shown = True
            self.binding.fill_and_show(self._address)
        except BaseException as error:
            raised = (self.part.explained(error)
                      if isinstance(error, HoistError) else error)
            self.end()  # What was staged must be ended.
            self._let_go_of()
            try:
                raise raised
            finally:
                del raised  # Or it would keep this frame, and itself.
        if self.binding.idle.pointers:
            self.binding.idle.end_pointers()

    def hold(self, beside_plan: bool = False) -> None:
        """The bytes are there for what is put on the current stream, past the
        modules, until `release`; as often as it is called."""
        try:
            was_there = self.is_staged
            self._reach(beside_plan)
            if not was_there:
                self.binding.fill(self._address)
        except BaseException as error:
            self._let_go_of()
            if isinstance(error, HoistError):
                raise self.part.explained(error) from None
            raise
        self.holds += 1

    def release(self) -> None:
        """What is on the streams by now is the last that reads it."""
        if self.holds:
            self.holds -= 1
            self._let_go_of()

    def _let_go_of(self) -> None:
        if self.is_staged and not (self._is_shown or self.holds
                                   or self.pinned):
            self._note_staged(False)
            self._give_back()

    def _reach(self, beside_plan: bool) -> None:
        """It is staged, for the current stream."""
        stream = self.part.stream_to_stage()
        if not self.is_staged:
            self._streams = [stream]
            self._address = self._bring(beside_plan or self.pinned)
        elif stream not in self._streams and not self.pinned:
            if self._lease is None:
                assert self.part.plan is not None
                self.part.plan.stage(self.staged, stream=stream)
            self._streams.append(stream)

    def _note_staged(self, is_staged: bool) -> None:
        self.is_staged = is_staged
        if is_staged and not self.bound:
            self.part.staged[self] = None
        else:
            self.part.staged.pop(self, None)

    # For graphs, which have saved what shows it.

    def find(self, there: int, nbytes: int) -> tuple[Stored, int] | None:
        """Which stored tensor lies there, and how far from its begin; None: it
        is none of what is staged, or hoistd has it back."""
        given = (self.part.plan is not None if self._lease is None else
                 id(self._lease) in self.part.held.leases)
        scratch = self.binding.scratch()
        if not given or (scratch is None and not
                         0 <= there - self._address < self._nbytes):
            return None
        for stored in self.spec.stored:
            begin = self._address + self.binding.infos[stored.name].offset
            if scratch is not None and stored.name in self._cast:
                begin = scratch.data_ptr() + self._cast[stored.name]
            if begin <= there and there + nbytes <= begin + stored.nbytes:
                return stored, there - begin
        return None

    def read(self, name: str) -> Read:
        """A stored tensor of it, while it is staged: made once an address."""
        scratch = self.binding.scratch()
        at = (self._address, 0 if scratch is None else scratch.data_ptr())
        if at != self._reads_at:
            self._reads, self._reads_at = {}, at
        found = self._reads.get(name)
        if found is None or found.is_kept:
            found = self._reads[name] = Read(self.stored(name))
        return found

    def stored(self, name: str) -> torch.Tensor:
        """The same with a storage of its own; or of what is bound."""
        scratch = self.binding.scratch()
        if scratch is None or name not in self._cast:
            return self.binding.views_at(self._address)[name]
        stored = next(one for one in self.spec.stored if one.name == name)
        at = self._cast[name]
        return as_stored(from_dlpack(scratch[at:at + stored.nbytes]), stored)

    # Within compiled code.

    def planned_weights(self, kind: type[ResidentParameter]
                        ) -> list[torch.Tensor] | None:
        """Where the plan will put them, made of that type; the same list for
        as long as they stay the same tensors. None: it does not, or something
        is to be done to them at each forward."""
        plan = self.part.held.plan
        if plan is None or self.bound or self.pinned:
            return None
        placed = self.binding.placed()  # Forgotten when the plan is made anew.
        if placed is not None:
            return placed
        if plan.kind(self.staged) != "streamed":
            return None
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
        if self.holds:
            return False  # A backward reads it, where it is.
        self._streams = [self.part.stream_to_stage()]
        assert self.part.plan is not None
        try:
            self._address = self.part.plan.stage(self.staged,
                                                 stream=self._streams[0])
        except FailedPrecondition:
            self.part.plan.check()
            return False
        except HoistError as error:
            raise self.part.explained(error) from None
        self.is_staged = True
        return self.binding.is_placed_at(self._address)

    def end_in_place(self) -> None:
        """What is on the stream by now is the last that reads it."""
        if self.is_in_plans_place and not self.holds:
            self._is_shown = False
            self._note_staged(False)
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
        self._note_staged(self.is_staged)
        return True

    def unbind(self, show_idle: bool = True) -> None:
        """Weights that somebody holds keep their bytes."""
        if self.bound:
            self.bound = False
            self.binding.end_stay(show_idle)
            self._note_staged(self.is_staged)

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
        self._note_staged(False)
        self._is_shown = False
        self.depth = self.holds = 0
        self._lease = None
        self._reads = {}
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
                address = plan.stage(self.staged, stream=self._streams[0])
                self._note_staged(True)
                return address
            except FailedPrecondition as error:
                plan.check()
                log.log(logging.DEBUG if self._warned else logging.WARNING,
                        "%s is staged beside the plan: %s", self.spec.name,
                        error.message)  # It has the frames of all callers.
                self._warned = True
        self._lease = self.part.session.stage(
            self.staged, device=self.part.device.index,
            deadline=self._deadline)
        self.part.held.leases[id(self._lease)] = self._lease
        self._note_staged(True)
        with unseen():
            self.binding.lie_alone()
        return int(self._lease.address)

    def end(self, show_idle: bool = True) -> None:
        """What is on the stream by now is the last that reads it."""
        if not self._is_shown:
            return
        self._is_shown = False
        is_last = not self.holds
        if is_last:
            self._note_staged(False)
        try:
            self.binding.end_forward(self._address)
        finally:
            if show_idle:
                self.binding.show_idle()
            if is_last:
                self._give_back()

    def is_lent(self, tensor: torch.Tensor) -> bool:
        """It shows bytes that are staged now, and not for good."""
        return self.is_staged and not self.pinned and (
            0 <= tensor.data_ptr() - self._address < self._nbytes)

    def _give_back(self) -> None:
        try:
            if self._lease is not None:
                self.part.synchronize(self._streams)
                lease, self._lease = self._lease, None
                self.binding.end_alone()
                self.part.held.leases.pop(id(lease), None)
                if not self.part.ended:
                    lease.release()
                return
            plan = self.part.held.plan
            if plan is not None and not self.part.ended:
                for stream in self._streams:
                    plan.done(self.staged, stream=stream)
        except HoistError as error:
            raise self.part.explained(error) from None
