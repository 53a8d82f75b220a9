"""Fixed mappings: addresses to which groups are bound and unbound."""

from __future__ import annotations

import ctypes as c
from typing import Any, Sequence

from ._errors import FailedPrecondition, NotFound
from ._library import DEVICE_KINDS, Owner, call, milliseconds
from ._model import Group, Model, TensorInfo
from ._tensor import Tensor


class FixedMapping(Owner):
    """Reserved addresses of this process for groups of a model, constant
    whether full or empty. Session.fixed_mapping makes it, empty.

    A full mapping's `tensor` shows the groups' bytes, read-only, as a lease
    does. An empty one has nothing mapped: AN ACCESS THEN ENDS THE PROCESS on an
    emulated device, and is an illegal access on a GPU.
    """

    def __init__(self, device: Any, groups: Sequence[Group],
                 handle: c.c_void_p) -> None:
        self._own(handle, "fixed_mapping_free")
        self._numbers = {group.name: at for at, group in enumerate(groups)}
        # No Group, which would refer to a session's model.
        self._places: dict[str, dict[str, TensorInfo]] = {
            group.name: {info.name: info for info in group.tensors}
            for group in groups}
        self.device_kind: int = DEVICE_KINDS[device.kind]
        self.device_uuid: bytes = device.uuid
        self._full = False

    def close(self) -> None:
        """Empties it, and releases the addresses. Idempotent."""
        self._full = False
        self._dispose()

    def check(self) -> None:
        """FailedPrecondition: it is empty or closed."""
        if not self._full:
            raise FailedPrecondition("the mapping is empty; fill it first")

    def fill(self, session: Any, model: Model, *,
             deadline: float = 30.0) -> None:
        """Stages the model's groups of these names, and maps each at its
        address. No effect on a full mapping.

        session: may differ from the mapping's first session, and be of another
            hoistd; the mapping keeps it until it is empty.
        model: must have the same bytes, by its fingerprint.
        deadline: seconds to wait for space, for each group.

        InvalidArgument: the groups' layout or the device differs.
        """
        numbers = self._indices(model)
        call("fixed_mapping_fill", self._handle, session._handle, model._handle,
             numbers, len(numbers), milliseconds(deadline))
        self._full = True

    def empty(self) -> None:
        """Releases everything except the addresses. No read may follow, and no
        launched kernel may still read. No effect on an empty one."""
        call("fixed_mapping_empty", self._handle)
        self._full = False

    def address(self, group: str) -> int:
        """The address of the group's first byte; 0: its image is empty."""
        data = c.c_void_p()
        call("fixed_mapping_address", self._handle, self._number(group),
             c.byref(data))
        return data.value or 0

    def tensor(self, group: str, name: str) -> Tensor:
        """A tensor whose views (`torch`, `numpy`) can be made while the mapping
        is full, are valid for its life, and keep it alive."""
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
            raise NotFound(f'the mapping has no group "{group}"') from None

    def _indices(self, model: Model) -> Any:
        return (c.c_uint32 * len(self._numbers))(
            *(model[name].index for name in self._numbers))
