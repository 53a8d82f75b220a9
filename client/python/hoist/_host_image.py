"""Host images: a group's bytes in this process's own memory."""

from __future__ import annotations

import ctypes as c
from typing import Any, Iterator, Mapping

from . import _library as lib
from ._errors import FailedPrecondition, NotFound
from ._library import ask, call
from ._model import Group, TensorInfo
from ._tensor import Tensor

_HOST = 1  # As an emulated device's kind: addresses are of host memory.


class HostImage(Mapping[str, Tensor]):
    """A group's tensors in this process's memory: a mapping by name.

    Made by Session.host_image. The addresses are known and constant from the
    start, so that views can be built once: `image[name].torch()` is a CPU
    tensor, also before load(). TOUCHING ITS BYTES BEFORE load(), after drop()
    or after close() ENDS THE PROCESS WITH SIGSEGV; so does writing, always.
    Views keep the image from being dropped, but an explicit drop or close ends
    it for them too.

    The memory is this process's own, and pins nothing in hoistd. What is
    loaded stays readable after the session's end, and in the child of a fork,
    where load() raises FailedPrecondition. Any thread may use it; loads from
    several threads at once load once.
    """

    device_kind = _HOST
    device_uuid = b""

    def __init__(self, session: Any, group: Group,
                 handle: c.c_void_p) -> None:
        self._session = session  # Keeps it.
        self._handle = handle
        self._free: Any = lib.load().hoist_host_image_free
        self.group = group
        self._address: int = ask("host_image_data", handle) or 0
        self._nbytes: int = ask("host_image_bytes", handle)
        self._places: dict[str, TensorInfo] | None = None

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> HostImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory and the addresses back: no view may be used any
        more. Again: nothing happens."""
        free, self._free = getattr(self, "_free", None), None
        if free is not None:
            handle, self._handle = self._handle, c.c_void_p()
            free(handle)

    def check(self) -> None:
        """Raises FailedPrecondition if the image is closed. That it is not
        loaded is no error: views may be built before."""
        if self._free is None:
            raise FailedPrecondition(
                f'the host image of "{self.group.name}" is closed; make a new '
                "one with Session.host_image")

    def load(self, deadline: float = 60.0) -> None:
        """Waits until the bytes are there. Again: nothing happens.

        deadline: seconds to wait for space in hoistd's host tier; 0: refuse at
            once.

        ResourceExhausted: no space there, or no memory here.
        """
        self.check()
        call("host_image_load", self._handle, max(0, round(deadline * 1000)))

    def move(self, session: Any, group: Group) -> None:
        """From now on load() brings the bytes of that group: for an image whose
        session has ended, with another session's model of the same content.
        Addresses and views stay, and so does what is loaded.

        InvalidArgument: that group's tensors lie otherwise.
        """
        self.check()
        call("host_image_move", self._handle, session._handle,
             group.model._handle, group.index)
        self._session, self.group = session, group

    def drop(self) -> None:
        """Gives the memory back and keeps the addresses. Nobody may be reading
        them. Of a closed image: nothing happens."""
        if self._free is not None:
            ask("host_image_drop", self._handle)

    @property
    def loaded(self) -> bool:
        """Whether the bytes may be touched."""
        return self._free is not None and bool(
            ask("host_image_is_loaded", self._handle))

    @property
    def address(self) -> int:
        """Of the image's first byte; constant. 0 if it is empty."""
        self.check()
        return self._address

    @property
    def nbytes(self) -> int:
        """Of the image: the tensors' bytes and the gaps between them."""
        return self._nbytes

    def _infos(self) -> dict[str, TensorInfo]:
        """Asked of libhoist once."""
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
