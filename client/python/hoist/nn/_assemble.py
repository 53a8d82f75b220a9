"""From groups on paper to an attached module: hand-over, plans, hooks."""

from __future__ import annotations

import collections
import concurrent.futures
import logging
import os
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from .._errors import InvalidArgument
from .._model import Group, Model
from ._attachment import Attachment
from ._budget import find_device, to_bytes
from ._device_part import DevicePart
from ._hand_over import (cast_name, check_group, known_model, publish,
                         publish_cast)
from ._heap import give_back_free_memory
from ._in_place import InPlaceWeight, pieces_of, refuse_several
from ._layout import GroupSpec
from ._link import Link
from ._live import LiveGroup
from ._options import Wanted
from ._sources import Source
from ._uses import Uses

log = logging.getLogger("hoist.nn")

_AT_ONCE = max(1, min(4, os.cpu_count() or 1))  # Groups on their way to hoistd.


def assemble(root: nn.Module, wanted: Wanted, specs: list[GroupSpec],
             excluded: set[nn.Module], original: Model | None,
             name: str, advance: Callable[[int], None],
             again: Callable[[Model], Source],
             source: str | None = None,
             placed: Sequence[InPlaceWeight] = (),
             placed_model: Model | None = None) -> Attachment:
    """Hands the groups over, unless hoistd has them (`original`), and attaches
    the module. If that fails, the module has its own weights again.

    name: where they are handed over to, and what is derived is named after.
    again: where the weights, of this model, are found again.
    source: what they are, in hexadecimal digits; None: as `original` says.
    placed: weights that are read in place. placed_model: which has their
        pieces, if it is not `original`.
    """
    uses = Uses()
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
    attachment = Attachment(root, wanted, link, parts, uses, excluded, {
        stored.name: stored.device for stored in (
            *(one for spec in specs for one in spec.stored),
            *(one.stored for one in placed))})
    try:
        _hand_over_pieces(attachment, wanted, placed, original or placed_model,
                          name, advance)
        _make_live(attachment, wanted, specs, original, name, source, advance,
                   shares)
        # What hoistd allocates on a device may need what the module had there.
        give_back_free_memory(any(device.type == "cuda" for device in
                                  attachment.devices.values()))
        attachment.pin()
        if placed:
            attachment.read_in_place(placed, placed_model)
        _plan(attachment, wanted)
        attachment.install(again(attachment.original))
    except BaseException:
        attachment.undo()
        raise
    # Once attached there are bytes to give back.
    attachment.devices = {
        name: torch.device("cpu") if device.type == "meta" else device
        for name, device in attachment.devices.items()}
    return attachment


def _check_order(wanted: Wanted, specs: list[GroupSpec]) -> None:
    """Before anything is handed over."""
    names = {spec.name for spec in specs}
    for name in () if isinstance(wanted.order, str) else wanted.order:
        if name not in names:
            raise InvalidArgument(
                f'order names "{name}", which is no group; they are '
                + ", ".join(sorted(names)))


def _spread(wanted: Wanted, specs: list[GroupSpec], link: Link
            ) -> tuple[list[DevicePart], list[int]]:
    """The devices, and which of them each group goes to: in order, each as
    much as its share of the budgets. Groups that one module needs at once go
    where the first of them goes."""
    if not isinstance(wanted.budget, Mapping):
        device, torch_device = find_device(wanted.session, wanted.device)
        return [DevicePart(link, device, torch_device)], (
            [0] * len(specs))
    if not wanted.budget:
        raise InvalidArgument("budget={} names no device")
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
    """Places of groups with a trigger in common, or of one alone; in order."""
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
    """The groups in order, each let go by the module once hoistd has it."""
    session = wanted.session
    cast_to = None
    staged: Model | None = None
    if wanted.storage_dtype is not None:
        if original is not None:
            source = original.fingerprint.hex()
        assert source is not None
        attachment.cast_to = cast_to = cast_name(name, source, specs, wanted.storage_dtype)
        staged = known_model(session, cast_to, specs, cast=True)
        if staged is not None:
            attachment.uses.add(session, staged)

    def hand_over(spec: GroupSpec) -> tuple[Group, Group]:
        known = original if original is not None else (
            publish(session, name, spec, wanted.deadline))
        attachment.uses.add(session, known)
        group = known[spec.name]
        check_group(group, spec, cast=False)
        if cast_to is None:
            return group, group
        if staged is not None:
            return group, staged[spec.name]
        made = publish_cast(session, cast_to, spec, group, wanted.deadline)
        attachment.uses.add(session, made)
        return group, made[spec.name]

    for at, (group, coming) in enumerate(_ahead(hand_over, specs)):
        spec = specs[at]
        live = LiveGroup(spec, attachment.parts[shares[at]], coming, group,
                         attachment.shelf, wanted.deadline, wanted.idle)
        attachment.groups.append(live)
        live.binding.show_idle()
        for stored in spec.stored:
            stored.tensor = None
        advance(spec.nbytes)
    # As it is now that every group is in it.
    attachment.original = original if original is not None else (
        session.model(name))
    attachment.model = attachment.original if cast_to is None else (
        staged if staged is not None else session.model(cast_to))
    attachment.uses.add(session, attachment.original, attachment.model)


def _hand_over_pieces(attachment: Attachment, wanted: Wanted,
                      placed: Sequence[InPlaceWeight],
                      known: Model | None, name: str,
                      advance: Callable[[int], None]) -> None:
    """Of what is read in place; the module keeps its own until it is bound."""
    def hand_over(spec: GroupSpec) -> Model:
        model = known if known is not None else (
            publish(wanted.session, name, spec, wanted.deadline))
        check_group(model[spec.name], spec, cast=False)
        return model

    pieces = pieces_of(placed)
    for spec, model in zip(pieces, _ahead(hand_over, list(pieces))):
        attachment.uses.add(wanted.session, model)
        advance(spec.nbytes)


def _ahead(work: Callable[[GroupSpec], Any],
           specs: list[GroupSpec]) -> Iterator[Any]:
    """Results in order, with a few groups under way at once: writing, copying
    and hashing a group each take a CPU."""
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        coming: collections.deque[Any] = collections.deque()
        try:
            for spec in specs:
                coming.append(pool.submit(work, spec))
                if len(coming) == _AT_ONCE:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for one in coming:
                one.cancel()


def _plan(attachment: Attachment, wanted: Wanted) -> None:
    """A plan for each device, of what is not pinned."""
    by_name = {group.spec.name: group for group in attachment.groups}
    learn = isinstance(wanted.order, str)
    order = list(by_name) if learn else wanted.order
    # Groups' handles are of the model as it was when each was handed over.
    attachment.planning.plan(
        attachment.model, [by_name[name] for name in order], wanted.budget,
        learn, deadline=wanted.deadline, **wanted.terms)
