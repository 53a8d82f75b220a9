"""A model of hoistd's on a device, as a module's tensors."""

from __future__ import annotations

import contextlib
import weakref
from typing import Callable, Mapping

import torch

from .. import _session
from .._errors import DataLoss, HoistError, NotFound
from .._model import Model
from .._tensor import _cuda_device

Connect = Callable[[], _session.Session]
Find = Callable[[_session.Session], Model]

_all: weakref.WeakSet[Weights] = weakref.WeakSet()


class Weights:
    """All groups that a module has tensors of, bound to addresses that they
    keep for this object's life; the memory there comes and goes.

    Threads: one at a time.
    Owns:    the addresses; unless it is suspended the session, and the memory.
    """

    def __init__(self, session: _session.Session, connect: Connect, find: Find,
                 stored: Mapping[str, tuple[str, str]],
                 device: _session.Device, deadline: float) -> None:
        """connect: gives `resume` another session, once this one is closed.
        find: the model, in whichever hoistd a session is with. stored: by a
        tensor's name in the module its group and its name in hoistd. deadline:
        seconds to wait for space, of each group.

        ResourceExhausted: the device has not enough, and what would do.
        """
        self.device = device
        self.deadline = deadline
        self.stored = dict(stored)
        self._find = find
        self._connect = connect
        self._session: _session.Session | None = session
        model = find(session)
        self.name = model.name
        self.fingerprint = model.fingerprint
        groups = [model[one] for one in dict.fromkeys(
            group for group, _ in stored.values())]
        if not groups:
            raise NotFound(f'"{model.name}" has nothing that is bound to')
        self.nbytes = sum(group.image_bytes for group in groups)
        self._berth = session.berth(groups, device=device.index)
        self._spans = [(self._berth.address(group.name), group.image_bytes)
                       for group in groups]
        self._berth.fill(session, model, deadline=deadline)
        # By the module's names.
        self.tensors: dict[str, torch.Tensor] = {
            name: self._berth.tensor(group, tensor).torch()
            for name, (group, tensor) in stored.items()}
        _all.add(self)

    @property
    def suspended(self) -> bool:
        """Whether the tensors may not be touched."""
        return self._session is None

    def check_suspend(self) -> None:
        """FailedPrecondition: they cannot be suspended, and why."""

    def suspend(self) -> None:
        """Gives up leases, mappings and the session; nothing reads the tensors
        until `resume`. Again: nothing happens."""
        self.check_suspend()
        session = self._session
        if session is None:
            return
        self._berth.empty()
        self._session = None
        with contextlib.suppress(HoistError):
            session.close()

    def resume(self) -> None:
        """The same bytes at the same addresses, of whichever hoistd is there
        now. Of what is not suspended: nothing.

        DataLoss: it has other bytes, since the files have changed, or others
        were published under the name. NotFound: it has none.
        """
        if self._session is not None:
            return
        session = self._connect()
        model = self._find(session)
        if model.fingerprint != self.fingerprint:
            raise DataLoss(
                f'"{self.name}" in hoistd has other weights than those that '
                "this engine had when it was suspended: its files have "
                "changed. Start the engine anew")
        self._berth.fill(session, model, deadline=self.deadline)
        self._session = session

    def spans(self) -> list[tuple[int, int]]:
        """Addresses of the images, [begin, end), for whoever looks at maps."""
        return [(at, at + nbytes) for at, nbytes in self._spans if nbytes]


def check_suspend_all() -> None:
    """FailedPrecondition: some weights of this process cannot be suspended."""
    for one in list(_all):
        one.check_suspend()


def suspend_all() -> None:
    """All weights of this process, or, if some cannot be, none. See
    Weights.suspend."""
    check_suspend_all()
    for one in list(_all):
        one.suspend()


def resume_all() -> None:
    """All weights of this process. See Weights.resume."""
    for one in list(_all):
        one.resume()


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
        + "; see device.backend in hoistd.toml")
