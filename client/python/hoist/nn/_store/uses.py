"""The models of hoistd that an attached module uses, until it is done."""

from __future__ import annotations

import contextlib
from typing import Iterator

from ... import _session
from ..._errors import DataLoss, HoistError, NotFound
from ..._model import Model


class Uses:
    """Of one module. It refers to none, so that it can end once the module is
    collected.

    What was made for the module is hoistd's for good once `keep` is called. An
    end before has hoistd forget it, unless another session uses it.

    Threads: any.
    """

    def __init__(self) -> None:
        self._session: _session.Session | None = None
        self._models: dict[int, Model] = {}  # By id().
        self._new: set[str] = set()  # Names that hoistd did not have.

    def add(self, session: _session.Session, *models: Model) -> None:
        """`session` asked for these. If it is new, the earlier one has ended,
        and uses nothing."""
        self._begin(session)
        for model in models:
            self._models.setdefault(id(model), model)

    def makes(self, session: _session.Session, name: str) -> Model | None:
        """To be called before groups of that name are made. Returns the model
        that is there, which is used; None: none, or not all of it."""
        self._begin(session)
        try:
            there = session.model(name)
        except NotFound:
            self._new.add(name)
            return None
        except DataLoss:
            return None
        self.add(session, there)
        return there

    def forgotten(self) -> str | None:
        """The name of one that hoistd no longer has; None: it has all."""
        for model in {one.id: one for one in self._models.values()}.values():
            assert self._session is not None
            try:
                there = self._session.model(model.name)
            except NotFound:
                return model.name
            except HoistError:
                continue
            self.add(self._session, there)
            if there.id != model.id:
                return model.name
        return None

    def _begin(self, session: _session.Session) -> None:
        if session is not self._session:
            self._session, self._models, self._new = session, {}, set()

    def keep(self) -> None:
        self._new = set()

    def end(self) -> None:
        """Tells hoistd that this module is done with them. References to a
        model, and other modules, still keep it in use."""
        models, self._models = self._models, {}
        session, self._session = self._session, None
        new, self._new = self._new, set()
        if session is None:
            return
        # What made it may have failed before it had a model to add.
        for name in new.difference(one.name for one in models.values()):
            with contextlib.suppress(HoistError):  # It was not made yet.
                model = session.model(name)
                models[id(model)] = model
        for model in models.values():
            with contextlib.suppress(HoistError):  # The session has ended.
                session.done_with(model, forget=model.name in new)


@contextlib.contextmanager
def ended_if_it_fails() -> Iterator[Uses]:
    """What the block uses, it uses no more once it has failed."""
    uses = Uses()
    try:
        yield uses
    except BaseException:
        uses.end()
        raise
