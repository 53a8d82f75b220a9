"""Groups while a module is attached: staged, shown to the module, ended."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import Any, Iterable, Iterator, Mapping

import torch

from .. import _session
from .._errors import FailedPrecondition, Unavailable
from .._model import Group, Model
from .._plan import Plan, PlanStats
from .._tensor import Tensor
from ._idle import IdleGroup, IdleTensor, Shelf
from ._inventory import Stored, Weight, as_stored, span_bytes
from ._layout import GroupSpec

log = logging.getLogger("hoist.nn")

# A buffer this small is the worker's own, on the device: a forward may write
# to it. Larger ones are, too, if they are not persistent, or once their first
# forward has written to them.
PRIVATE_BYTES = 1 << 20
# Addresses whose objects are kept. A plan gives each group one; a group that
# is staged outside of it may lie anywhere.
_ADDRESSES = 4


# Where to put what: `holder[key] = value`.
Swap = tuple[dict[str, Any], str, Any]


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
            if plan is not None:
                stack.callback(plan.close)
            for lease in leases.values():
                stack.enter_context(contextlib.suppress(Unavailable))
                stack.callback(lease.release)
            if self.torch_device.type == "cuda" and (leases or plan):
                torch.cuda.synchronize(self.torch_device)


class DevicePart:
    """The groups that are staged on one device, and the plan they follow."""

    def __init__(self, session: _session.Session, device: _session.Device,
                 torch_device: torch.device) -> None:
        self.session = session
        self.device = device
        self.torch_device = torch_device
        self.held = Held(torch_device)
        self.budget = 0  # Of the plan, as asked for.
        self.planned: list[LiveGroup] = []  # In the plan's order.
        self.missed = 0  # Stages that the plan had nothing for, when planned.
        self._past: list[PlanStats] = []  # Of plans before this one.
        self._terms: dict[str, Any] = {}
        self.captured = False  # A CUDA graph holds the plan's addresses.
        self.scratch_needed = 0  # By the group that casts most.
        self._scratch: torch.Tensor | None = None
        self._scratch_stream: int | None = None

    @property
    def plan(self) -> Plan | None:
        return self.held.plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self.held.plan = plan

    def make_plan(self, order: list[LiveGroup], model: Model, deadline: float,
                  weight: int, priority: int, learn: bool) -> None:
        """Plans for the first time."""
        self._terms = {"model": model, "device": self.device.index,
                       "deadline": deadline, "weight": weight,
                       "priority": priority}
        self.plan = self.session.set_plan(
            order=[group.staged for group in order], budget=self.budget,
            learn=learn, **self._terms)
        self.planned = order
        info = self.plan.info
        if info.streamed_bytes and info.ring_bytes * 8 > info.budget_bytes:
            log.info(
                "%s: groups on their way take %d of the budget's %d bytes; "
                "with smaller ones (groups=) more of it would be left for what "
                "stays", model.name, info.ring_bytes, info.budget_bytes)

    def plan_again(self, order: list[LiveGroup]) -> None:
        """With another order. ResourceExhausted: there is no plan now."""
        assert self.plan is not None
        self._past.append(self.plan.stats)
        self.plan.close()
        self.plan = None
        self.plan = self.session.set_plan(
            order=[group.staged for group in order], budget=self.budget,
            **self._terms)
        self.planned = order
        self.missed = 0

    def count(self, what: str) -> int:
        """A field of PlanStats, over all plans."""
        now = [] if self.plan is None else [self.plan.stats]
        return sum(getattr(one, what) for one in self._past + now)

    def is_capturing(self) -> bool:
        """The current stream is recorded into a CUDA graph."""
        return (self.torch_device.type == "cuda"
                and torch.cuda.is_current_stream_capturing())

    def stream(self) -> int | None:
        """The worker's current stream, as CUDA's handle."""
        if self.torch_device.type != "cuda":
            return None
        return torch._C._cuda_getCurrentRawStream(self.torch_device.index)

    def synchronize(self) -> None:
        if self.torch_device.type == "cuda":
            torch.cuda.current_stream(self.torch_device).synchronize()

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


@dataclasses.dataclass
class _Shown:
    """A group's weights at one address: what to put where."""

    swaps: list[Swap]
    casts: list[tuple[torch.Tensor, torch.Tensor]]  # To, from.
    # What autograd would keep for a backward: as the module's own were, since
    # torch chooses kernels by it (matmul folds for weights that need grad).
    graded: list[torch.Tensor]


class LiveGroup:
    """One group of an attached module.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, spec: GroupSpec, part: DevicePart, staged: Group,
                 original: Group, shelf: Shelf, deadline: float,
                 idle: str) -> None:
        """`staged`: the group as it comes to the device. `original`: with the
        bytes that a weight shows while it is idle."""
        self.spec = spec
        self.part = part
        self.staged = staged
        self.depth = 0  # Modules that are running and need it.
        self.is_staged = False
        self.pinned = spec.pinned
        self._deadline = deadline
        self._lease: Any = None
        self._stream: int | None = None
        self._shown: dict[int, _Shown] = {}
        self._private: dict[int, Weight] = {}  # By id().
        self._trial: list[tuple[Weight, torch.Tensor, int]] = []
        self._scratch: torch.Tensor | None = None  # Under a lease: its own.
        self._buffers_seen = False
        self._warned = False  # That it is staged beside the plan.
        self._infos = {info.name: info for info in staged.tensors}
        self.idle = IdleGroup(part.session.host_image(original), shelf,
                              deadline)
        self._idle_kind = idle
        self._host_infos = {info.name: info for info in original.tensors}
        self._off = self._idle_swaps(spec.weights)
        self.casts_bytes = _scratch_bytes(spec)
        if not self.pinned:
            part.scratch_needed = max(part.scratch_needed, self.casts_bytes)

    # What the module sees.

    def _idle_swaps(self, weights: Iterable[Weight]) -> list[Swap]:
        bases = {stored.name: self._idle_base(stored)
                 for stored in self.spec.stored}
        swaps = []
        for weight in weights:
            parts = [part.view(bases[part.stored.name])
                     for part in weight.parts]
            parts = [part if part.is_meta or not part.numel() else
                     IdleTensor.make(part, self.idle) for part in parts]
            swaps += weight.swaps(weight.put_together(parts))
        return swaps

    def _idle_base(self, stored: Stored) -> torch.Tensor:
        """The stored tensor in the host image, loaded or not."""
        if self._idle_kind == "meta":
            return stored.meta
        if stored.nbytes == 0:
            return _empty(stored, torch.device("cpu"))
        return as_stored(self._host_bytes(stored), stored)

    def _host_bytes(self, stored: Stored) -> torch.Tensor:
        image = self.idle.image
        memory = self.idle.memory(
            image.address + self._host_infos[stored.name].offset,
            stored.nbytes)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def show_idle(self) -> None:
        for holder, key, value in self._off:
            holder[key] = value

    def stage(self, beside_plan: bool = False) -> None:
        """The weights are there for what is put on the current stream.

        beside_plan: by a lease, whose bytes this waits for.
        """
        self._stream = self.part.stream()
        if self.part.is_capturing():
            self.part.captured = True
        try:
            with torch.inference_mode(False):
                address = self._bring(beside_plan or self.pinned)
                self._fill_and_show(address)
        except BaseException:
            self.end()  # What was staged must be ended.
            raise
        self.idle.end_pointers()

    def _fill_and_show(self, address: int) -> None:
        shown = self._shown_at(address)
        if shown.casts:
            if self._scratch is None:
                self.part.order_scratch()
            with torch.no_grad():
                for to, source in shown.casts:
                    to.copy_(source)
        if not self._buffers_seen:
            shown = self._adopt_buffers(address, shown)
        for holder, key, value in shown.swaps:
            holder[key] = value

    def show(self) -> None:
        """Of a pinned group: its weights, which are there."""
        for holder, key, value in self._shown_at(self._lease.address).swaps:
            holder[key] = value
        self.idle.end_pointers()

    def _bring(self, by_lease: bool) -> int:
        """Returns its address."""
        if self.part.plan is not None and not by_lease:
            try:
                address = self.part.plan.stage(self.staged,
                                               stream=self._stream)
                self.is_staged = True
                return address
            except FailedPrecondition as error:
                self.part.plan.check()
                log.log(logging.DEBUG if self._warned else logging.WARNING,
                        "%s is staged beside the plan: %s", self.spec.name,
                        error)
                self._warned = True
        self._lease = self.part.session.stage(
            self.staged, device=self.part.device.index,
            deadline=self._deadline)
        self.part.held.leases[id(self._lease)] = self._lease
        self.is_staged = True
        self._shown.clear()
        if self.casts_bytes:
            self._scratch = torch.empty(self.casts_bytes, dtype=torch.uint8,
                                        device=self.part.torch_device)
        return int(self._lease.address)

    def end(self, show_idle: bool = True) -> None:
        """What is on the stream by now is the last that reads it."""
        if not self.is_staged:
            return
        self.is_staged = False
        if torch.is_grad_enabled():
            self._spoil_graphs()
        if self._trial:
            self._end_trial()
        if show_idle:
            self.show_idle()
        if self._lease is not None:
            self.part.synchronize()
            lease, self._lease = self._lease, None
            self._shown.clear()
            self._scratch = None
            self.part.held.leases.pop(id(lease), None)
            lease.release()
        elif self.part.plan is not None:
            self.part.plan.done(self.staged, stream=self._stream)

    def _spoil_graphs(self) -> None:
        """A backward through these weights would read what lies there by then;
        autograd raises instead, as after any change in place."""
        for shown in self._shown.values():
            for value in shown.graded:
                torch.autograd.graph.increment_version(value)

    def forget_addresses(self) -> None:
        """The plan was made anew."""
        self._shown.clear()

    def _shown_at(self, address: int) -> _Shown:
        shown = self._shown.get(address)
        if shown is None:
            while len(self._shown) >= _ADDRESSES:
                del self._shown[next(iter(self._shown))]
            shown = self._shown[address] = self._build(address)
        return shown

    def _build(self, address: int) -> _Shown:
        tensors = _Views(self, address)
        bases: dict[str, torch.Tensor] = {}
        casts = []
        scratch, at = None, 0
        if self.casts_bytes:
            scratch = (self._scratch if self._scratch is not None else
                       self.part.scratch())
        for stored in self.spec.stored:
            base = tensors[stored.name]
            if stored.name in self.spec.storage and stored.nbytes:
                assert scratch is not None
                to = as_stored(scratch[at:], stored)
                casts.append((to, base))
                at += _aligned(stored.nbytes)
                base = to
            bases[stored.name] = base
        shown = _Shown([], casts, [])
        for weight in self.spec.weights:
            if id(weight) in self._private:
                continue
            value = weight.put_together([part.view(bases[part.stored.name])
                                         for part in weight.parts])
            if weight.requires_grad:
                value.requires_grad_(True)
                shown.graded.append(value)
            shown.swaps += weight.swaps(value)
        return shown

    # Buffers that a forward may write.

    def _adopt_buffers(self, address: int, shown: _Shown) -> _Shown:
        """At the first stage: copies of the buffers, on the device."""
        self._buffers_seen = True
        values = {(id(holder), key): value
                  for holder, key, value in shown.swaps}
        for weight in self.spec.weights:
            if weight.kind != "buffer" or not weight.plain:
                continue
            place = weight.places[0]
            own = _copy(values[id(place.holder), place.key])
            weight.put(own)
            self._private[id(weight)] = weight
            if (own.nbytes >= PRIVATE_BYTES and not self.pinned
                    and _is_persistent(weight)):
                self._trial.append((weight, own, own._version))
        if not self._private:
            return shown
        self._off = [swap for swap in self._off
                     if not self._is_private(swap)]
        self._shown.clear()
        return self._shown_at(address)

    def _is_private(self, swap: Swap) -> bool:
        return any(place.holder is swap[0] and place.key == swap[1]
                   for weight in self._private.values()
                   for place in weight.places)

    def _end_trial(self) -> None:
        """Large buffers that nobody wrote to are shared after all."""
        for weight, own, version in self._trial:
            if weight.value is own and own._version == version:
                del self._private[id(weight)]
                self._shown.clear()
                self._off += self._idle_swaps([weight])
        self._trial = []

    def is_own_place(self, module: Any, key: str) -> bool:
        return any(place.module is module and place.key == key
                   for weight in self._private.values()
                   for place in weight.places)

    def is_own(self, weight: Weight) -> bool:
        """The worker's own memory, rather than hoist's."""
        return id(weight) in self._private

    def restore(self, devices: Mapping[str, torch.device]) -> None:
        """Gives the module its own weights again, with hoistd's bytes."""
        for holder, key, value in self.own_weights(devices):
            holder[key] = value

    def own_weights(self, devices: Mapping[str, torch.device]) -> list[Swap]:
        """What goes where to that end; the module is as it was."""
        if all(device.type == "meta" for device in devices.values()):
            return self._meta_weights()
        own: dict[str, torch.Tensor] = {}
        with self.idle.shelf.reading([self.idle]):
            for stored in self.spec.stored:
                device = devices[stored.name]
                own[stored.name] = (
                    as_stored(self._host_bytes(stored).to(device, copy=True),
                              stored)
                    if stored.nbytes else _empty(stored, device))
        swaps: list[Swap] = []
        for weight in self.spec.weights:
            if self.is_own(weight):
                device = devices[weight.parts[0].stored.name]
                if weight.value.device != device:
                    swaps += weight.swaps(_copy(weight.value, device))
                continue
            value = weight.put_together([part.view(own[part.stored.name])
                                         for part in weight.parts])
            if weight.requires_grad:
                value.requires_grad_(True)
            swaps += weight.swaps(value)
        return swaps

    def _meta_weights(self) -> list[Swap]:
        return [swap for weight in self.spec.weights for swap in weight.swaps(
            weight.put_together([part.view(part.stored.meta)
                                 for part in weight.parts]))]


class _Views(Mapping[str, torch.Tensor]):
    """A staged group's plain tensors, by name."""

    def __init__(self, live: LiveGroup, address: int) -> None:
        device = live.part.device
        self._infos = live._infos
        self._address = address
        # What hoist.Tensor asks of a lease.
        self.device_kind = {"emulated": 1, "cuda": 2}[device.kind]
        self.device_uuid = device.uuid

    def check(self) -> None:
        """The attachment knows when views may be used."""

    def __getitem__(self, name: str) -> torch.Tensor:
        info = self._infos[name]
        address = self._address + info.offset if info.nbytes else 0
        return Tensor(self, info, address).torch()

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


def _is_persistent(weight: Weight) -> bool:
    """Part of the state_dict; caches are not, and are written at any time."""
    return not any(place.key in place.module._non_persistent_buffers_set
                   for place in weight.places)


def _empty(stored: Stored, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(stored.meta.shape, stored.meta.stride(),
                               dtype=stored.meta.dtype, device=device)


def _copy(tensor: torch.Tensor,
          device: torch.device | None = None) -> torch.Tensor:
    """With the same strides, as clone() and to() keep them only where no
    element is shared or left out."""
    to = device or tensor.device
    count = span_bytes(tensor) // tensor.element_size()
    flat = tensor.detach().as_strided((count,), (1,)).to(to, copy=True)
    return torch.empty(0, dtype=tensor.dtype, device=to).set_(
        flat.untyped_storage(), 0, tensor.shape, tensor.stride())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def _scratch_bytes(spec: GroupSpec) -> int:
    return sum(_aligned(stored.nbytes) for stored in spec.stored
               if stored.name in spec.storage)
