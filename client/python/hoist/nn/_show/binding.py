"""A group's weights as its modules see them.

Binding puts tensors into the modules' dictionaries: over bytes on the device,
made once an address, for a forward or for as long as the bytes stay; idle ones
that can be read meanwhile; or ones in the worker's own memory. It neither
stages nor waits.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Iterable, Mapping, Sequence

import torch

from ... import _hot, _model
from ..._host_image import HostImage
from ..._hot import Swap
from .._tensors.idle import IdleGroup, IdleTensor, Shelf
from .._tensors.rebuilt import is_possible, take_weights
from .._tensors.resident import KeptLease, ResidentParameter, guarded
from .._tensors.views import Views
from .._tree.inventory import Stored, Weight, as_stored, copy_of
from .._tree.layout import GroupSpec
from .device_part import DevicePart
from .gate import gate_of
from .shown import (Shown, empty, goes_past_hooks, grade, is_lent,
                    is_persistent, scratch_places, unseen)
from .states import Placed, Resident, Staged, State

# A buffer this small is the worker's own, on the device: a forward may write
# to it. So are larger ones that are not persistent, or that the first forward
# has written to.
PRIVATE_BYTES = 1 << 20
# Addresses with cached objects. A plan gives each group one; a group staged
# outside the plan may lie anywhere.
_ADDRESSES = 4

_GONE = object()


class Binding(*_hot.fields("Binding")):  # type: ignore[misc]
    """One group's weights, as the modules see them.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, spec: GroupSpec, part: DevicePart, staged: _model.Group,
                 original: _model.Group, shelf: Shelf, deadline: float,
                 idle: str) -> None:
        """staged: the group in its device form. original: the bytes that a
        weight shows while it is idle."""
        self.spec = spec
        self.part = part
        self._put_all = _hot.put()
        self._shown: dict[int, Shown] = {}
        self.gate: Any = None  # To the last ones of them; see gate.py.
        self._private: dict[int, Weight] = {}  # By id().
        self._trial: list[tuple[Weight, torch.Tensor, int]] = []
        self.placement: Placed | None = None  # See place.
        self.in_code: Sequence[int] = ()  # Places in _on that code may change.
        self._buffers_seen = False
        # The stored tensors in the module's own memory, once detached.
        self.own: dict[str, torch.Tensor] = {}
        self.infos = {info.name: info for info in staged.tensors}
        self.idle = IdleGroup(part.session.host_image(original), shelf,
                              deadline)
        self._idle_left = weakref.ref(self.idle)
        self._idle_kind = idle
        self._host_infos = {info.name: info for info in original.tensors}
        # The last values put in place, in the order of all lists of swaps.
        self._on = [(holder, key, holder[key]) for weight in spec.weights
                    for holder, key, _ in weight.swaps(weight.value)]
        self._order = {(id(holder), key): at
                       for at, (holder, key, _) in enumerate(self._on)}
        self._attributes = {
            id(one.holder) for weight in spec.weights for one in
            (*(weight.places if weight.kind == "state" else ()),
             *weight.aliases)}
        self._off = self._idle_swaps(spec.weights)
        self.casts, self.casts_bytes = scratch_places(spec)
        if not spec.pinned:
            part.scratch_needed = max(part.scratch_needed, self.casts_bytes)

    def release(self) -> None:
        """The module is detached. Tensors that are still referenced keep
        themselves alive; only `image` is used from here on."""
        self._off = self._on = []
        self.forget_addresses()
        self.own = {}
        del self.idle

    @property
    def image(self) -> HostImage | None:
        """None: the module was detached, and nothing of it is referenced."""
        idle = self._idle_left()
        return None if idle is None else idle.image

    # While the group is idle.

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
            return empty(stored, torch.device("cpu"))
        return as_stored(self._host_bytes(stored), stored)

    def _host_bytes(self, stored: Stored) -> torch.Tensor:
        image = self.idle.image
        memory = self.idle.memory(
            image.address + self._host_infos[stored.name].offset,
            stored.nbytes)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def idle_value(self, module: Any, key: str) -> Any:
        """The value there while the group is not staged."""
        return next(swap[2] for swap in _of(self._off, module, key))

    def show_nothing(self) -> None:
        """The modules have their final values; drops all references to the
        shown ones."""
        self._on = self._off

    def _put(self, swaps: list[Swap]) -> None:
        """Puts values into modules that still have our last ones. A place that
        was overwritten or cleared stays so: for good, or until ours is back
        (torch.func.functional_call)."""
        if self.in_code:  # A broken graph may have left its values.
            for at in self.in_code:
                holder, key, holder[key] = self._on[at]
            self.in_code = ()
        if self._put_all(self._on, swaps):
            self._on = swaps
            return
        found = list(swaps)
        for at, (holder, key, value) in enumerate(swaps):
            before = self._on[at]
            if self._is_there(before):
                holder[key] = value
            else:
                found[at] = before
        self._on = found

    def _is_there(self, swap: Swap) -> bool:
        """Libraries may replace our values in a module's attributes by derived
        ones."""
        holder, key, value = swap
        return holder.get(key, _GONE) is value or id(holder) in self._attributes

    def is_there(self, module: Any, key: str) -> bool:
        """The module still has our value; see `_put`."""
        return any(map(self._is_there, _of(self._on, module, key)))

    def follow_flags(self, resident: bool = False) -> None:
        """Applies the requires_grad set on idle or resident weights to the
        weights shown from now on."""
        told = {**self.idle.told}
        self.idle.told.clear()
        if resident:
            told = {id(value): value.requires_grad for _, _, value in self._on
                    if isinstance(value, ResidentParameter)}
        if not told:
            return
        needed = {(id(holder), key): told[id(value)]
                  for holder, key, value in (*self._off, *self._on)
                  if id(value) in told}
        for weight in self.spec.weights:
            for place in weight.places:
                weight.requires_grad = needed.get(
                    (id(place.holder), place.key), weight.requires_grad)
        self.forget_addresses()

    def trained(self) -> str | None:
        """The name of a weight of hoist's that needs gradients."""
        self.follow_flags()
        return next((weight.name for weight in self.spec.weights
                     if weight.requires_grad
                     and id(weight) not in self._private), None)

    # At an address.

    def fill(self, staged: Staged) -> Shown:
        """The weights to show over bytes that were just staged."""
        if self.idle.told:
            self.follow_flags()
        with unseen():
            return self._fill(staged)

    def _fill(self, staged: Staged) -> Shown:
        shown = self.shown_at(staged.address, staged.scratch)
        if shown.casts:
            if staged.lease is None:
                self.part.order_scratch()
            with torch.no_grad():
                for to, source in shown.casts:
                    to.copy_(source)
        if not self._buffers_seen:
            shown = self._adopt_buffers(shown, staged.scratch)
        return shown

    def show_staged(self, staged: Staged, group: _model.Group) -> None:
        """Shows the weights over bytes of the group that were just staged."""
        shown = self._shown.get(staged.address)
        if (shown is None or shown.casts or not self._buffers_seen
                or self.idle.told):
            shown = self.fill(staged)
        staged.shown = shown
        self._put(shown.swaps)
        if not shown.lent.is_lent:
            shown.lent.lend()
            if staged.lease is None and not self._trial:
                self.gate = gate_of(group, self.part, self.idle, self._off, shown)

    def show(self, shown: Shown) -> None:
        self._put(shown.swaps)
        if not shown.lent.is_lent:
            shown.lent.lend()

    def see(self, state: State) -> None:
        """Shows the modules' weights for a time without staged ones."""
        if type(state) is Placed:
            self.show(state.placed)
            self.in_code = state.in_code
        else:
            self._put(self._off)

    def end_forward(self, shown: Shown) -> None:
        """A forward with these weights has ended; later work on the stream
        follows it."""
        if shown.lent.is_held():
            self._keep_held(shown)
        if torch.is_grad_enabled():
            self.spoil_graphs()
        if self._trial:
            self._end_trial()

    def _keep_held(self, shown: Shown) -> None:
        """Gives weights that outlive the forward memory of their own.

        FailedPrecondition: one is a view, which cannot move.
        """
        self.gate = None
        self._shown.pop(shown.address, None)  # The next forward builds others.
        if self.is_placed_at(shown.address):
            self.placement = None
        with unseen(), torch.no_grad():
            shown.lent.keep()

    def spoil_graphs(self) -> None:
        """A backward that kept these past saved.py's claims would read other
        bytes: autograd raises, as after an in-place change."""
        placed = [] if self.placement is None else [self.placement.placed]
        for shown in [*self._shown.values(), *placed]:
            for value in shown.kept:
                torch.autograd.graph.increment_version(value)
        for shown in placed:
            if shown.lent.is_lent:
                shown.lent.lend()  # A graph has views.

    # Before the group is staged: compiled code has its inputs first.

    def place(self, address: int, kind: type[ResidentParameter]
              ) -> list[torch.Tensor] | None:
        """The weights at the group's fixed address, each once, of that type.
        None: they cannot be inputs of compiled code. Either each forward has
        work to do on them, or they share memory, or they are neither plain
        parameters nor made of plain tensors."""
        if not self.may_stay or not self._buffers_seen:
            return None
        own = {id(weight) for weight in self._private.values()}
        if not all(weight.kind == "parameter" and (weight.plain or (
                is_possible() and not weight.aliases
                and not weight.requires_grad))
                   for weight in self.spec.weights if id(weight) not in own):
            return None
        shown = self._build(address, None, wrap=lambda value: guarded(value, kind))
        taken = take_weights(shown.swaps, self._off, kind)
        if taken is None:
            return None
        weights, rebuilt = taken
        if len({value.untyped_storage().data_ptr()
                for value in weights}) != len(weights):
            return None
        self._shown.pop(address, None)
        self.gate = None
        self.placement = Placed(shown, weights, rebuilt)
        return weights

    def is_placed_at(self, address: int) -> bool:
        return (self.placement is not None
                and self.placement.placed.address == address)

    def refuse_views(self) -> None:
        """FailedPrecondition: a view of a weight from `place` was kept."""
        if self.placement is not None:
            self.placement.placed.lent.refuse_views()

    # While the bytes keep their address.

    @property
    def may_stay(self) -> bool:
        """Whether a forward has no work to do on them: no cast, and no check
        for writes to a large buffer."""
        return not (self.casts_bytes or self._trial or (
            not self._buffers_seen and any(map(self._is_tried,
                                               self.spec.weights))))

    def show_for_good(self, lease: KeptLease | None) -> Resident:
        """Shows the weights over a lease of their own, which each of them
        keeps; None: the group is empty."""
        address = lease.address if lease is not None else 0
        if not self._buffers_seen:
            self._adopt_buffers(self.shown_at(address, None), None)
        self.follow_flags()
        self.forget_shown()
        made: dict[int, Any] = {}  # Ties stay ties.
        swaps = self._build(address, None, lease).swaps
        for _, _, value in swaps:
            if id(value) not in made:
                made[id(value)] = guarded(value)
        self._put([(holder, key, made[id(value)])
                   for holder, key, value in swaps])
        self.idle.end_pointers()
        return Resident(address, lease)

    def forget_addresses(self) -> None:
        """The plan was renewed."""
        self.forget_shown()
        self.placement = None

    def forget_shown(self) -> None:
        """A lease begins or ends: others use its address before and after."""
        self._shown.clear()
        self.gate = None

    def shown_at(self, address: int, scratch: torch.Tensor | None) -> Shown:
        shown = self._shown.get(address)
        if shown is None:
            while len(self._shown) >= _ADDRESSES:
                del self._shown[next(iter(self._shown))]
                self.gate = None
            shown = self._shown[address] = self._build(address, scratch)
        return shown

    def _build(self, address: int, scratch: torch.Tensor | None,
               keeps: KeptLease | None = None,
               wrap: Callable[[Any], Any] = lambda value: value) -> Shown:
        views = Views(self.part.device, keeps)
        bases: dict[str, torch.Tensor] = {}
        casts = []
        for stored in self.spec.stored:
            info = self.infos[stored.name]
            base = views.at(address + info.offset, info)
            if stored.name in self.casts:
                assert scratch is not None
                to = as_stored(scratch[self.casts[stored.name]:], stored)
                casts.append((to, base))
                base = to
            bases[stored.name] = base
        shown = Shown(address, [], casts, [])
        for weight in self.spec.weights:
            if id(weight) in self._private:
                continue
            value = wrap(weight.put_together([
                part.view(bases[part.stored.name]) for part in weight.parts]))
            if weight.requires_grad and keeps is not None:
                value.requires_grad_(True)
            elif weight.requires_grad:
                grade(value, weight.name)
                shown.graded.append((weight.name, value))
            if weight.requires_grad or weight.plain:
                shown.kept.append(value)
            shown.swaps += weight.swaps(value)
            if goes_past_hooks(weight, value):
                shown.past_hooks = weight.name
            if keeps is None and is_lent(weight):
                shown.lent.add(weight.name, value, scratch is None)
        return shown

    # Buffers that a forward may write to.

    def _adopt_buffers(self, shown: Shown, scratch: torch.Tensor | None
                       ) -> Shown:
        """At the first stage: copies the buffers to the device."""
        self._buffers_seen = True
        values = {(id(holder), key): value
                  for holder, key, value in shown.swaps}
        for weight in self.spec.weights:
            if weight.kind != "buffer" or not weight.plain:
                continue
            place = weight.places[0]
            own = copy_of(values[id(place.holder), place.key])
            weight.put(own)
            self._private[id(weight)] = weight
            if self._is_tried(weight):
                self._trial.append((weight, own, own._version))
        if not self._private:
            return shown
        self._off = [one for one in self._off if not self._is_private(one)]
        self._on = [one for one in self._on if not self._is_private(one)]
        self.forget_shown()
        return self.shown_at(shown.address, scratch)

    def _is_tried(self, weight: Weight) -> bool:
        """Its first forward decides whether it is shared."""
        return (weight.kind == "buffer" and weight.plain
                and not self.spec.pinned and is_persistent(weight)
                and sum(part.stored.nbytes for part in weight.parts)
                >= PRIVATE_BYTES)

    def _is_private(self, swap: Swap) -> bool:
        return any(place.holder is swap[0] and place.key == swap[1]
                   for weight in self._private.values()
                   for place in weight.places)

    def _end_trial(self) -> None:
        """Shares the large buffers without a write after all."""
        for weight, own, version in self._trial:
            if weight.value is own and own._version == version:
                del self._private[id(weight)]
                self._off += self._idle_swaps([weight])
                self._on += weight.swaps(own)
        self._off.sort(key=self._place_of)
        self._on.sort(key=self._place_of)
        self._trial = []
        self.forget_shown()

    def _place_of(self, swap: Swap) -> int:
        return self._order[id(swap[0]), swap[1]]

    def is_own_place(self, module: Any, key: str) -> bool:
        return any(place.module is module and place.key == key
                   for weight in self._private.values()
                   for place in weight.places)

    def is_own(self, weight: Weight) -> bool:
        """The worker's own memory rather than hoist's."""
        return id(weight) in self._private

    def private_weights(self, devices: Mapping[str, torch.device],
                    read: Mapping[str, torch.Tensor] | None = None
                    ) -> list[Swap]:
        """The assignments that give the module its own weights again, as they
        were.

        read: the stored tensors' bytes; None: reads from hoistd.
        """
        own: dict[str, torch.Tensor] = {}
        with contextlib.ExitStack() as stack:
            if read is None:
                stack.enter_context(self.idle.shelf.reading([self.idle]))
            for stored in self.spec.stored:
                device = devices[stored.name]
                if not stored.nbytes:
                    own[stored.name] = empty(stored, device)
                    continue
                found = (self._host_bytes(stored) if read is None
                         else read[stored.name])
                own[stored.name] = as_stored(found.to(device, copy=True),
                                             stored)
        self.own = own
        return self._put_together(own, devices)

    def meta_weights(self) -> list[Swap]:
        """The same without bytes; weights of the worker's own stay."""
        return self._put_together({stored.name: stored.meta for stored in
                                   self.spec.stored}, {})

    def _put_together(self, own: Mapping[str, torch.Tensor],
                      devices: Mapping[str, torch.device]) -> list[Swap]:
        swaps: list[Swap] = []
        for weight in self.spec.weights:
            if self.is_own(weight):
                if not isinstance(weight.value, torch.Tensor):
                    continue  # It was removed since.
                device = devices.get(weight.parts[0].stored.name,
                                     weight.value.device)
                if weight.value.device != device:
                    swaps += weight.swaps(copy_of(weight.value, device))
                continue
            value = weight.put_together([part.view(own[part.stored.name])
                                         for part in weight.parts])
            if weight.requires_grad:
                value.requires_grad_(True)
            swaps += self._where_ours_are(weight.swaps(value))
        return swaps

    def _where_ours_are(self, swaps: list[Swap]) -> list[Swap]:
        there = {self._place_of(one) for one in self._on
                 if self._is_there(one)}
        return [one for one in swaps if self._place_of(one) in there]


def _of(swaps: list[Swap], module: Any, key: str) -> list[Swap]:
    return [swap for swap in swaps if swap[1] == key and (
        swap[0] is module._parameters or swap[0] is module._buffers)]
