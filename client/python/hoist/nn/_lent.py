"""Weights that show memory which will hold something else.

What a forward leaves behind of them, in a hook's list, a module's attribute or
its output, is to stay what it was: it gets memory of its own, or an error.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Sequence

import torch

from .._errors import FailedPrecondition

# How many tensors show a storage; torch before 2.5 does not tell.
uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count",
                                     lambda cdata: 0)

_PATIENCE = 1.0  # Seconds for other threads to let go of a view.


class _Weight:
    """One parameter. It is somebody else's, too, if it is referred to more
    often than by what shows it; and somebody has a view of it if more tensors
    show its memory."""

    def __init__(self, name: str, value: torch.Tensor, alone: bool) -> None:
        self._name = name
        self._value = value
        self._storage = value.untyped_storage() if alone else None
        self.cdata = self._storage._cdata if self._storage is not None else 0
        self._objects = 0  # References, where nobody else has one.
        self._views = 0

    def _references(self) -> int:
        return sys.getrefcount(self._value)

    def lend(self) -> None:
        self._objects = self._references()
        self._views = uses(self.cdata) if self.cdata else 0

    @property
    def is_held(self) -> bool:
        return self.is_referred_to or self.is_viewed

    @property
    def is_referred_to(self) -> bool:
        found = self._references()
        self._objects = min(self._objects, found)
        return found > self._objects

    @property
    def is_viewed(self) -> bool:
        if not self.cdata:
            return False
        found = uses(self.cdata)
        self._views = min(self._views, found)
        return found > self._views

    def own(self) -> None:
        """Whoever refers to it has it from now on, with memory of its own."""
        own = self._value.detach().clone()
        torch.Tensor.data.__set__(self._value, own)  # type: ignore[attr-defined]

    def refuse(self) -> None:
        # What an exception's frames refer to goes with them.
        if sys.exc_info()[1] is None:
            raise FailedPrecondition(
                f'a view of "{self._name}" that was made in its forward is '
                "still there after it, and will show other weights' bytes; "
                "keep a clone(), or a budget for all of the module")


def _viewed(weights: Sequence[_Weight]) -> list[_Weight]:
    """Those that somebody has a view of; another thread may let go of it: torch
    makes one of each weight in a state_dict, before that is given true ones."""
    end = time.monotonic() + _PATIENCE
    while True:
        found = [weight for weight in weights if weight.is_viewed]
        if (not found or threading.active_count() == 1
                or sys.exc_info()[1] is not None  # Which may have them.
                or time.monotonic() > end):
            return found
        time.sleep(0.001)


class Lent:
    """Parameters over bytes that stay there for a forward.

    After each forward all are looked at together, and one by one only where
    something is not as it was.
    """

    def __init__(self) -> None:
        self._weights: list[_Weight] = []
        self._values: list[torch.Tensor] = []
        self._storages: list[int] = []
        self._seen: tuple[list[int], list[int]] = ([], [])
        self.is_lent = False  # See lend.

    def add(self, name: str, value: torch.Tensor, alone: bool) -> None:
        """alone: its memory is shown by nothing else of hoist's."""
        weight = _Weight(name, value, alone)
        self._weights.append(weight)
        self._values.append(value)
        if weight.cdata:
            self._storages.append(weight.cdata)

    def lend(self) -> None:
        """The modules show them, as they will whenever it is looked at; who
        has one by now may have it."""
        self.is_lent = True
        for weight in self._weights:
            weight.lend()
        self._seen = self._counts()

    @property
    def is_held(self) -> bool:
        # As _counts; each stage comes here.
        counts = (list(map(sys.getrefcount, self._values)),
                  list(map(uses, self._storages)))
        if counts == self._seen:
            return False
        if any([weight.is_held for weight in self._weights]):
            return True
        self._seen = counts
        return False

    def keep(self) -> None:
        """While the bytes are there. FailedPrecondition: somebody has a view,
        which cannot be given other memory."""
        viewed = _viewed(self._weights)
        for weight in self._weights:
            if weight.is_referred_to:
                weight.own()
        for weight in viewed:
            weight.refuse()

    def refuse_views(self) -> None:
        """FailedPrecondition: somebody has a view."""
        for weight in _viewed(self._weights):
            weight.refuse()

    def _counts(self) -> tuple[list[int], list[int]]:
        # No function of ours for each of them.
        return (list(map(sys.getrefcount, self._values)),
                list(map(uses, self._storages)))


class Read:
    """A stored tensor of which nodes of a graph have views while they run. It
    has a storage of its own, so that those are counted."""

    def __init__(self, base: torch.Tensor) -> None:
        self.base = base
        self._storage = base.untyped_storage()
        self._uses = uses(self._storage._cdata)

    @property
    def is_kept(self) -> bool:
        """Somebody has a view of it."""
        return uses(self._storage._cdata) > self._uses


def own_output(output: Any, is_lent: Callable[[torch.Tensor], bool]) -> Any:
    """The same, but for tensors that show what is lent; those in tuples, lists
    and dictionaries, too."""
    if isinstance(output, torch.Tensor):
        return output.clone() if is_lent(output) else output
    if isinstance(output, dict):
        for key, value in output.items():
            made = own_output(value, is_lent)
            if made is not value:
                output[key] = made
        return output
    if type(output) in (tuple, list):
        items = [own_output(one, is_lent) for one in output]
        if any(a is not b for a, b in zip(items, output)):
            return type(output)(items)
    return output
