"""From laid-out groups to an attached module: hand-over, plans, hooks."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Mapping, Sequence

import torch
from torch import nn

from ... import _model
from ..._errors import Aborted, DataLoss, InvalidArgument, NotFound
from ..._in_order import in_order
from ..._model import Model
from .._plan.budget import find_device, to_bytes
from .._plan.in_place import refuse_several
from .._show.device_part import DevicePart
from .._show.group import Group
from .._store.hand_over import (cast_name, check_group, known_model, publish,
                                publish_cast)
from .._store.link import Link
from .._store.sources import Source
from .._store.uses import Uses
from .._tree.layout import GroupSpec
from .._tree.pieces import InPlaceWeight, pieces_of
from . import libraries
from .attachment import Attachment
from .lender import lend
from .options import Wanted
from .originals import Originals

log = logging.getLogger("hoist.nn")


def assemble(root: nn.Module, wanted: Wanted, specs: list[GroupSpec],
             excluded: set[nn.Module], original: Model | None,
             name: str, advance: Callable[[int], None],
             again: Callable[[Model], Source], uses: Uses,
             source: str | None = None,
             placed: Sequence[InPlaceWeight] = (),
             placed_model: Model | None = None) -> Attachment:
    """Hands the groups over, unless hoistd has them (`original`), and attaches
    the module. The module's own tensors are kept until `commit`, or as
    wanted.hand_over says; a failure restores them.

    name: the name of the handed-over model, and the stem of derived names.
    again: returns the source where the weights of this model are found again.
    uses: of the module, so far; it ends if this fails.
    source: their content, in hexadecimal digits; None: `original`'s.
    placed: weights that are read in place. placed_model: the model of files
        that was registered with their pieces; None: they are `original`'s, or
        handed over.
    DataLoss: `original`, or a group that the module lacks, is damaged.
    """
    if original is not None:
        uses.add(wanted.session, original)
    try:
        _check_order(wanted, specs)
        link = Link(wanted.session, wanted.stage_deadline)
        parts, shares = _spread(wanted, specs, link)
        if placed:
            refuse_several(parts)
    except BaseException:
        uses.end()
        raise
    stored = [*(one for spec in specs for one in spec.stored),
              *(one.stored for one in placed)]
    attachment = Attachment(
        root, wanted, link, parts, uses, excluded,
        {one.name: torch.device("cpu") if one.meta_at_first else one.device
         for one in stored}, Originals(specs, placed))
    try:
        if placed_model is None:
            _hand_over_pieces(attachment, wanted, placed, original, name,
                              advance)
        else:  # It was registered with these pieces, which are there already.
            advance(sum(one.stored.nbytes for one in placed))
        _make_live(attachment, wanted, specs, original, name, source, advance,
                   shares)
        if wanted.hand_over == "by_group":
            # hoistd may need the freed memory for its allocation on a device.
            attachment.give_back_free_memory()
        attachment.pin()
        if placed:
            attachment.read_in_place(placed, placed_model)
            if wanted.hand_over == "by_group":
                attachment.originals.release_placed()
        # hoistd may ask for the plan before the hooks stand.
        with attachment.passes.between("attach it"):
            _plan(attachment, wanted)
            attachment.install(again(attachment.original))
        libraries.know(root)
    except BaseException as error:
        forgotten = uses.forgotten() if isinstance(error, NotFound) else None
        lost = undo(attachment)
        if lost:
            raise attachment.loss(
                f"attach has failed ({error}) after weights of the module were "
                'given up on the way, as hand_over="by_group" says', lost
            ) from error
        if forgotten is not None:
            raise _forgotten(forgotten) from error
        raise
    return attachment


def undo(attachment: Attachment) -> dict[str, Exception]:
    """Undoes an attachment before its commit; see Attachment."""
    libraries.forget(attachment.root)
    return attachment.undo()


def _check_order(wanted: Wanted, specs: list[GroupSpec]) -> None:
    """Checks it before any hand-over."""
    names = {spec.name for spec in specs}
    for name in () if isinstance(wanted.order, str) else wanted.order:
        if name not in names:
            raise InvalidArgument(
                f'order names "{name}", which is no group; they are '
                + ", ".join(sorted(names)))


def _spread(wanted: Wanted, specs: list[GroupSpec], link: Link
            ) -> tuple[list[DevicePart], list[int]]:
    """The devices, and each group's device: groups in order, spread by the
    shares of the budgets. Groups that one module needs at once go to the device
    of the first of them."""
    if not isinstance(wanted.budget, Mapping):
        device, torch_device = find_device(wanted.session, wanted.device)
        return [DevicePart(link, device, torch_device)], (
            [0] * len(specs))
    total = sum(spec.nbytes for spec in specs)
    parts: list[DevicePart] = []
    amounts: list[int] = []
    for key, amount in wanted.budget.items():
        device, torch_device = find_device(wanted.session, key)
        if any(part.device == device for part in parts):
            raise InvalidArgument(
                f"budget={wanted.budget!r} names device {device.index} twice")
        parts.append(DevicePart(link, device, torch_device))
        amounts.append(to_bytes(amount, total) or device.pool_bytes)
    shares, done, part = [0] * len(specs), 0, 0
    ends = [sum(amounts[:at + 1]) / sum(amounts) * total
            for at in range(len(amounts))]
    for together in _needed_at_once(specs):
        nbytes = sum(specs[at].nbytes for at in together)
        while part + 1 < len(parts) and done + nbytes / 2 > ends[part]:
            part += 1
        for at in together:
            shares[at] = part
        done += nbytes
    return parts, shares


def _needed_at_once(specs: list[GroupSpec]) -> list[list[int]]:
    """Places of groups that share a trigger, or of a single one; in order."""
    found: dict[nn.Module, list[int]] = {}
    for at, spec in enumerate(specs):
        together = [at]
        for trigger in spec.triggers:
            other = found.get(trigger, together)
            if other is not together:
                together += other
                for one in other:
                    found.update(dict.fromkeys(specs[one].triggers, together))
        found.update(dict.fromkeys(spec.triggers, together))
    several = {id(one): sorted(one) for one in found.values()}
    return sorted(several.values())


def _make_live(attachment: Attachment, wanted: Wanted, specs: list[GroupSpec],
               original: Model | None, name: str, source: str | None,
               advance: Callable[[int], None], shares: list[int]) -> None:
    """The groups in order; from here on the module has hoistd's weights."""
    session = wanted.session
    cast_to = None
    staged: Model | None = None
    if wanted.storage_dtype is not None:
        if original is not None:
            source = original.fingerprint.hex()
        assert source is not None
        attachment.cast_to = cast_to = cast_name(name, source, specs,
                                                 wanted.storage_dtype)
        staged = known_model(session, cast_to, specs, cast=True)
        if staged is not None:
            attachment.uses.add(session, staged)
        else:
            attachment.uses.makes(session, cast_to)

    hand = _Hand(attachment, wanted, original, name)

    def hand_over(spec: GroupSpec) -> tuple[_model.Group, _model.Group]:
        group = hand.over(spec)
        check_group(group, spec, cast=False)
        if cast_to is None:
            return group, group
        return group, hand.give(
            spec, staged, lambda: publish_cast(session, cast_to, spec, group,
                                               wanted.deadline))

    with in_order(hand_over, specs) as handed_over:
        for spec, share, (group, coming) in zip(specs, shares, handed_over):
            live = Group(spec, attachment.parts[share], coming, group,
                             attachment.shelf, wanted.deadline, wanted.idle)
            attachment.groups.append(live)
            live.rest()
            if wanted.hand_over == "by_group":
                attachment.originals.release_group(spec.name)
            advance(spec.nbytes)
    # The model in its present state, with every group.
    attachment.original = original if original is not None else (
        session.model(name))
    attachment.uses.add(session, attachment.original)
    attachment.model = attachment.original if cast_to is None else (
        staged if staged is not None else session.model(cast_to))
    attachment.uses.add(session, attachment.model)
    _check_same(attachment)


class _Hand:
    """Hands groups to hoistd, and checks those that it already has: the module
    is about to release the same bytes.

    Threads: any.
    """

    def __init__(self, attachment: Attachment, wanted: Wanted,
                 original: Model | None, name: str) -> None:
        self._uses = attachment.uses
        self._session = wanted.session
        self._deadline = wanted.deadline
        self._original = original
        self._name = name
        self._before: Model | None = None  # The earlier model of that name.
        if original is None:
            self._before = self._uses.makes(wanted.session, name)

    def over(self, spec: GroupSpec) -> _model.Group:
        """Unconverted. DataLoss: hoistd's is damaged, and may be another's."""
        def hand_over() -> Model:
            return publish(self._session, self._name, spec, self._deadline)

        if self._original is not None:
            self._look_at(spec, self._original)
            return self._original[spec.name]
        there = None
        if self._before is not None and spec.name in self._before:
            there = hand_over()  # It compares them.
        return self.give(spec, there, hand_over)

    def give(self, spec: GroupSpec, there: Model | None,
             hand_over: Callable[[], Model]) -> _model.Group:
        """there: the model that already has the group."""
        if there is not None:
            try:
                self._look_at(spec, there)
                return there[spec.name]
            except DataLoss as error:
                log.warning("what hoistd has damaged is handed over again: %s",
                            error)
        model = hand_over()
        self._uses.add(self._session, model)
        return model[spec.name]

    def _look_at(self, spec: GroupSpec, there: Model) -> None:
        self._uses.add(self._session, there)
        if spec.in_hand:
            with self._session.host_image(there[spec.name]) as image:
                image.load(self._deadline)


def _check_same(attachment: Attachment) -> None:
    """Aborted: the model was forgotten after a part of the hand-over, and is
    another one by now."""
    for group in attachment.groups:
        for model, found in ((attachment.model, group.staged.model),
                             (attachment.original,
                              group.binding.idle.image.group.model)):
            if found.id != model.id:
                raise _forgotten(model.name)


def _forgotten(name: str) -> Aborted:
    return Aborted(f'"{name}" was forgotten while it was attached; attach again')


def _hand_over_pieces(attachment: Attachment, wanted: Wanted,
                      placed: Sequence[InPlaceWeight],
                      original: Model | None, name: str,
                      advance: Callable[[int], None]) -> None:
    """For weights in place; the module keeps its own until they are bound."""
    if not placed:
        return
    hand = _Hand(attachment, wanted, original, name)

    def hand_over(spec: GroupSpec) -> int:
        check_group(hand.over(spec), spec, cast=False)
        return spec.nbytes

    pieces: list[GroupSpec] = list(pieces_of(placed))
    if not any(piece.in_hand for piece in pieces):
        for piece in pieces:  # A look-up each, for which threads cost time.
            advance(hand_over(piece))
        return
    with in_order(hand_over, pieces) as handed_over:
        for nbytes in handed_over:
            advance(nbytes)


def _plan(attachment: Attachment, wanted: Wanted) -> None:
    """A plan for each device, with its groups that are not pinned."""
    by_name = {group.spec.name: group for group in attachment.groups}
    learn = isinstance(wanted.order, str)
    lend(attachment)
    order = list(by_name) if learn else wanted.order
    # Each group's handle has the model's state at its hand-over.
    attachment.planning.plan(
        attachment.model, [by_name[name] for name in order], wanted.budget,
        learn, deadline=wanted.deadline, **wanted.terms)
