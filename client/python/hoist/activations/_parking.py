"""Cold blocks: on hoistd's disk until a backward needs them.

Each is a model of hoistd with one group, which ends with the session. It is
published, moved to the disk alone, read back like any image, and forgotten when
it is no longer needed.
"""

from __future__ import annotations

import collections
import sys
import threading
import uuid
import weakref

import torch

from .. import _session
from .._errors import FailedPrecondition, HoistError
from .._host_image import HostImage
from .._model import Model


class Parked:
    """A block's bytes there; forgotten after the last reference.

    Threads: one at a time, except its finalizer, which takes no lock.
    """

    def __init__(self, parking: Parking, model: Model, nbytes: int) -> None:
        self._parking = parking
        self._model = model
        self._image: HostImage | None = None
        self.nbytes = nbytes

    def expect(self) -> None:
        """It is needed soon: hoistd begins to read it into its host memory."""
        self._parking.session.prefetch(list(self._model.groups), tier="host")

    def load(self) -> torch.Tensor:
        """Its bytes, until drop(): waits until hoistd has read them."""
        if self._image is None:
            (group,) = self._model.groups
            self._image = self._parking.session.host_image(group)
        self._image.load()
        return self._image["bytes"].torch()

    def drop(self) -> None:
        """Gives the result of load() back, which is no longer read."""
        if self._image is not None:
            self._image.drop()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._parking.over.append(self._model)


# Unneeded models, by session: finalizers send no messages. A backward may end
# after its Offload was closed, so another one may forget them.
_over_lock = threading.Lock()
_over: weakref.WeakKeyDictionary[
    _session.Session, collections.deque[Model]] = weakref.WeakKeyDictionary()


class Parking:
    """A session's parked blocks.

    Threads: any for `over`; the rest one at a time.
    """

    def __init__(self, session: _session.Session) -> None:
        self.session = session
        with _over_lock:
            self.over = _over.setdefault(session, collections.deque())
        self._parked: weakref.WeakSet[Parked] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        return sum(parked.nbytes for parked in self._parked)

    def put(self, data: torch.Tensor) -> Parked:
        """Copies bytes on the host. FailedPrecondition: hoistd has no disk for
        them, or cannot write; ResourceExhausted: no room to take them."""
        # A unique name: an earlier session of this number may have left models
        # on the disk that hoistd has not forgotten yet.
        model = self.session.publish(f"activations/{uuid.uuid4().hex}",
                                     "block", {"bytes": data}, of_session=True)
        try:
            self.session.prefetch(list(model.groups), tier="disk")
        except HoistError:
            self.over.append(model)
            self.forget_some()
            raise
        parked = Parked(self, model, data.nbytes)
        self._parked.add(parked)
        return parked

    def forget_some(self) -> None:
        """Forgets unneeded ones, unless hoistd is reading them."""
        for _ in range(len(self.over)):
            try:
                model = self.over.popleft()
            except IndexError:
                return  # Another Offload has forgotten it.
            try:
                self.session.forget(model)
            except FailedPrecondition:
                self.over.append(model)
            except HoistError:
                pass  # It ended with the session.
