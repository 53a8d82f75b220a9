"""Sources of groups, on the node that reads them."""

from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
import os
import threading
from typing import Any, Callable, Iterable, Iterator, Mapping, Protocol

import numpy as np

from .. import _session
from .._errors import (AlreadyExists, FailedPrecondition, HoistError,
                       InvalidArgument, NotFound, ResourceExhausted)
from .._model import Group, Model
from .._registration import Groups
from ._image import GroupHead, image_of, pack

_SLOTS = 64  # Concurrent loads from files on a node.

Named = tuple[str, Mapping[str, Any]]
GroupSource = Callable[[], Iterable[Named]]


class Reader(Protocol):
    """Groups in order, each read once, with one at a time in memory."""

    def next(self) -> tuple[GroupHead, Any] | None:
        """None: there are no more. The buffer is valid until the next
        call."""

    def sizes(self) -> dict[str, int] | None:
        """Bytes of the buffers of all groups to come; None: unknown so
        far."""

    def peek(self, group: str) -> GroupHead:
        """The head of a group of sizes(); next() still returns it."""

    def close(self) -> None:
        """Releases everything."""


@dataclasses.dataclass(frozen=True)
class Held:
    """A source: a model that the reading node's hoistd already has."""

    model: str


@dataclasses.dataclass(frozen=True)
class Keep:
    """Keeps the files registered as a model of the reading node."""

    name: str
    readers: str | None


class ModelReader:
    """A model of this node's hoistd: it passes from the host tier into this
    process, one group at a time."""

    def __init__(self, session: _session.Session, model: Model,
                 deadline: float) -> None:
        self._session = session
        self._deadline = deadline
        self._model: Model | None = model
        self._left = [group.name for group in model]
        self._image: Any = None

    def sizes(self) -> dict[str, int]:
        """Bytes by group, in the model's order."""
        assert self._model is not None
        return {group: self._model[group].image_bytes for group in self._left}

    def next(self) -> tuple[GroupHead, Any] | None:
        """Waits until hoistd has the group on the host."""
        if not self._left:
            return None
        found = self._read(self._left[0])
        del self._left[0]
        return found

    def peek(self, group: str) -> GroupHead:
        """Has hoistd read the group, which it keeps if it has room."""
        return self._read(group)[0]

    def _read(self, group: str) -> tuple[GroupHead, Any]:
        self._drop_image()
        assert self._model is not None
        found = self._model[group]
        self._image = self._session.host_image(found)
        self._image.load(self._deadline)
        if not found.image_bytes:
            raise InvalidArgument(f'group "{group}" has no bytes')
        return self._told(found, self._image.address)

    def _told(self, group: Group, address: int) -> tuple[GroupHead, Any]:
        return image_of(group, address)

    def _drop_image(self) -> None:
        image, self._image = self._image, None
        if image is not None:
            image.close()

    def close(self) -> None:
        """This reader is done with the model."""
        self._drop_image()
        model, self._model = self._model, None
        if model is not None:
            with contextlib.suppress(HoistError):
                self._session.done_with(model)
            self._closed(model)

    def _closed(self, model: Model) -> None:
        """Hook of subclasses, called after that."""


class FileReader(ModelReader):
    """Safetensors files, which this node's hoistd reads. They are registered
    meanwhile, under a reserved name."""

    def __init__(self, session: _session.Session, path: str, groups: Groups,
                 deadline: float) -> None:
        self._slot, model = _register(session, os.path.realpath(path), groups)
        self.fingerprint = model.fingerprint
        super().__init__(session, model, deadline)

    def _closed(self, model: Model) -> None:
        """hoistd forgets the files' model, unless another reader uses it."""
        with contextlib.suppress(HoistError):
            self._session.forget(model)
        with _slots_lock:
            _slots.discard(self._slot)


_slots: set[int] = set()  # Slots of this process's readers.
_slots_lock = threading.Lock()


def _register(session: _session.Session, path: str, groups: Groups
              ) -> tuple[int, Model]:
    """Uses the first free name. The names are few and fixed, so that the next
    agent finds the models of a killed one."""
    for slot in range(_SLOTS):
        with _slots_lock:
            if slot in _slots:
                continue
            _slots.add(slot)
        try:
            _forget_left(session, slot)
            return slot, session.register(path, _slot_name(slot), groups)
        except AlreadyExists:  # Another agent of this hoistd uses the slot.
            with _slots_lock:
                _slots.discard(slot)
        except BaseException:
            with _slots_lock:
                _slots.discard(slot)
            raise
    raise ResourceExhausted(f"{_SLOTS} loads read files on this node; wait "
                            "until one has ended")


def forget_left(session: _session.Session) -> None:
    """Called at an agent's start: forgets the unused file models that a killed
    agent left."""
    for slot in range(_SLOTS):
        _forget_left(session, slot)


def _forget_left(session: _session.Session, slot: int) -> None:
    with contextlib.suppress(HoistError):
        left = session.model(_slot_name(slot))
        session.done_with(left)
        session.forget(left)


def _slot_name(slot: int) -> str:
    return f"hoist.ray reads {slot}"


class HeldReader(ModelReader):
    """A model that is already there, with known heads: nothing is hashed
    here."""

    def __init__(self, session: _session.Session, model: Model,
                 heads: list[GroupHead], deadline: float) -> None:
        super().__init__(session, model, deadline)
        self._heads = {head.name: head for head in heads}

    def heads(self) -> list[GroupHead]:
        """The heads of all groups; reads no byte of them."""
        return list(self._heads.values())

    def _told(self, group: Group, address: int) -> tuple[GroupHead, Any]:
        image = (c.c_uint8 * group.image_bytes).from_address(address)
        return self._heads[group.name], np.ctypeslib.as_array(image)


def published_heads(model: Model) -> list[GroupHead]:
    """hoistd's facts about the groups of a published model."""
    return [GroupHead(group.name, tuple(group.tensors), group.image_bytes,
                      group.content or b"") for group in model]


@dataclasses.dataclass(frozen=True)
class KeptFiles:
    """A model of files that hoistd keeps under a load's name."""

    path: str
    groups: Groups
    readers: str | None
    fingerprint: bytes  # Model.fingerprint: the files and their state.

    @classmethod
    def register(cls, session: _session.Session, path: str, groups: Groups,
                 keep: Keep) -> tuple[KeptFiles, Model, bool]:
        """The model, and whether it is new.

        AlreadyExists: other weights have that name. FailedPrecondition: hoistd
        returned another user's model of these files instead.
        """
        path = os.path.realpath(path)
        before: Model | None = None
        with contextlib.suppress(NotFound):
            before = session.model(keep.name)
        model = session.register(path, keep.name, groups, keep.readers)
        if before is not None and before.id != model.id:  # E.g. root's.
            session.done_with(before)
            before = None
        if model.name != keep.name:
            session.done_with(model)
            raise FailedPrecondition(
                f'hoistd has these files already, as the model "{model.name}" '
                f"of user {model.owner}: use that, or load without from_files")
        return (cls(path, groups, keep.readers, model.fingerprint), model,
                before is None)

    def register_again(self, session: _session.Session, name: str
                       ) -> Model | None:
        """Registers with another hoistd. None: the files have changed; an
        existing model of them stays."""
        kept, model, new = KeptFiles.register(
            session, self.path, self.groups, Keep(name, self.readers))
        if kept.fingerprint == self.fingerprint:
            return model
        session.done_with(model)
        if new:
            session.forget(model)
        return None


class IterableReader:
    """The groups that a user's function or iterable yields."""

    def __init__(self, groups: Iterable[Named]) -> None:
        self._groups: Iterator[Named] | None = iter(groups)
        self._buffer: Any = None

    def sizes(self) -> None:
        """Unknown before the groups come."""
        return None

    def peek(self, group: str) -> GroupHead:
        """Never called: see sizes."""
        raise InvalidArgument(f'group "{group}" has not come yet')

    def next(self) -> tuple[GroupHead, Any] | None:
        """Passes on the iterable's exceptions."""
        if self._groups is None:
            return None
        named = next(self._groups, None)
        if named is None:
            return None
        head, image = pack(*named, into=self._buffer)
        if image.base is None:  # A new buffer.
            self._buffer = image
        return head, image

    def close(self) -> None:
        """Runs the `finally` of a generator."""
        self._buffer = None
        groups, self._groups = self._groups, None
        close = getattr(groups, "close", None)
        if close is not None:
            close()
