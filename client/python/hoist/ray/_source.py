"""Where groups come from, on the node that reads them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
from typing import Any, Callable, Iterable, Iterator, Mapping, Protocol

from .. import _session
from .._errors import HoistError, InvalidArgument
from .._model import Model
from .._registration import Groups
from ._image import GroupHead, image_of, pack

Named = tuple[str, Mapping[str, Any]]
GroupSource = Callable[[], Iterable[Named]]


class Reader(Protocol):
    """Groups in order, each read once, of which one at a time is in memory."""

    def next(self) -> tuple[GroupHead, Any] | None:
        """None: there are no more. The buffer may be used until the next
        call."""

    def names(self) -> list[str] | None:
        """Of all groups to come; None: nobody knows yet."""

    def peek(self, group: str) -> GroupHead:
        """What a group of names() is; next() gives it nevertheless."""

    def close(self) -> None:
        """Leaves nothing behind."""


class FileReader:
    """Safetensors, which this node's hoistd reads: into its host tier, and
    from there into this process, a group at a time.

    They are a model of hoistd's meanwhile, under a name of their own.
    """

    def __init__(self, session: _session.Session, path: str, groups: Groups,
                 deadline: float) -> None:
        self._session = session
        self._deadline = deadline
        where = os.path.realpath(path)
        self._name = "hoist.ray reads " + hashlib.sha256(
            f"{os.getpid()} {id(self)} {where}".encode()).hexdigest()[:16]
        self._model: Model | None = session.register(
            where, self._name, groups)
        self._left = [group.name for group in self._model]
        self._image: Any = None

    def names(self) -> list[str]:
        """In the model's order."""
        return list(self._left)

    def next(self) -> tuple[GroupHead, Any] | None:
        """Waits until hoistd has read it."""
        if not self._left:
            return None
        found = self._read(self._left[0])
        del self._left[0]
        return found

    def peek(self, group: str) -> GroupHead:
        """hoistd reads it for that, and keeps it if it has room."""
        return self._read(group)[0]

    def _read(self, group: str) -> tuple[GroupHead, Any]:
        self._drop_image()
        assert self._model is not None
        found = self._model[group]
        self._image = self._session.host_image(found)
        self._image.load(self._deadline)
        if not found.image_bytes:
            raise InvalidArgument(f'group "{group}" has no bytes')
        return image_of(found, self._image.address)

    def _drop_image(self) -> None:
        image, self._image = self._image, None
        if image is not None:
            image.close()

    def close(self) -> None:
        """hoistd forgets the files' model, if it is not somebody else's."""
        self._drop_image()
        model, self._model = self._model, None
        if model is None:
            return
        with contextlib.suppress(HoistError):
            self._session.done_with(model)
        if model.name == self._name:
            with contextlib.suppress(HoistError):
                self._session.forget(model)


class IterableReader:
    """What a function or an iterable of the user's yields."""

    def __init__(self, groups: Iterable[Named]) -> None:
        self._groups: Iterator[Named] | None = iter(groups)

    def names(self) -> None:
        """Nobody knows before they come."""
        return None

    def peek(self, group: str) -> GroupHead:
        """Not asked for: see names."""
        raise InvalidArgument(f'group "{group}" has not come yet')

    def next(self) -> tuple[GroupHead, Any] | None:
        """Whatever the iterable raises goes through."""
        if self._groups is None:
            return None
        named = next(self._groups, None)
        return None if named is None else pack(*named)

    def close(self) -> None:
        """Of a generator: its `finally` runs."""
        groups, self._groups = self._groups, None
        close = getattr(groups, "close", None)
        if close is not None:
            close()


def source_key(path: str, groups: Groups) -> str:
    """Which files these are now: loads with one key are of one content."""
    root = pathlib.Path(path)
    files = sorted(root.glob("*.safetensors")) if root.is_dir() else [root]
    told = [os.path.realpath(path), repr(groups)]
    for file in files:
        stat = file.stat()
        told.append(f"{file.name} {stat.st_ino} {stat.st_size} "
                    f"{stat.st_mtime_ns}")
    return "\n".join(told)
