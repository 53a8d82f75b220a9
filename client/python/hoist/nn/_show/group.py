"""One group of an attached module: its state, and its transitions."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Mapping

import torch
from torch.utils.dlpack import from_dlpack

from ... import _hot, _model
from ..._errors import FailedPrecondition, HoistError
from .._graph.operators import Operands
from .._tensors.idle import Shelf
from .._tensors.lent import Read
from .._tensors.resident import KeptLease, ResidentParameter
from .._tensors.views import Views
from .._tree.inventory import Stored, as_stored
from .._tree.layout import GroupSpec
from .binding import Binding
from .device_part import DevicePart
from .shown import unseen
from .states import IDLE, Resident, Staged, State

log = logging.getLogger("hoist.nn")


class Group(*_hot.fields("Group")):  # type: ignore[misc]
    """Threads: one at a time; the attachment's lock. `find`: any."""

    def __init__(self, spec: GroupSpec, part: DevicePart, staged: _model.Group,
                 original: _model.Group, shelf: Shelf, deadline: float,
                 idle: str) -> None:
        """See Binding."""
        self.spec = spec
        self.part = part
        self.staged = staged
        self.binding = Binding(spec, part, staged, original, shelf, deadline,
                               idle)
        self.state: State = IDLE
        self.pinned = spec.pinned
        self.block = spec.block or spec.name  # Its groups are staged together.
        self.saved: weakref.WeakSet[Any] = weakref.WeakSet()  # See saved.py.
        self._reads: dict[str, Read] = {}
        self._reads_at = (0, 0)  # Addresses of the group and its casts.
        self._deadline = deadline
        self._warned = False  # That it was staged outside the plan.
        # For compiled code that stages it; see one_graph.py.
        self.operable = True
        self.operands: Operands | None = None

    def _become(self, state: State) -> None:
        assert state.__class__ in self.state.after
        self.state = state

    @property
    def bound(self) -> bool:
        return type(self.state) is Resident

    @property
    def is_in_plans_place(self) -> bool:
        """Staged by the plan, which cannot be renewed meanwhile."""
        return type(self.state) is Staged and self.state.lease is None

    def needs_own_scratch(self) -> bool:
        """For a group with casts: all groups of the plan share one scratch, and
        another group's weights are there."""
        return any(one is not self and not one.pinned
                   and one.binding.casts_bytes > 0 for one in self.part.staged)

    def _see(self, state: State) -> None:
        """Sets the state that modules see, whether it is staged or not."""
        if type(self.state) is Staged:
            self.state.before, self.state.shown = state, None
        else:
            self._become(state)
        self.binding.see(state)

    # Temporary stages.

    def stage(self, outside_plan: bool = False) -> None:
        """Stages the weights for later work on the current stream.

        outside_plan: by a lease; waits for its bytes.
        """
        was = self.state
        if self.pinned and type(was) is Staged:
            self._show_pinned(was)
            return
        binding = self.binding
        try:
            binding.show_staged(
                self._reach(outside_plan) if type(was) is Staged else
                self._bring(outside_plan or self.pinned,
                            self.part.stream_to_stage()), self.staged)
        except BaseException as error:
            raised = (self.part.explained(error)
                      if isinstance(error, HoistError) else error)
            self._see(IDLE)
            self._leave_unused()  # A stage must be ended.
            try:
                raise raised
            finally:
                del raised  # It would keep this frame, and so itself.
        if binding.idle.pointers:
            binding.idle.end_pointers()

    def end(self, stays_shown: bool = False) -> None:
        """Work on the stream so far contains the last reader.

        stays_shown: modules keep staged weights until `rest`.
        """
        staged = self.state
        if type(staged) is not Staged or staged.shown is None:
            return
        try:
            self.binding.end_forward(staged.shown)
        finally:
            staged.shown = None
            before = staged.before
            if before is not IDLE and before is not self.binding.placement:
                before = staged.before = IDLE  # The plan was renewed.
            try:
                if not stays_shown:
                    self.binding.see(before)
            finally:
                if not staged.holds:
                    self._leave(staged)

    def _leave(self, staged: Staged, to: State | None = None) -> None:
        """Gives hoistd's memory back."""
        after = to or staged.before
        assert after.__class__ in Staged.after  # _become, inlined: the hot path.
        self.state = after
        part = self.part
        plan = part.held.plan
        part.staged.pop(self, None)
        try:
            if staged.lease is not None:
                self.binding.forget_shown()
                part.synchronize(staged.streams)
                part.held.leases.pop(id(staged.lease), None)
                if not part.ended:
                    staged.lease.release()
            elif plan is not None and not part.ended:
                for stream in staged.streams:
                    plan.done(self.staged, stream=stream)
        except HoistError as error:
            raise part.explained(error) from None

    def hold(self, outside_plan: bool = False) -> None:
        """Stages the bytes for later work on the current stream, without the
        modules, until `release`. Calls nest."""
        was_there = type(self.state) is Staged
        try:
            staged = self._reach(outside_plan)
            if self.binding.casts_bytes and not was_there:
                self.binding.fill(staged)
        except BaseException as error:
            self._leave_unused()
            if isinstance(error, HoistError):
                raise self.part.explained(error) from None
            raise
        staged.holds += 1

    def release(self) -> None:
        """Work on the streams so far contains the last reader."""
        staged = self.state
        if type(staged) is Staged and staged.holds:
            staged.holds -= 1
            self._leave_unused()

    def _leave_unused(self) -> None:
        staged = self.state
        if type(staged) is Staged and not (staged.shown or staged.holds
                                           or self.pinned):
            self._leave(staged)

    def _reach(self, by_lease: bool) -> Staged:
        """Makes it staged for the current stream."""
        stream = self.part.stream_to_stage()
        staged = self.state
        if type(staged) is not Staged:
            return self._bring(by_lease or self.pinned, stream)
        if stream not in staged.streams and not self.pinned:
            if staged.lease is None:
                assert self.part.plan is not None
                self.part.plan.stage(self.staged, stream=stream)
            staged.streams.append(stream)
        return staged

    def _bring(self, by_lease: bool, stream: int | None) -> Staged:
        plan = self.part.held.plan
        if plan is None or by_lease:
            return self._bring_by_lease(stream)
        try:
            address = plan.stage(self.staged, stream=stream)
        except FailedPrecondition as error:
            plan.check()
            log.log(logging.DEBUG if self._warned else logging.WARNING,
                    "%s is staged beside the plan: %s", self.spec.name,
                    error.message)  # The error has all callers' frames.
            self._warned = True
            return self._bring_by_lease(stream)
        assert Staged in self.state.after  # _become, inlined: the hot path.
        self.state = staged = Staged(address, stream, self.state)
        self.part.staged[self] = None
        if self.binding.casts_bytes:
            with unseen():
                staged.scratch = self.part.scratch()
        return staged

    def _bring_by_lease(self, stream: int | None) -> Staged:
        lease = self.part.session.stage(
            self.staged, device=self.part.device.index,
            deadline=self._deadline)
        self.part.held.leases[id(lease)] = lease
        staged = Staged(int(lease.address), stream, self.state, lease)
        self._become(staged)
        self.part.staged[self] = None
        self.binding.forget_shown()
        if self.binding.casts_bytes:
            with unseen():
                staged.scratch = torch.empty(
                    self.binding.casts_bytes, dtype=torch.uint8,
                    device=self.part.torch_device)
        return staged

    def is_lent(self, tensor: torch.Tensor) -> bool:
        """It shows temporarily staged bytes."""
        staged = self.state
        return type(staged) is Staged and not self.pinned and (
            0 <= tensor.data_ptr() - staged.address < self.staged.image_bytes)

    @property
    def past_hooks(self) -> str | None:
        """The name of a shown weight that graphs keep past hooks."""
        shown = self.state.shown
        return None if shown is None else shown.past_hooks

    # For graphs with saved tensors over the group's bytes.

    def find(self, there: int, nbytes: int) -> tuple[Stored, int] | None:
        """The stored tensor at that address, and the offset in it; None: no
        staged tensor is there, or its memory was given back."""
        staged = self.state
        if type(staged) is not Staged:
            return None  # No longer.
        given = (self.part.plan is not None if staged.lease is None else
                 id(staged.lease) in self.part.held.leases)
        scratch = staged.scratch
        if not given or (scratch is None and not 0 <= there - staged.address
                         < self.staged.image_bytes):
            return None
        for stored in self.spec.stored:
            begin = staged.address + self.binding.infos[stored.name].offset
            if scratch is not None and stored.name in self.binding.casts:
                begin = scratch.data_ptr() + self.binding.casts[stored.name]
            if begin <= there and there + nbytes <= begin + stored.nbytes:
                return stored, there - begin
        return None

    def read(self, name: str) -> Read:
        """A stored tensor of it while it is staged, made once an address."""
        staged = self.state
        assert type(staged) is Staged
        at = (staged.address, 0 if staged.scratch is None else
              staged.scratch.data_ptr())
        if at != self._reads_at:
            self._reads, self._reads_at = {}, at
        found = self._reads.get(name)
        if found is None or found.is_kept:
            found = self._reads[name] = Read(self.stored(name))
        return found

    def stored(self, name: str) -> torch.Tensor:
        """The same with a storage of its own; also for a bound group."""
        state = self.state
        if (type(state) is Staged and state.scratch is not None
                and name in self.binding.casts):
            stored = next(one for one in self.spec.stored if one.name == name)
            at = self.binding.casts[name]
            return as_stored(
                from_dlpack(state.scratch[at:at + stored.nbytes]), stored)
        assert isinstance(state, (Staged, Resident))
        info = self.binding.infos[name]
        return Views(self.part.device, state.lease if self.bound else None).at(
            state.address + info.offset, info)

    # In compiled code.

    def planned_weights(self, kind: type[ResidentParameter]
                        ) -> list[torch.Tensor] | None:
        """The weights at the plan's addresses, of that type; the same list as
        long as the tensors are the same. None: the plan has no fixed address,
        or each forward has work to do on them."""
        plan = self.part.held.plan
        if plan is None or self.bound or self.pinned:
            return None
        if self.binding.placement is not None:
            return self.binding.placement.weights
        if plan.kind(self.staged) != "streamed":
            return None
        tensors = plan.tensors(self.staged)
        info = next(one for one in self.staged.tensors if one.nbytes)
        with torch.inference_mode(False):
            return self.binding.place(
                tensors[info.name].address - info.offset, kind)

    def show_in_place(self, with_grad: bool) -> bool:
        """Before the stage, shows the weights from `planned_weights`. False:
        code that stages it would overwrite foreign values."""
        placed = self.binding.placement
        assert placed is not None
        placed.follow(with_grad)
        placed.in_code = ()
        self._see(placed)
        if any(one.holder.get(one.key) is not one.idle
               for one in placed.rebuilt.values()):
            return False
        placed.in_code = self.binding.in_code = [*placed.rebuilt]
        return True

    def stage_in_place(self) -> bool:
        """Stages it to the address of its shown weights; False: impossible."""
        if self.bound or self.state.holds:
            return False  # A backward reads it at its address.
        if type(self.state) is Staged:  # Code that staged it has failed.
            self._become(self.state.before)
        stream = self.part.stream_to_stage()
        assert self.part.plan is not None
        try:
            address = self.part.plan.stage(self.staged, stream=stream)
        except FailedPrecondition:
            self.part.plan.check()
            return False
        except HoistError as error:
            raise self.part.explained(error) from None
        self._become(Staged(address, stream, self.state))
        return self.binding.is_placed_at(address)

    def end_in_place(self) -> None:
        """Work on the stream so far contains the last reader."""
        staged = self.state
        if (type(staged) is Staged and staged.lease is None
                and not staged.holds):
            self._leave(staged)

    def rest(self) -> None:
        """Shows idle weights, whatever state a pass has left."""
        if self.state is IDLE:
            self.binding.see(IDLE)  # With idle="slot" modules have others.
        elif not self.bound:
            self.end_in_place()
            self._see(IDLE)

    # Residents.

    @property
    def is_resident(self) -> bool:
        """The plan keeps it on the device, or a lease for the module's life."""
        if self.pinned or not self.staged.image_bytes:
            return True
        return (self.part.plan is not None
                and self.part.plan.kind(self.staged) == "resident")

    def pin(self) -> None:
        """Stages a pinned group for good."""
        self.stage()
        self._see(IDLE)

    def _show_pinned(self, staged: Staged) -> None:
        try:
            staged.lease.address
        except HoistError as error:  # hoistd has ended.
            raise self.part.explained(error) from None
        self.binding.show(self.binding.shown_at(staged.address, staged.scratch))
        self.binding.idle.end_pointers()

    def bind(self) -> bool:
        """Shows a resident's weights on the device until `unbind`, so that its
        modules' calls have no work to do. Waits for the bytes. False: not yet,
        as its next forward must be checked."""
        state = self.state
        if self.bound or state.running or not self.binding.may_stay or (
                type(state) is Staged and not self.pinned):
            return self.bound
        lease: KeptLease | None = None
        with torch.inference_mode(False):
            if self.staged.image_bytes:
                lease = KeptLease(self.part.session.stage(
                    self.staged, device=self.part.device.index,
                    deadline=self._deadline), self.part.torch_device)
            resident = self.binding.show_for_good(lease)
        if type(state) is Staged:
            self._leave(state, resident)
        else:
            self._become(resident)
        return True

    def unbind(self) -> None:
        """Weights that are still referenced keep their bytes."""
        if self.bound:
            self.binding.follow_flags(resident=True)
            self._see(IDLE)

    def read_there(self) -> Mapping[str, torch.Tensor]:
        """The stored tensors' bytes, for a group that stays on the device."""
        found = {}
        for stored in self.spec.stored:
            if stored.nbytes:
                there = self.stored(stored.name)
                count = stored.nbytes // there.element_size()
                found[stored.name] = there.as_strided(
                    (count,), (1,)).view(torch.uint8)
        return found

    # The end.

    def leave_out(self) -> None:
        """The modules have their final values, or are gone; no call is
        running."""
        staged = self.state
        self.binding.show_nothing()
        if type(staged) is Staged:
            if torch.is_grad_enabled():
                self.binding.spoil_graphs()
            self._leave(staged, IDLE)
        else:
            self._become(IDLE)

    def forget(self) -> None:
        """hoistd, or the memory that it gave, is gone."""
        self.unbind()
        self.part.staged.pop(self, None)
        self.state = IDLE
        self._reads = {}
        self.binding.forget_addresses()
        self.binding.see(IDLE)

    def move(self, staged: _model.Group) -> None:
        """Stages from that group from now on; `forget` came before."""
        self.staged = staged
        self.binding.infos = {info.name: info for info in staged.tensors}
