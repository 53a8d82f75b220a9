"""A group's weights as its modules see them.

Binding puts tensors into the modules' dictionaries: over the bytes at an address
on the device, made once an address, for a forward or for as long as they stay
there; over what can be read while the group is not there; or of the worker's own
memory. It neither stages nor waits.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, Iterable, Mapping

import torch

from .._host_image import HostImage
from .._model import Group
from ._device_part import DevicePart
from ._idle import IdleGroup, IdleTensor, Shelf
from ._inventory import Stored, Weight, as_stored, copy_of
from ._layout import GroupSpec
from ._rebuilt import Rebuilt, Swap, is_possible, take_weights
from ._resident import KeptLease, ResidentParameter, guarded
from ._shown import (Placed, Shown, empty, goes_past_hooks, is_lent,
                     is_persistent, refuse_gradient, scratch_bytes,
                     scratch_places, unseen)
from ._views import Views

# A buffer this small is the worker's own, on the device: a forward may write
# to it. Larger ones are, too, if they are not persistent, or once their first
# forward has written to them.
PRIVATE_BYTES = 1 << 20
# Addresses whose objects are kept. A plan gives each group one; a group that
# is staged outside of it may lie anywhere.
_ADDRESSES = 4

_GONE = object()


class Binding:
    """One group's weights, as the modules see them.

    Threads: one at a time; the attachment's lock.
    """

    def __init__(self, spec: GroupSpec, part: DevicePart, staged: Group,
                 original: Group, shelf: Shelf, deadline: float,
                 idle: str) -> None:
        """`staged`: the group as it comes to the device. `original`: with the
        bytes that a weight shows while it is idle."""
        self.spec = spec
        self.part = part
        self._shown: dict[int, Shown] = {}
        self._now: Shown | None = None  # What the modules have.
        self._private: dict[int, Weight] = {}  # By id().
        self._trial: list[tuple[Weight, torch.Tensor, int]] = []
        self._scratch: torch.Tensor | None = None  # Under a lease: its own.
        self._stays_at: Views | None = None
        self._placed: Placed | None = None
        self._in_code: list[int] = []  # Of _on, what code may have exchanged.
        self._buffers_seen = False
        # The stored tensors that the module has of its own, once detached.
        self.own: dict[str, torch.Tensor] = {}
        self.infos = {info.name: info for info in staged.tensors}
        self.idle = IdleGroup(part.session.host_image(original), shelf,
                              deadline)
        self._idle_left = weakref.ref(self.idle)
        self._idle_kind = idle
        self._host_infos = {info.name: info for info in original.tensors}
        # What was put where last, in the order of all lists of swaps.
        self._on = [(holder, key, holder[key]) for weight in spec.weights
                    for holder, key, _ in weight.swaps(weight.value)]
        self._order = {(id(holder), key): at
                       for at, (holder, key, _) in enumerate(self._on)}
        self._attributes = {
            id(one.holder) for weight in spec.weights for one in
            (*(weight.places if weight.kind == "state" else ()),
             *weight.aliases)}
        self._off = self._idle_swaps(spec.weights)
        self.casts_bytes = scratch_bytes(spec)
        if not spec.pinned:
            part.scratch_needed = max(part.scratch_needed, self.casts_bytes)

    def let_go(self) -> None:
        """The module is detached: what somebody has of the group keeps itself,
        and nothing is done here any more but to tell of its image."""
        self._off = self._on = []
        self._shown.clear()
        self._placed = None
        self.own = {}
        del self.idle

    @property
    def image(self) -> HostImage | None:
        """None: the module was detached, and nobody has any of it."""
        idle = self._idle_left()
        return None if idle is None else idle.image

    def scratch(self) -> torch.Tensor | None:
        """Where weights are cast to now; None: none are."""
        if not self.casts_bytes:
            return None
        return (self._scratch if self._scratch is not None else
                self.part.scratch())

    # While the group is not there.

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
        """What is shown there while the group is not staged."""
        for weight in self.spec.weights:
            for place in weight.places:
                if place.module is module and place.key == key:
                    for holder, name, value in self._off:
                        if holder is place.holder and name == key:
                            return value
        raise KeyError(key)

    def show_idle(self) -> None:
        self._now = None
        self._put(self._off)
        self._in_code = []

    def _put(self, swaps: list[Swap]) -> None:
        """Into the modules, where they have what was put there last. What
        somebody has put in its place, or has taken out, is left alone: for
        good, or until ours is there again (torch.func.functional_call)."""
        for at in self._in_code:  # A graph that was broken may have left it.
            holder, key, holder[key] = self._on[at]
        found = swaps
        for at, (holder, key, value) in enumerate(swaps):
            before = self._on[at]
            # Nearly always, and no call of ours for each weight.
            if (holder.get(key, _GONE) is before[2]
                    or self._is_there(before)):
                holder[key] = value
            else:
                found = list(swaps) if found is swaps else found
                found[at] = before
        self._on = found

    def _is_there(self, swap: Swap) -> bool:
        """Libraries may put into a module's attributes what they make of
        ours."""
        holder, key, value = swap
        return holder.get(key, _GONE) is value or id(holder) in self._attributes

    def is_there(self, module: Any, key: str) -> bool:
        """The module has ours yet; see `_put`."""
        holders = (module._parameters, module._buffers)
        return any(self._is_there(swap) for swap in self._on if swap[1] == key
                   and any(swap[0] is holder for holder in holders))

    def _follow_flags(self) -> None:
        """What idle weights were told of gradients, or those that stay, holds
        for what is shown from now on."""
        told, self.idle.told = self.idle.told, {}
        if self._stays_at is not None:
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

    @property
    def past_hooks(self) -> str | None:
        """A weight that is shown, and that graphs keep past hooks, by name."""
        return None if self._now is None else self._now.past_hooks

    def trained(self) -> str | None:
        """A weight of hoist's that needs gradients, by name."""
        self._follow_flags()
        return next((weight.name for weight in self.spec.weights
                     if weight.requires_grad
                     and id(weight) not in self._private), None)

    # At an address.

    def lie_alone(self) -> None:
        """The bytes came by a lease: to an address of its own, and casts of
        them go to memory of their own until `end_alone`."""
        self._shown.clear()
        if self.casts_bytes:
            self._scratch = torch.empty(self.casts_bytes, dtype=torch.uint8,
                                        device=self.part.torch_device)

    def fill_and_show(self, address: int) -> None:
        """Of bytes that were staged just now."""
        if self.idle.told:
            self._follow_flags()
        shown = self._known_at(address)
        if shown is None or shown.casts or not self._buffers_seen:
            with unseen():
                shown = self._fill(address)
        self._show(shown)

    def fill(self, address: int) -> None:
        """The same for what reads the bytes past the modules."""
        if self.casts_bytes:
            with unseen():
                self._fill(address)

    def _show(self, shown: Shown) -> None:
        self._now = shown
        self._put(shown.swaps)
        if not shown.lent.is_lent:
            shown.lent.lend()

    def _fill(self, address: int) -> Shown:
        shown = self._shown_at(address)
        if shown.casts:
            if self._scratch is None:
                self.part.order_scratch()
            with torch.no_grad():
                for to, source in shown.casts:
                    to.copy_(source)
        if not self._buffers_seen:
            shown = self._adopt_buffers(address, shown)
        return shown

    def show(self, address: int) -> None:
        """Of bytes that have been filled."""
        self._put(self._shown_at(address).swaps)
        self.idle.end_pointers()

    def end_forward(self, address: int) -> None:
        """A forward with the weights at that address is over; what else is put
        on the stream comes after it."""
        if self._now is not None and self._now.lent.is_held:
            self._keep_what_is_held(address, self._now)
        if torch.is_grad_enabled():
            self.spoil_graphs()
        if self._trial:
            self._end_trial()

    def _keep_what_is_held(self, address: int, shown: Shown) -> None:
        """What somebody kept of a forward has memory of its own from now on.

        FailedPrecondition: it is a view, which cannot be given another.
        """
        self._forget(address)  # Others are made the next time.
        with unseen(), torch.no_grad():
            shown.lent.keep()

    def spoil_graphs(self) -> None:
        """A backward that has kept these, past what _saved claims, would read
        what lies there by then; autograd raises, as after a change in place."""
        placed = [] if self._placed is None else [self._placed.shown]
        for shown in [*self._shown.values(), *placed]:
            for value in shown.kept:
                torch.autograd.graph.increment_version(value)
        for shown in placed:
            if shown.lent.is_lent:
                shown.lent.lend()  # A graph has views.

    # Before the group is staged: for compiled code, which has its inputs first.

    def placed(self) -> list[torch.Tensor] | None:
        """What `place` gave, while it holds."""
        return None if self._placed is None else self._placed.weights

    def place(self, address: int, kind: type[ResidentParameter]
              ) -> list[torch.Tensor] | None:
        """The weights at an address where the group will always be staged,
        each once, and of that type. None: compiled code cannot be given them,
        as something is to be done to them at each forward, or as they share
        memory or are neither plain parameters nor made of plain tensors."""
        if not self.may_stay or not self._buffers_seen:
            return None
        own = {id(weight) for weight in self._private.values()}
        if not all(weight.kind == "parameter" and (weight.plain or (
                is_possible() and not weight.aliases
                and not weight.requires_grad))
                   for weight in self.spec.weights if id(weight) not in own):
            return None
        shown = self._build(address, wrap=lambda value: guarded(value, kind))
        taken = take_weights(shown.swaps, self._off, kind)
        if taken is None:
            return None
        weights, rebuilt = taken
        if len({value.untyped_storage().data_ptr()
                for value in weights}) != len(weights):
            return None
        self._shown.pop(address, None)
        self._placed = Placed(address, shown, weights, rebuilt)
        return weights

    @property
    def rebuilt(self) -> list[Rebuilt]:
        """Of what `place` gave, those that compiled code makes of it."""
        return ([] if self._placed is None else
                [*self._placed.rebuilt.values()])

    def show_placed(self, with_grad: bool) -> bool:
        """False: a module has something else that code would exchange.

        with_grad: autograd is on, which refuses that compiled code writes to
        what needs gradients, as it thinks that it does.
        """
        placed = self._placed
        assert placed is not None
        if placed.with_grad != with_grad:
            placed.with_grad = with_grad
            for value in placed.shown.graded:
                value.requires_grad_(not with_grad)
        self._show(placed.shown)
        for one in placed.rebuilt.values():
            if one.holder.get(one.key) is not one.idle:
                return False
        self._in_code = [*placed.rebuilt]
        return True

    def show_placed_again(self) -> None:
        """After a forward that was not a part of compiled code."""
        if self._placed is None:
            self.show_idle()
        elif self._placed.rebuilt:
            self._show(self._placed.shown)

    def is_placed_at(self, address: int) -> bool:
        return self._placed is not None and self._placed.address == address

    def refuse_views(self) -> None:
        """FailedPrecondition: somebody has kept one of what `place` gave."""
        if self._placed is not None:
            self._placed.shown.lent.refuse_views()

    # For as long as the bytes stay where they are.

    @property
    def may_stay(self) -> bool:
        """Whether nothing is to be done at each forward: no cast, and no look
        at whether it writes to a large buffer."""
        return not (self.casts_bytes or self._trial or (
            not self._buffers_seen and any(map(self._is_tried,
                                               self.spec.weights))))

    def stay(self, lease: KeptLease | None, address: int) -> None:
        """Shows the weights over a lease of their own, which each of them
        keeps; None: the group is empty."""
        if not self._buffers_seen:
            self._adopt_buffers(address, self._shown_at(address))
        self._follow_flags()
        self._shown.clear()
        self._stays_at = Views(self.part.device, self.infos, address, lease)
        made: dict[int, Any] = {}  # Ties stay ties.
        swaps = self._build(address, lease).swaps
        for _, _, value in swaps:
            if id(value) not in made:
                made[id(value)] = guarded(value)
        self._put([(holder, key, made[id(value)])
                   for holder, key, value in swaps])
        self.idle.end_pointers()

    def end_stay(self, show_idle: bool) -> None:
        """show_idle: else the modules have what they are to have."""
        self._follow_flags()
        self._stays_at = None
        if show_idle:
            self.show_idle()
        else:
            self._on = self._off  # Nothing refers to the lease here.

    def views_at(self, address: int) -> Views:
        """The stored tensors of bytes that are staged there, or that stay."""
        return self._stays_at or Views(self.part.device, self.infos, address,
                                       None)

    def read_there(self) -> Mapping[str, torch.Tensor]:
        """The stored tensors' bytes, of what stays on the device."""
        assert self._stays_at is not None
        found = {}
        for stored in self.spec.stored:
            if stored.nbytes:
                there = self._stays_at[stored.name]
                count = stored.nbytes // there.element_size()
                found[stored.name] = there.as_strided(
                    (count,), (1,)).view(torch.uint8)
        return found

    def forget_addresses(self) -> None:
        """The plan was made anew."""
        self._shown.clear()
        self._placed = None

    def _forget(self, address: int) -> None:
        self._shown.pop(address, None)
        if self.is_placed_at(address):
            self._placed = None

    def move(self, staged: Group) -> None:
        """It comes from another session's model, and addresses are forgotten."""
        self.infos = {info.name: info for info in staged.tensors}

    def end_alone(self) -> None:
        """The lease is over."""
        self._shown.clear()
        self._scratch = None

    def _known_at(self, address: int) -> Shown | None:
        if (self._placed is not None and self._placed.address == address
                and not self._placed.rebuilt):
            return self._placed.shown
        return self._shown.get(address)

    def _shown_at(self, address: int) -> Shown:
        shown = self._known_at(address)
        if shown is None:
            while len(self._shown) >= _ADDRESSES:
                del self._shown[next(iter(self._shown))]
            shown = self._shown[address] = self._build(address)
        return shown

    def _build(self, address: int, keeps: KeptLease | None = None,
               wrap: Callable[[Any], Any] = lambda value: value) -> Shown:
        tensors = Views(self.part.device, self.infos, address, keeps)
        bases: dict[str, torch.Tensor] = {}
        casts = []
        places = scratch_places(self.spec)
        scratch = self.scratch()
        for stored in self.spec.stored:
            base = tensors[stored.name]
            if stored.name in places:
                assert scratch is not None
                to = as_stored(scratch[places[stored.name]:], stored)
                casts.append((to, base))
                base = to
            bases[stored.name] = base
        shown = Shown([], casts, [])
        for weight in self.spec.weights:
            if id(weight) in self._private:
                continue
            value = wrap(weight.put_together([
                part.view(bases[part.stored.name]) for part in weight.parts]))
            if weight.requires_grad:
                value.requires_grad_(True)
                shown.graded.append(value)
                if keeps is None:
                    refuse_gradient(value, weight.name)
            if weight.requires_grad or weight.plain:
                shown.kept.append(value)
            shown.swaps += weight.swaps(value)
            if goes_past_hooks(weight, value):
                shown.past_hooks = weight.name
            if keeps is None and is_lent(weight):
                shown.lent.add(weight.name, value, scratch is None)
        return shown

    # Buffers that a forward may write.

    def _adopt_buffers(self, address: int, shown: Shown) -> Shown:
        """At the first stage: copies of the buffers, on the device."""
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
        self._shown.clear()
        return self._shown_at(address)

    def _is_tried(self, weight: Weight) -> bool:
        """Its first forward shows whether it is to be shared."""
        return (weight.kind == "buffer" and weight.plain
                and not self.spec.pinned and is_persistent(weight)
                and sum(part.stored.nbytes for part in weight.parts)
                >= PRIVATE_BYTES)

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
                self._on += weight.swaps(own)
        self._off.sort(key=self._place_of)
        self._on.sort(key=self._place_of)
        self._trial = []

    def _place_of(self, swap: Swap) -> int:
        return self._order[id(swap[0]), swap[1]]

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

    def own_weights(self, devices: Mapping[str, torch.device],
                    read: Mapping[str, torch.Tensor] | None = None
                    ) -> list[Swap]:
        """What goes where to that end; the module is as it was.

        read: the stored tensors' bytes; None: hoistd's.
        """
        self._follow_flags()
        if all(device.type == "meta" for device in devices.values()):
            return self.meta_weights()
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
        """The same without bytes; what is the worker's own stays."""
        return self._put_together({stored.name: stored.meta for stored in
                                   self.spec.stored}, {})

    def _put_together(self, own: Mapping[str, torch.Tensor],
                      devices: Mapping[str, torch.device]) -> list[Swap]:
        swaps: list[Swap] = []
        for weight in self.spec.weights:
            if self.is_own(weight):
                if not isinstance(weight.value, torch.Tensor):
                    continue  # It was taken out since.
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
