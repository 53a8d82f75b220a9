"""A model of hoistd's on a device, as a module's tensors."""

from __future__ import annotations

import contextlib
from typing import Mapping

import torch

from .. import _session
from .._errors import HoistError, NotFound
from .._model import Model
from .._tensor import _cuda_device


class Weights:
    """All groups that a module has tensors of, leased as long as they are used.

    Threads: one at a time.
    Owns:    the leases, and so the memory that `tensors` are views of.
    """

    def __init__(self, session: _session.Session, model: Model,
                 stored: Mapping[str, tuple[str, str]],
                 device: _session.Device, deadline: float) -> None:
        """stored: by a tensor's name in the module its group and its name in
        hoistd. deadline: seconds to wait for space, of each group.

        ResourceExhausted: the device has not enough, and what would do.
        """
        self.session = session
        self.model = model
        self.device = device
        self.deadline = deadline
        self._stored = dict(stored)
        self._leases: dict[str, _session.Lease] = {}
        self.tensors: dict[str, torch.Tensor] = {}  # By the module's names.
        try:
            self._take()
        except BaseException:
            self.release()
            raise

    @property
    def nbytes(self) -> int:
        """Of the device, that the leases hold."""
        return sum(lease.nbytes for lease in self._leases.values())

    def _take(self) -> None:
        groups = list(dict.fromkeys(
            group for group, _ in self._stored.values()))
        self.session.prefetch([self.model[group] for group in groups],
                              device=self.device.index)
        for group in groups:
            self._leases[group] = self.session.stage(
                self.model[group], device=self.device.index,
                deadline=self.deadline)
        self.tensors = {name: self._leases[group][stored].torch()
                        for name, (group, stored) in self._stored.items()}

    def release(self) -> None:
        """No tensor may be used any more."""
        self.tensors = {}
        leases, self._leases = self._leases, {}
        for lease in leases.values():
            with contextlib.suppress(HoistError):
                lease.release()

    def spans(self) -> list[tuple[int, int]]:
        """Addresses of the images, [begin, end), for whoever looks at maps."""
        return [(lease.address, lease.address + lease.nbytes)
                for lease in self._leases.values() if lease.nbytes]


def device_of(session: _session.Session,
              wanted: torch.device) -> _session.Device:
    """hoistd's device that this is: a GPU by its UUID; of the CPU the first
    emulated one. NotFound: it has no such device."""
    for one in session.devices:
        if one.kind == "emulated" and wanted.type == "cpu":
            return one
        if one.kind == "cuda" and wanted.type == "cuda":
            index = wanted.index
            if index is None:
                index = torch.cuda.current_device()
            with contextlib.suppress(HoistError):  # Not visible here.
                if torch.device(_cuda_device(one.uuid)).index == index:
                    return one
    raise NotFound(
        f"the engine computes on {wanted}, which is none of hoistd's devices: "
        + (", ".join(f"{one.index} ({one.kind}, {one.name})"
                     for one in session.devices) or "it has none")
        + "; see device.backend and device.visible in hoistd.toml")
