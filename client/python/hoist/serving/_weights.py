"""A hoistd model on a device, as a module's tensors."""

from __future__ import annotations

import contextlib
import weakref
from typing import Callable, Mapping

import torch

from .. import _session
from .._errors import Aborted, DataLoss, HoistError, NotFound, Unavailable
from .._model import Model
from .._tensor import _cuda_device

Connect = Callable[[], _session.Session]
Find = Callable[[_session.Session], Model]

_all: weakref.WeakSet[Weights] = weakref.WeakSet()


class Weights:
    """All groups with tensors of a module, bound to fixed addresses for this
    object's life; the memory there comes and goes.

    Threads: one at a time.
    Owns:    the addresses; unless it is suspended the session, and the memory
             unless it rests.
    """

    def __init__(self, session: _session.Session, connect: Connect, find: Find,
                 stored: Mapping[str, tuple[str, str]],
                 device: _session.Device, deadline: float) -> None:
        """connect: gives `resume` a new session, once this one is closed.
        find: the model in a session's hoistd. stored: by a tensor's name in
        the module, its group and its name in hoistd. deadline: seconds to wait
        for space, for each group.

        ResourceExhausted: too little device memory; names what is needed.
        """
        self.device = device
        self.deadline = deadline
        self.stored = dict(stored)
        self._find = find
        self._connect = connect
        model = find(session)
        self.name = model.name
        self.fingerprint = model.fingerprint
        groups = [model[one] for one in dict.fromkeys(
            group for group, _ in stored.values())]
        if not groups:
            raise NotFound(f'"{model.name}" has nothing that is bound to')
        self.nbytes = sum(group.image_bytes for group in groups)
        self._mapping = session.fixed_mapping(groups, device=device.index)
        self._spans = [(self._mapping.address(group.name), group.image_bytes)
                       for group in groups]
        # Both None: suspended. hoistd keeps the model for them.
        self._session: _session.Session | None = None
        self._model: Model | None = None
        self._fill(session, model)
        # By the module's names.
        self.tensors: dict[str, torch.Tensor] = {
            name: self._mapping.tensor(group, tensor).torch()
            for name, (group, tensor) in stored.items()}
        _all.add(self)

    @property
    def suspended(self) -> bool:
        """Whether the tensors may not be touched."""
        return self._is_empty

    def check_suspend(self) -> None:
        """FailedPrecondition: they cannot be suspended, and why."""

    def rest(self) -> None:
        """Gives up leases and mappings; the tensors may not be read until
        `resume`. hoistd keeps the model for this session. Repeated, it does
        nothing. FailedPrecondition: see check_suspend."""
        self.check_suspend()
        self._is_empty = True
        self._mapping.empty()

    def suspend(self) -> None:
        """The same, and gives up the session, too. hoistd may then drop weights
        that were published."""
        self.rest()
        session = self._session
        self._session = self._model = None
        if session is not None:
            with contextlib.suppress(HoistError):
                session.close()

    def resume(self) -> None:
        """Maps the same bytes at the same addresses, from the present hoistd.
        Does nothing unless it rests or is suspended.

        DataLoss: it has other bytes, since the files have changed, or others
        were published under the name. NotFound: it has none.
        """
        if not self._is_empty:
            return
        if self._model is not None:
            try:
                return self._fill(self._session, self._model)
            except (Unavailable, Aborted):  # hoistd has ended meanwhile.
                self.suspend()
        session = self._connect()
        model = self._find(session)
        if model.fingerprint != self.fingerprint:
            raise DataLoss(
                f'"{self.name}" in hoistd has other weights than those that '
                "this engine had when it was suspended: its files have "
                "changed. Start the engine anew")
        self._fill(session, model)

    def _fill(self, session: _session.Session | None, model: Model) -> None:
        assert session is not None
        self._mapping.fill(session, model, deadline=self.deadline)
        self._session, self._model = session, model
        self._is_empty = False

    def spans(self) -> list[tuple[int, int]]:
        """Addresses of the images, [begin, end), to find them in mappings."""
        return [(at, at + nbytes) for at, nbytes in self._spans if nbytes]


def check_suspend_all() -> None:
    """FailedPrecondition: some weights of this process cannot be suspended."""
    for one in list(_all):
        one.check_suspend()


def suspend_all() -> None:
    """Suspends all weights of this process, or, if some cannot be, none. See
    Weights.suspend."""
    check_suspend_all()
    for one in list(_all):
        one.suspend()


def resume_all() -> None:
    """Resumes all weights of this process. See Weights.resume."""
    for one in list(_all):
        one.resume()


def device_of(session: _session.Session,
              wanted: torch.device) -> _session.Device:
    """hoistd's device of that torch device: a GPU by its UUID; for the CPU the
    first emulated one. NotFound: it has no such device."""
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
