"""Host images: a group's bytes in this process's private memory."""

from __future__ import annotations

import ctypes as c
from typing import Any, Iterator, Mapping

from . import _c
from ._errors import FailedPrecondition, NotFound
from ._library import Owner, ask, call
from ._model import Group, TensorInfo
from ._tensor import Tensor


class HostImage(Owner, Mapping[str, Tensor]):
    """A group's tensors in this process's memory: a mapping by name.

    Session.host_image makes it. The addresses are constant from the start, so
    views can be built once: `image[name].torch()` is a CPU tensor even before
    load(). AN ACCESS BEFORE load(), after drop() or after close() ENDS THE
    PROCESS WITH SIGSEGV; so does any write. Views keep the image alive, but an
    explicit drop or close invalidates them too.

    The memory is this process's own, and pins nothing in hoistd. Loaded bytes
    stay readable after the session's end, and in the child of a fork, where
    load() raises FailedPrecondition. Any thread may use it; concurrent loads
    load once.
    """

    device_kind = _c.DEVICE_EMULATED  # Addresses are of host memory.
    device_uuid = b""

    def __init__(self, session: Any, group: Group,
                 handle: c.c_void_p) -> None:
        self._session = session  # Keeps it alive.
        self._own(handle, "host_image_free")
        self.group = group
        self._address: int = ask("host_image_data", handle) or 0
        self._nbytes: int = ask("host_image_bytes", handle)
        self._places: dict[str, TensorInfo] | None = None

    def __enter__(self) -> HostImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Returns the memory and the addresses; all views become invalid.
        Idempotent."""
        self._dispose()

    def check(self) -> None:
        """Raises FailedPrecondition if the image is closed. An image that is
        not loaded is no error: views may be built earlier."""
        if self._free is None:
            raise FailedPrecondition(
                f'the host image of "{self.group.name}" is closed; make a new '
                "one with Session.host_image")

    def load(self, deadline: float = 60.0) -> None:
        """Waits for the bytes. Idempotent.

        deadline: seconds to wait for space in hoistd's host tier; 0: fail at
            once.

        ResourceExhausted: no space there, or no memory here.
        """
        self.check()
        call("host_image_load", self._handle, max(0, round(deadline * 1000)))

    def move(self, session: Any, group: Group) -> None:
        """Redirects load() to that group's bytes: for an image of an ended
        session, with another session's model of the same content. Addresses,
        views and loaded bytes stay.

        InvalidArgument: that group has another layout.
        """
        self.check()
        call("host_image_move", self._handle, session._handle,
             group.model._handle, group.index)
        self._session, self.group = session, group

    def drop(self) -> None:
        """Returns the memory and keeps the addresses. There must be no readers.
        No effect on a closed image."""
        if self._free is not None:
            ask("host_image_drop", self._handle)

    @property
    def loaded(self) -> bool:
        """Whether the bytes may be accessed."""
        return self._free is not None and bool(
            ask("host_image_is_loaded", self._handle))

    @property
    def address(self) -> int:
        """The address of the image's first byte; constant. 0: it is empty."""
        self.check()
        return self._address

    @property
    def nbytes(self) -> int:
        """The image's bytes: the tensors and the gaps between them."""
        return self._nbytes

    def _infos(self) -> dict[str, TensorInfo]:
        """Asks libhoist once."""
        if self._places is None:
            self._places = {info.name: info for info in self.group.tensors}
        return self._places

    def __getitem__(self, name: str) -> Tensor:
        info = self._infos().get(name)
        if info is None:
            raise NotFound(f'group "{self.group.name}" has no tensor '
                           f'"{name}"')
        empty = info.nbytes == 0
        return Tensor(self, info, 0 if empty else self._address + info.offset)

    def __contains__(self, name: object) -> bool:
        return name in self._infos()

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos())

    def __len__(self) -> int:
        return len(self._infos())

    def __repr__(self) -> str:
        state = ("closed" if self._free is None else
                 "loaded" if self.loaded else "not loaded")
        return (f"<hoist.HostImage of {self.group.name!r}: {self._nbytes} "
                f"bytes, {state}>")
