"""A module under hoist: its parts, and their making and undoing.

    hooks       are in the modules, and call
    passes      turns, and the staged groups; it uses
    planning    plans, and calls
    group       to stage and to end; which uses its
    binding     the weights in the modules.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
import weakref
from typing import Any, Iterator, Mapping, Sequence, cast

import torch
from torch import nn

from ... import _session
from ..._errors import (DataLoss, DeadlineExceeded, FailedPrecondition,
                        HoistError, InvalidArgument, NotFound, Unavailable)
from ..._hot import Swap
from ..._library import patience
from ..._model import Model
from .._plan.budget import Budget
from .._plan.ahead import Ahead
from .._plan.in_place import InPlaceWeights
from .._plan.planning import Planning
from .._plan.stats import IN_PLACE_COUNTS, PLAN_COUNTS, AttachStats
from .._run.hooks import Hooks, NotCopied, renew_lists
from .._run.passes import Passes
from .._run.saved import settle
from .._show.device_part import DevicePart, Held, give_back
from .._show.group import Group
from .._show.tree import Tree
from .._store.hand_over import staged_model
from .._store.link import Link, Place
from .._store.sources import Source
from .._store.uses import Uses
from .._tensors.idle import Shelf
from .._tree import registry
from .._tree.pieces import InPlaceWeight
from .options import Wanted
from .originals import Originals

log = logging.getLogger("hoist.nn")

DETACH_PATIENCE = 5.0  # Seconds, as hoist_plan_free (hoist/c/plan.h).


class Attachment(NotCopied):
    """The link between a module tree and hoistd.

    Threads: any, as Passes says.
    """

    model: Model  # The staged one.
    original: Model  # With the original weights; often the same.
    cast_to: str | None = None  # The former's name, if it is another one.

    def __init__(self, root: nn.Module, wanted: Wanted, link: Link,
                 parts: list[DevicePart], uses: Uses,
                 excluded: set[nn.Module], devices: dict[str, torch.device],
                 originals: Originals) -> None:
        """wanted: attach's arguments. devices: of the stored tensors, after a
        detach. originals: the module's own tensors."""
        self.root = root
        self.link = link
        self.wanted = wanted
        self.parts = parts
        self.groups: list[Group] = []
        self.shelf = Shelf(link.renew)
        self.devices = devices
        self.originals = originals
        self.planning = Planning(parts, self.groups)
        self._tree = Tree(root, excluded, parts, self.groups, self._note_end)
        self._hooks = Hooks(root, self.groups, self._tree, self._watch)
        self.passes = Passes(root, parts, self.groups, self.planning,
                             self.shelf, wanted.idle, wanted.exclude_kwargs,
                             self._hooks, self.renew)
        self.uses = uses
        self._in_place: InPlaceWeights | None = None
        self.ended = False  # Detached, or never attached.
        self._budget = wanted.budget  # The last that was set.
        self._at_collection: Any = None
        self._source: Source | None = None
        # Of the stages; None: hoistd has ended, or everything was given back.
        self._place: Place | None = None
        self.void: HoistError | None = None  # Results that nobody checked.
        self._checked = 0  # Stages with checked results.

    # Set-up, and its undoing.

    def pin(self) -> None:
        for group in self.groups:
            if group.pinned:
                group.pin()

    def read_in_place(self, weights: Sequence[InPlaceWeight],
                      model: Model | None) -> None:
        """Binds them. model: the one with their pieces, if not the original."""
        part = self.parts[0]
        self.planning.beside = sum(one.stored.nbytes for one in weights)
        hot_bytes = self.planning.bytes_beside(part, self.wanted.budget)
        ahead = None
        if self.wanted.ahead is not None:
            ahead = Ahead(self.root, weights, self.wanted.ahead,
                          part.torch_device)
            self.planning.beside += ahead.nbytes
            hot_bytes = self.planning.bytes_beside(part, self.wanted.budget)
            ahead.check(hot_bytes)
        self._in_place = InPlaceWeights(
            part.session, self.original if model is None else model, part,
            weights, hot_bytes, self.wanted.deadline, ahead)
        self._in_place.bind()
        self.passes.in_place = self._in_place

    def install(self, source: Source) -> None:
        """Hooks the modules; from here on forwards come through here.

        source: finds the weights again.
        """
        self._source = source
        self.link.attached(self, self.original)
        self._place = self.link.place
        self._tree.look([] if self._in_place is None
                        else self._in_place.weights)
        for module in self._known_modules():
            registry.know(module, self)
        registry.watch_weights()
        self._hooks.install(self.passes)
        self.passes.bind()
        # Without a detach, modules are collected in any order.
        self._at_collection = weakref.finalize(
            self.root, _give_all_back, [part.held for part in self.parts],
            self.uses)
        self._at_collection.atexit = False

    @property
    def is_installed(self) -> bool:
        """`install` has succeeded."""
        return self._at_collection is not None

    def commit(self) -> None:
        """Attach has succeeded completely: releases the module's own
        tensors."""
        self.uses.keep()
        self.originals.release()
        self.give_back_free_memory()

    def give_back_free_memory(self) -> None:
        """Returns freed memory to the system, and to others on the GPUs: torch
        keeps freed GPU memory for itself. glibc keeps freed blocks below a
        threshold that grows to 32 MB: that is all of many smaller weights."""
        with contextlib.suppress(AttributeError, OSError):  # Another C library.
            ctypes.CDLL(None).malloc_trim(0)
        if any(device.type == "cuda" for device in self.devices.values()):
            torch.cuda.empty_cache()

    def _watch(self, watches: bool) -> None:
        if watches:
            registry.watch_modules(self, self._tree.known)
        else:
            registry.ignore_modules(self)

    def uninstall(self) -> None:
        self._hooks.remove()
        registry.ignore_modules(self)
        self._tree.forget()
        for module in self._known_modules():
            registry.forget(module)
        if self.is_installed:
            self._at_collection.detach()

    def shares(self, module: nn.Module, name: str) -> bool:
        """The weight's bytes are hoist's, not the worker's own."""
        return self._tree.shares(module, name)

    def _known_modules(self) -> set[nn.Module]:
        return {self.root, *self._tree.modules}

    def close(self) -> None:
        """Gives everything back to hoistd for good; nothing may be running."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._release)
            stack.callback(give_back, [part.held for part in self.parts])
            self.passes.end_all()

    def _release(self) -> None:
        """Tensors that are still referenced keep what they need."""
        self.ended = True
        for group in self.groups:
            group.binding.release()
        if self._in_place is not None:
            self._in_place.release()
        self.shelf.close()
        self.uses.end()

    def detach(self, without_loss: bool = False) -> None:
        """The module has its own weights again.

        DataLoss: hoistd ended with some of them. The module is detached, with
        those on the meta device; with `without_loss` it stays attached.
        DeadlineExceeded: hoistd has some of them and does not respond; the
        module stays attached.
        """
        with (self.passes.between("detach it"), patience(DETACH_PATIENCE),
              torch.inference_mode(False)):
            own, lost = self._private_weights()
            if lost and without_loss:
                raise self.loss("the module would be detached", lost)
            self.uninstall()
            _put(own)
            for group in self.groups:
                settle(group)
            renew_lists(self._tree.modules)
            with contextlib.suppress(Unavailable):  # There is nothing left.
                self.close()
        if lost:
            raise self.loss("the module is detached", lost)

    def loss(self, what: str, lost: Mapping[str, Exception]) -> DataLoss:
        names = ", ".join(f'"{name}"' for name in list(lost)[:5])
        return DataLoss(
            f"{what}, but {len(lost)} of its {len(self.groups)} groups' "
            "weights are lost, and on the meta device: "
            f"{names}{', ...' if len(lost) > 5 else ''}: "
            f"{next(iter(lost.values()))}")

    def _private_weights(self) -> tuple[list[Swap], dict[str, HoistError]]:
        """The assignments, and the lost groups with the reasons. Bytes are
        hoistd's, or this process's, or the source's."""
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
            group.binding.follow_flags(group.bound)
            if gone is None or binding.idle.image.loaded:
                try:
                    own += binding.private_weights(self.devices)
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
                own += binding.private_weights(
                    self.devices, group.read_there() if group.bound else
                    self._source.read(group.spec))
            except (HoistError, OSError):
                if isinstance(why, DeadlineExceeded):
                    raise why  # hoistd has them, but does not respond.
                own += binding.meta_weights()
                lost[group.spec.name] = why
        if self._in_place is not None:  # Mapped here, even after hoistd's end.
            own += self._in_place.private_weights(self.devices)
        return own, lost

    def undo(self) -> dict[str, Exception]:
        """After a failed or uncommitted attach: gives the module back its own
        tensors, the very same if they are kept, which takes no hoistd, and
        hoistd its memory. Returns the released groups that cannot be read back,
        which are on the meta device, with the reasons."""
        lost: dict[str, Exception] = {}
        with (patience(DETACH_PATIENCE), torch.inference_mode(False),
              contextlib.ExitStack() as stack):
            stack.callback(self._close_failed, lost)
            stack.callback(lambda: renew_lists(self._tree.modules))
            if self._in_place is not None and not self.originals.holds_placed:
                stack.callback(self._copy_back, self._in_place)
            for group in self.groups:
                if not self.originals.holds(group.spec.name):
                    stack.callback(self._read_back, group, lost)
            stack.callback(self.originals.put_back)
            self.uninstall()
        return lost

    def _read_back(self, group: Group, lost: dict[str, Exception]) -> None:
        group.binding.follow_flags(group.bound)
        try:
            own = group.binding.private_weights(self.devices)
        except Exception as error:  # Of any kind: the other groups go on.
            own = group.binding.meta_weights()
            lost[group.spec.name] = error
        _put(own)

    def _copy_back(self, placed: InPlaceWeights) -> None:
        _put(placed.private_weights(self.devices))

    def _close_failed(self, lost: Mapping[str, Exception]) -> None:
        if lost:  # hoistd may have the only bytes.
            self.uses.keep()
        try:
            self.close()
        except HoistError as error:  # Its memory ends with the session.
            log.debug("%s: a failed attach gives back: %s",
                      type(self.root).__name__, error)

    # After hoistd's end.

    def renew(self) -> None:
        """Makes groups stageable, in a new session if theirs has ended: pins
        and plans them as before. If only a plan has ended, plans only. Nothing
        may be staged.

        Link.renew's errors. Unavailable: results may be void, raised once.
        FailedPrecondition: CUDA graphs hold addresses of the ended hoistd.
        """
        planned = self.planning.lives()
        if planned and self._place is self.link.place and self.link.lives():
            return
        self._report_void_results()
        self.link.renew()
        place = self.link.place
        if place is None or (planned and place is self._place):
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
        """Ends all stages: the session has ended, or others need the memory."""
        self._place = None
        self.passes.forget()
        self.planning.end()
        give_back([part.held for part in self.parts])

    def _report_void_results(self) -> None:
        """A GPU may have computed with memory that was gone."""
        stages = self.planning.count("stages")
        on_gpu = any(part.torch_device.type == "cuda" for part in self.parts)
        if self._place is None or not on_gpu or stages == self._checked:
            return
        self._checked = stages
        if any(part.ended for part in self.parts):
            return  # The failed pass has raised it.
        try:
            self.parts[0].session.check()
            if self.planning.lives():
                return
            ended = "a plan, which the hoistd that is here now did not get"
        except Unavailable as error:
            ended = f"the session (stopped, crashed, or told to): {error}"
        self.void = Unavailable(
            "the GPU may have computed with weights that were no more hoist's: "
            "results since the last hoist.check are void; the next call "
            f"attaches the module again. hoistd has ended {ended}")
        raise self.void

    def check(self) -> None:
        """Raises if results since the last check may not be trusted. Waits for
        the GPU first, as pending results cannot be checked."""
        for part in self.parts:
            if part.is_capturing():
                raise FailedPrecondition(
                    "a CUDA graph is being captured, so nothing is computed "
                    "that could be checked; check after its replay")
            part.synchronize_all()
        void, self.void = self.void, None
        if void is not None:
            raise void
        if self.passes.stands and not self.link.lives():
            return  # No result depends on the ended hoistd.
        self.link.check()
        self.planning.check()
        self._checked = self.planning.count("stages")

    def set_budget(self, budget: Budget) -> None:
        """Between passes. ResourceExhausted leaves it unchanged."""
        with self.passes.between("set its budget"):
            self.renew()
            self.passes.unbind()
            try:
                self.planning.set_budget(budget)
                self._budget = budget
                self._warm()
            finally:
                self.passes.bind()

    def advance(self, wait: bool) -> None:
        """Between passes: moves pieces in place that are to become hot or
        cold."""
        with self.passes.between("move its pieces"):
            if self._in_place is not None:
                self.parts[0].synchronize_all()
                self._in_place.advance(wait)

    def give_back(self) -> None:
        """Gives back all device memory, between passes, until `bring_back` or
        the next pass. Raises `check`'s errors, after giving it back."""
        with self.passes.between("give its memory back"):
            if self._place is None:
                return
            try:
                self.check()
            finally:
                self._end()
                if self._in_place is not None:
                    self._in_place.cool()

    def sleep(self) -> None:
        """FailedPrecondition: it runs, or a graph has its plan's addresses."""
        if self.captured:
            raise FailedPrecondition(
                "a CUDA graph was captured of the module's plan, and a replay "
                "needs its memory; hoist.detach(module) ends both")
        self.give_back()

    @property
    def sleeps(self) -> bool:
        """It has no device memory, until its next pass."""
        return self._place is None

    def wake(self) -> None:
        with self.passes.between("wake it"):
            self.renew()
            self._warm()

    def bring_back(self, budget: Budget) -> None:
        """After `give_back`: makes groups stageable in this budget. On
        ResourceExhausted it has nothing, as before."""
        with self.passes.between("bring it back"):
            self.planning.expect_budget(budget)
            self._budget = budget
            self.renew()
            self._warm()

    def _warm(self) -> None:
        """The budget beyond the groups is for pieces in place."""
        if self._in_place is not None:
            self._in_place.set_hot_bytes(
                self.planning.bytes_beside(self.parts[0], self._budget))

    @property
    def image_bytes(self) -> int:
        """The device memory that it could use."""
        return self.planning.beside + sum(group.staged.image_bytes
                                          for group in self.groups)

    @property
    def captured(self) -> bool:
        """A CUDA graph holds addresses of the plans."""
        return any(part.captured for part in self.parts)

    def move(self, session: _session.Session) -> Model:
        """See link.Reader."""
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
        if self.ended:
            self.uses.end()
        self.original = original
        self.wanted = dataclasses.replace(self.wanted, session=session)
        return original

    # Changes of the tree; see registry.Attached.

    def note_change(self) -> None:
        self._tree.note_change()
        self._hooks.hook_root()

    def _note_end(self) -> None:
        self.passes.once_free(self._drop_ended)

    def _drop_ended(self) -> None:
        """Gives back device memory of groups whose modules have left the tree
        and ended."""
        gone = {group for group in self._tree.ended()
                if not (group.part.captured or group.part.is_capturing())}
        if not gone:
            return
        self._tree.leave_out(gone)
        try:
            self.passes.leave_out(gone)
            self.planning.leave_out(gone)
            self.passes.bind()
        except HoistError as error:  # The next call raises it, if it matters.
            log.debug("%s: groups end with their modules: %s",
                      self.model.name, error)

    # Groups, by the names that callers use.

    def groups_below(self, modules: set[nn.Module]) -> list[Group]:
        """Groups with weights of any of the modules."""
        return [group for group in self.groups
                if any(place.module in modules for weight in group.spec.weights
                       for place in weight.places)]

    def groups_named(self, name: str | None) -> list[Group]:
        """All, or the one of that name."""
        found = [group for group in self.groups
                 if name is None or group.spec.name == name]
        if not found:
            raise NotFound(f'"{self.model.name}" has no group "{name}"')
        return found

    def stats(self) -> AttachStats:
        infos = [info for info in (part.info for part in self.parts)
                 if info is not None]
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
    """The attachment of exactly this module."""
    return cast("Attachment | None", registry.known(module))


def attachments_in(module: nn.Module) -> Iterator[Attachment]:
    """Those of all modules of the tree, each once."""
    found = {id(one): one for one in map(attachment_of, module.modules())
             if one is not None}
    return iter(found.values())


def find_attached(model: str) -> Attachment | None:
    """See registry.find."""
    return cast("Attachment | None", registry.find(model))


def _put(swaps: list[Swap]) -> None:
    for holder, key, value in swaps:
        holder[key] = value


def _give_all_back(held: list[Held], uses: Uses) -> None:
    try:
        give_back(held)
    finally:
        uses.end()
