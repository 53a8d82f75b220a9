"""The models of hoistd that an attached module uses, until it is done."""

from __future__ import annotations

import contextlib
from typing import Iterator

from ... import _session
from ..._errors import HoistError
from ..._model import Model


class Uses:
    """Of one module. It refers to none, so that it can end once the module is
    collected.

    Threads: any.
    """

    def __init__(self) -> None:
        self._session: _session.Session | None = None
        self._models: dict[int, Model] = {}  # By id().

    def add(self, session: _session.Session, *models: Model) -> None:
        """`session` asked for these. If it is new, the earlier one has ended,
        and uses nothing."""
        if session is not self._session:
            self._session, self._models = session, {}
        for model in models:
            self._models.setdefault(id(model), model)

    def end(self) -> None:
        """Tells hoistd that this module is done with them. References to a
        model, and other modules, still keep it in use."""
        models, self._models = self._models, {}
        session, self._session = self._session, None
        if session is None:
            return
        for model in models.values():
            with contextlib.suppress(HoistError):  # The session has ended.
                session.done_with(model)


@contextlib.contextmanager
def done_if_it_fails(session: _session.Session, *models: Model
                     ) -> Iterator[list[Model]]:
    """These, and those that the block adds, are in use no more once it has
    failed: hoistd evicts them first. Another worker's use of them goes on."""
    used = [*models]
    try:
        yield used
    except BaseException:
        with contextlib.suppress(HoistError):  # The session has ended.
            for model in used:
                session.done_with(model)
        raise
