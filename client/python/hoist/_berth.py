"""Berths: addresses that groups are bound to, and may leave."""

from __future__ import annotations

import ctypes as c
from typing import Any, Sequence

from . import _library as lib
from ._errors import FailedPrecondition, InvalidArgument, NotFound
from ._library import call, milliseconds
from ._model import Group, Model, TensorInfo
from ._tensor import Tensor


class Berth:
    """Addresses of this process for groups of a model, the same full or empty.
    Made by Session.berth, empty.

    While it is full, `tensor` shows the groups' bytes, read-only, as a lease
    does. Empty, nothing is mapped there: TOUCHING IT THEN ENDS THE PROCESS on
    an emulated device, and is an illegal access on a GPU.
    """

    def __init__(self, device: Any, groups: Sequence[Group],
                 handle: c.c_void_p) -> None:
        self._handle = handle
        self._free: Any = lib.load().hoist_berth_free
        self._numbers = {group.name: at for at, group in enumerate(groups)}
        # No Group, which refers to a session's model.
        self._places: dict[str, dict[str, TensorInfo]] = {
            group.name: {info.name: info for info in group.tensors}
            for group in groups}
        self.device_kind: int = {"emulated": 1, "cuda": 2}[device.kind]
        self.device_uuid: bytes = device.uuid
        self._full = False

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Empties it, and gives the addresses back. Again: nothing happens."""
        free, self._free = getattr(self, "_free", None), None
        if free is not None:
            handle, self._handle = self._handle, c.c_void_p()
            self._full = False
            free(handle)

    def check(self) -> None:
        """FailedPrecondition: it is empty, or closed."""
        if not self._full:
            raise FailedPrecondition("the berth is empty; fill it first")

    def fill(self, session: Any, model: Model, *,
             deadline: float = 30.0) -> None:
        """Stages the groups of these names in the model, and maps each at its
        address. Of a full one: nothing happens.

        session: may be another one than the berth was made with, of another
            hoistd; the berth keeps it until it is empty.
        model: with the same bytes; its fingerprint says whether it has.
        deadline: seconds to wait for space, of each group.

        InvalidArgument: its groups lie otherwise, or the device is another.
        """
        numbers = self._indices(model)
        call("berth_fill", self._handle, session._handle, model._handle,
             numbers, len(numbers), milliseconds(deadline))
        self._full = True

    def empty(self) -> None:
        """Gives everything back but the addresses; nothing reads any more, on
        a GPU neither what was only launched. Of an empty one: nothing."""
        call("berth_empty", self._handle)
        self._full = False

    def address(self, group: str) -> int:
        """Of the group's first byte; 0: its image is empty."""
        data = c.c_void_p()
        call("berth_address", self._handle, self._number(group), c.byref(data))
        return data.value or 0

    def tensor(self, group: str, name: str) -> Tensor:
        """Views of it (`torch`, `numpy`) can be made while the berth is full,
        hold for its life, and keep it."""
        address = self.address(group)
        try:
            info = self._places[group][name]
        except KeyError:
            raise NotFound(f'group "{group}" has no tensor "{name}"') from None
        return Tensor(self, info, address + info.offset if info.nbytes else 0)

    def _number(self, group: str) -> int:
        try:
            return self._numbers[group]
        except KeyError:
            raise NotFound(f'the berth has no group "{group}"') from None

    def _indices(self, model: Model) -> Any:
        return (c.c_uint32 * len(self._numbers))(
            *(model[name].index for name in self._numbers))


def create(session: Any, groups: Sequence[Group], device: int) -> Berth:
    """See Session.berth."""
    if not groups:
        raise InvalidArgument("no groups to make a berth for")
    model = groups[0].model
    if any(group.model.id != model.id for group in groups):
        raise InvalidArgument("the groups are of several models")
    facts = next((one for one in session.devices if one.index == device), None)
    if facts is None:
        raise InvalidArgument(f"hoistd has no device {device}")
    numbers = (c.c_uint32 * len(groups))(*(group.index for group in groups))
    handle = c.c_void_p()
    call("berth_create", session._handle, model._handle, numbers, len(numbers),
         device, c.byref(handle))
    return Berth(facts, groups, handle)
