"""A module under hoist: its parts, made, and undone.

    _hooks       stand in the modules, and call
    _passes      who runs, and which group is there; it asks
    _planning    plans, and tells
    _live        a group to come and go; which tells its
    _binding     what the modules see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import weakref
from typing import Any, Iterator, Sequence, cast

import torch
from torch import nn

from .. import _session
from .._errors import (DataLoss, DeadlineExceeded, FailedPrecondition,
                       HoistError, InvalidArgument, NotFound, Unavailable)
from .._library import patience
from .._model import Model
from . import _registry
from ._budget import Budget
from ._device_part import DevicePart, Held
from ._hand_over import staged_model
from ._hooks import Hooks, NotCopied, renew_lists
from ._idle import Shelf
from ._in_place import InPlaceWeight, InPlaceWeights
from ._link import Link, Place
from ._live import LiveGroup
from ._options import Wanted
from ._passes import Passes
from ._planning import Planning
from ._rebuilt import Swap
from ._saved import settle
from ._sources import Source
from ._stats import IN_PLACE_COUNTS, PLAN_COUNTS, AttachStats
from ._tree import Tree
from ._uses import Uses

log = logging.getLogger("hoist.nn")

DETACH_PATIENCE = 5.0  # Seconds, as for what is given back: see hoist_c.h.


class Attachment(NotCopied):
    """The link between a module tree and hoistd.

    Threads: any, as Passes says.
    """

    model: Model  # As it is staged.
    original: Model  # With the weights as they were; often the same.
    cast_to: str | None = None  # The former's name, where it is another.

    def __init__(self, root: nn.Module, wanted: Wanted, link: Link,
                 parts: list[DevicePart], uses: Uses,
                 excluded: set[nn.Module],
                 devices: dict[str, torch.device]) -> None:
        """wanted: as attach was called. devices: of stored tensors, before."""
        self.root = root
        self.link = link
        self.wanted = wanted
        self.parts = parts
        self.groups: list[LiveGroup] = []
        self.shelf = Shelf(link.renew)
        self.devices = devices
        self.planning = Planning(parts, self.groups)
        self._tree = Tree(root, excluded, parts, self.groups, self._note_end)
        self._hooks = Hooks(root, self.groups, self._tree, self._watch)
        self.passes = Passes(root, parts, self.groups, self.planning,
                             self.shelf, wanted.idle, wanted.exclude_kwargs,
                             self._hooks, self.renew)
        self.uses = uses
        self._in_place: InPlaceWeights | None = None
        self._ended = False  # Detached, or never attached.
        self._at_collection: Any = None
        self._source: Source | None = None
        # Where it is staged; None: nowhere; hoistd has ended, or has all of it.
        self._place: Place | None = None
        self._void: Unavailable | None = None  # Results that nobody checked.
        self._checked = 0  # Stages whose results were.

    # Set-up and its undoing.

    def pin(self) -> None:
        for group in self.groups:
            if group.pinned:
                group.stage()
                group.binding.show_idle()

    def read_in_place(self, weights: Sequence[InPlaceWeight],
                      model: Model | None) -> None:
        """Binds them; model: which has their pieces, if not the original."""
        part = self.parts[0]
        self.planning.beside = sum(one.stored.nbytes for one in weights)
        self._in_place = InPlaceWeights(
            part.session, model or self.original, part, weights,
            self.planning.bytes_beside(part, self.wanted.budget),
            self.wanted.deadline)
        self._in_place.bind()
        self.passes.in_place = self._in_place

    def install(self, source: Source) -> None:
        """Hooks the modules; from here on forwards come through here.

        source: where the weights are found again.
        """
        self._source = source
        self.link.attached(self, self.original)
        self._place = self.link.place
        self._tree.look([] if self._in_place is None
                        else self._in_place.weights)
        for module in self._known_modules():
            _registry.know(module, self)
        _registry.watch_weights()
        self._hooks.install(self.passes)
        self.passes.bind()
        # A module that is let go of without detach is collected in any order.
        self._at_collection = weakref.finalize(
            self.root, _give_all_back, [part.held for part in self.parts],
            self.uses)
        self._at_collection.atexit = False

    def _watch(self, watches: bool) -> None:
        if watches:
            _registry.watch_modules(self, self._tree.known)
        else:
            _registry.ignore_modules(self)

    def uninstall(self) -> None:
        self._hooks.remove()
        _registry.ignore_modules(self)
        self._tree.forget()
        for module in self._known_modules():
            _registry.forget(module)
        if self._at_collection is not None:
            self._at_collection.detach()

    def _known_modules(self) -> set[nn.Module]:
        return {self.root, *self._tree.modules}

    def close(self) -> None:
        """Gives hoistd everything back, for good; nothing may be running."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._let_go)
            stack.callback(_give_back, [part.held for part in self.parts])
            self.passes.end_all()

    def _let_go(self) -> None:
        """What somebody holds of it keeps what it needs."""
        self._ended = True
        for group in self.groups:
            group.binding.let_go()
        if self._in_place is not None:
            self._in_place.let_go()
        self.shelf.close()
        self.uses.end()

    def detach(self) -> None:
        """The module has its own weights again.

        DataLoss: some were hoistd's alone, which has ended; the module is
        detached, and has these on the meta device. DeadlineExceeded: some are,
        and it gives no sign of life; the module is attached as before.
        """
        with (self.passes.between("detach it"), patience(DETACH_PATIENCE),
              torch.inference_mode(False)):
            own, lost = self._own_weights()
            self.uninstall()
            for holder, key, value in own:
                holder[key] = value
            for group in self.groups:
                settle(group)
            renew_lists(self._tree.modules)
            with contextlib.suppress(Unavailable):  # Nothing is to give back.
                self.close()
        if lost:
            names = ", ".join(f'"{name}"' for name in list(lost)[:5])
            raise DataLoss(
                f"the module is detached, but {len(lost)} of its "
                f"{len(self.groups)} groups' weights are lost, and are on the "
                f"meta device: {names}{', ...' if len(lost) > 5 else ''}: "
                f"{next(iter(lost.values()))}")

    def _own_weights(self) -> tuple[list[Swap], dict[str, HoistError]]:
        """What goes where, and why which groups are lost: hoistd's bytes; what
        this process has of them; or the source's."""
        assert self._source is not None
        gone: HoistError | None = None
        try:
            self.link.renew(wait=not self._source.readable, closed=True)
        except HoistError as error:
            if self.link.forked:
                raise
            gone = error
        own: list[Swap] = []
        lost: dict[str, HoistError] = {}
        for group in self.groups:
            binding = group.binding
            if gone is None or binding.idle.image.loaded:
                try:
                    own += binding.own_weights(self.devices)
                    continue
                except (DataLoss, NotFound) as error:
                    why: HoistError = error
                except HoistError as error:
                    silent = isinstance(error, DeadlineExceeded)
                    if self.link.lives() and not (
                            silent and self._source.readable):
                        raise
                    why = gone = error
            else:
                why = gone
            try:
                own += binding.own_weights(
                    self.devices, binding.read_there() if group.bound else
                    self._source.read(group.spec))
            except (HoistError, OSError):
                if isinstance(why, DeadlineExceeded):
                    raise why  # hoistd has them yet, and is silent.
                own += binding.meta_weights()
                lost[group.spec.name] = why
        if self._in_place is not None:  # Mapped here, whoever has ended.
            own += self._in_place.own_weights(self.devices)
        return own, lost

    def undo(self) -> None:
        """Of an attach that failed: the module has what it had; hoistd has
        back what is its. What hoistd's end within attach takes with it is on
        the meta device."""
        self.uninstall()
        try:
            for group in self.groups:
                try:
                    group.binding.restore(self.devices)
                except (Unavailable, DataLoss):
                    for holder, key, value in group.binding.meta_weights():
                        holder[key] = value
            if self._in_place is not None:
                for holder, key, value in self._in_place.own_weights(
                        self.devices):
                    holder[key] = value
        finally:
            self.close()

    # hoistd's end, and what comes after it.

    def renew(self) -> None:
        """Groups can be staged, in another session if theirs has ended: pinned
        and planned anew, as they were. Nothing may be staged.

        Link.renew's errors. Unavailable: results may be void, which is told
        once. FailedPrecondition: CUDA graphs hold addresses that were hoistd's.
        """
        if self._place is self.link.place and self.link.lives():
            return
        self._tell_what_is_void()
        self.link.renew()
        place = self.link.place
        if place is self._place or place is None:
            return
        if self.captured:
            raise FailedPrecondition(
                "hoistd has ended, and CUDA graphs were captured with what it "
                "had on the GPU; hoist.detach(module), attach it again, and "
                "capture them anew")
        try:
            self._stage_anew(place)
        except BaseException as error:
            self._end()
            if isinstance(error, HoistError):
                raise self.link.explained(error, place.session) from None
            raise
        self._place = place

    def _stage_anew(self, place: Place) -> None:
        self._end()
        for part in self.parts:
            part.move(place.session)
        self.model = staged_model(
            place.session, place.original, self.cast_to,
            [group.spec for group in self.groups], self.wanted.deadline)
        self.uses.add(place.session, self.model)
        for group in self.groups:
            group.move(self.model[group.spec.name])
        self.pin()
        self.planning.plan_anew(self.model)
        self.passes.bind()

    def _end(self) -> None:
        """Nothing is staged: the session has ended, or others need the
        memory."""
        self._place = None
        self.passes.unbind(all_groups=True)
        self.passes.forget()
        self.planning.end()
        _give_back([part.held for part in self.parts])

    def _tell_what_is_void(self) -> None:
        """A GPU may have computed with what was there no more."""
        stages = self.planning.count("stages")
        on_gpu = any(part.torch_device.type == "cuda" for part in self.parts)
        if self._place is None or not on_gpu or stages == self._checked:
            return
        self._checked = stages
        if any(part.ended for part in self.parts):
            return  # The pass that was hit has told it.
        try:
            self.parts[0].session.check()
        except Unavailable as error:
            self._void = Unavailable(
                "hoistd has ended the session (stopped, crashed, or told to) "
                "while the GPU may have computed with its weights: results since the last hoist.check "
                "are void; the next call attaches the module again "
                f"({error})")
            raise self._void from None

    def check(self) -> None:
        """Raises if results since the last check may not be trusted. Waits for
        the GPU first: of what it has yet to compute nobody can tell."""
        for part in self.parts:
            if part.is_capturing():
                raise FailedPrecondition(
                    "a CUDA graph is being captured, so nothing is computed "
                    "that could be checked; check after its replay")
            part.synchronize_all()
        void, self._void = self._void, None
        if void is not None:
            raise void
        if self.passes.stands and not self.link.lives():
            return  # Nothing is computed with what has gone.
        self.link.check()
        self.planning.check()
        self._checked = self.planning.count("stages")

    def set_budget(self, budget: Budget) -> None:
        """Between passes. On ResourceExhausted it stays as it was."""
        with self.passes.between("set its budget"):
            self.renew()
            self.passes.unbind()
            try:
                self.planning.set_budget(budget)
                self._warm(budget)
            finally:
                self.passes.bind()

    def advance(self, wait: bool) -> None:
        """Between passes: what is read in place has its pieces where they
        should be by now."""
        with self.passes.between("move its pieces"):
            if self._in_place is not None:
                self.parts[0].synchronize_all()
                self._in_place.advance(wait)

    def give_back(self) -> None:
        """Of the device memory all, between passes, until `bring_back` or the
        next pass. Raises what `check` would; it is given back all the same."""
        with self.passes.between("give its memory back"):
            if self._place is None:
                return
            try:
                self.check()
            finally:
                self._end()
                if self._in_place is not None:
                    self._in_place.cool()

    def bring_back(self, budget: Budget) -> None:
        """After `give_back`: groups can be staged again, in this budget. On
        ResourceExhausted it has nothing, as before."""
        with self.passes.between("bring it back"):
            self.planning.expect_budget(budget)
            self.renew()
            self._warm(budget)

    def _warm(self, budget: Budget) -> None:
        """What the groups leave of it is for pieces in place."""
        if self._in_place is not None:
            self._in_place.set_hot_bytes(
                self.planning.bytes_beside(self.parts[0], budget))

    @property
    def image_bytes(self) -> int:
        """Device memory that it could use."""
        return self.planning.beside + sum(group.staged.image_bytes
                                          for group in self.groups)

    @property
    def captured(self) -> bool:
        """A CUDA graph holds addresses that the plans have."""
        return any(part.captured for part in self.parts)

    def move(self, session: _session.Session) -> Model:
        """See _link.Reader."""
        assert self._source is not None
        original = self._source.find(
            session, [group.spec for group in self.groups])
        self.uses.add(session, original)
        for group in self.groups:
            image = group.binding.image
            try:
                if image is not None:
                    image.move(session, original[group.spec.name])
            except InvalidArgument as error:
                raise FailedPrecondition(
                    f"hoistd lays weights out otherwise than before ({error}); "
                    "hoist.detach(module), and attach it again") from None
        if self._ended:
            self.uses.end()
        self.original = original
        self.wanted = dataclasses.replace(self.wanted, session=session)
        return original

    # What came to the tree; see _registry.Attached.

    def note_change(self) -> None:
        self._tree.note_change()
        self._hooks.hook_root()

    def _note_end(self) -> None:
        self.passes.once_free(self._leave_out_what_ended)

    def _leave_out_what_ended(self) -> None:
        """Gives back what groups have of the device whose modules were taken
        out of the tree, and are nobody's."""
        gone = {group for group in self._tree.ended()
                if not (group.part.captured or group.part.is_capturing())}
        if not gone:
            return
        self._tree.leave_out(gone)
        try:
            self.passes.leave_out(gone)
            self.planning.leave_out(gone)
            self.passes.bind()
        except HoistError as error:  # The next call says so, if it matters.
            log.debug("%s: groups end with their modules: %s",
                      self.model.name, error)

    def shares(self, module: nn.Module, name: str) -> bool:
        return self._tree.shares(module, name)

    # Groups, by what callers call them.

    def groups_below(self, modules: set[nn.Module]) -> list[LiveGroup]:
        """Those that any of the modules has weights of."""
        return [group for group in self.groups
                if any(place.module in modules for weight in group.spec.weights
                       for place in weight.places)]

    def groups_named(self, name: str | None) -> list[LiveGroup]:
        """All, or the one of that name."""
        found = [group for group in self.groups
                 if name is None or group.spec.name == name]
        if not found:
            raise NotFound(f'"{self.model.name}" has no group "{name}"')
        return found

    def stats(self) -> AttachStats:
        infos = [part.plan.info for part in self.parts
                 if part.plan is not None]
        pinned = 0 if self._place is None else sum(
            map(self.planning.pinned_bytes, self.parts))
        return AttachStats(
            model=self.model.name, groups=len(self.groups),
            model_bytes=self.model.image_bytes,
            budget_bytes=pinned + sum(info.budget_bytes for info in infos),
            pinned_bytes=pinned,
            resident_bytes=sum(info.resident_bytes for info in infos),
            ring_bytes=sum(info.ring_bytes for info in infos),
            streamed_bytes=sum(info.streamed_bytes for info in infos),
            scratch_bytes=sum(part.scratch_bytes for part in self.parts),
            bound_groups=sum(group.bound for group in self.groups),
            passes=self.passes.count, idle_reads=self.shelf.reads,
            **(dict.fromkeys(IN_PLACE_COUNTS, 0) if self._in_place is None
               else self._in_place.counts()),
            **{name: self.planning.count(name) for name in PLAN_COUNTS})


def attachment_of(module: nn.Module) -> Attachment | None:
    """What this very module is attached by."""
    return cast("Attachment | None", _registry.known(module))


def attachments_in(module: nn.Module) -> Iterator[Attachment]:
    """Those that any module of the tree belongs to, each once."""
    found = {id(one): one for one in map(attachment_of, module.modules())
             if one is not None}
    return iter(found.values())


def find_attached(model: str) -> Attachment | None:
    """See _registry.find."""
    return cast("Attachment | None", _registry.find(model))


def _give_all_back(held: list[Held], uses: Uses) -> None:
    try:
        _give_back(held)
    finally:
        uses.end()


def _give_back(held: list[Held]) -> None:
    with contextlib.ExitStack() as stack:  # All, whichever of them fails.
        for one in held:
            stack.callback(one.give_back)
