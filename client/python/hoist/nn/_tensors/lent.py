"""Weights over memory that the next group overwrites.

A weight that survives a forward, in a hook's list, a module's attribute or its
output, must keep its value: it gets memory of its own, or raises.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Callable, Sequence

import torch

from ... import _hot
from ..._errors import FailedPrecondition

# How many tensors share a storage; torch before 2.5 does not tell.
uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count",
                                     lambda cdata: 0)


def _asked() -> Callable[[int], int] | None:
    """Whom hoist._fast asks for uses. None: it reads them itself, since this
    torch has them where it looks."""
    if _hot.fast() is None:
        return uses
    counts, tensor, views = _hot.counts(), torch.empty(1, device="cpu"), []
    storages = [tensor.untyped_storage()._cdata]
    for _ in range(3):
        if counts([], storages, None) != counts([], storages, uses):
            return uses
        views.append(tensor.detach())
    return None


asked = _asked()

_PATIENCE = 1.0  # Seconds for other threads to drop a view.


class _Weight:
    """One parameter. It is kept elsewhere if it has more references than its
    places in modules explain; and it has a view if more tensors share its
    memory."""

    def __init__(self, name: str, value: torch.Tensor, alone: bool) -> None:
        self._name = name
        self._value = value
        self._storage = value.untyped_storage() if alone else None
        self.cdata = self._storage._cdata if self._storage is not None else 0
        self._objects = 0  # References without a keeper elsewhere.
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
        """Gives the parameter memory of its own, for all that refer to it."""
        own = self._value.detach().clone()
        torch.Tensor.data.__set__(self._value, own)  # type: ignore[attr-defined]

    def refuse(self) -> None:
        # References from the frames of an exception end with it.
        if sys.exc_info()[1] is None:
            raise FailedPrecondition(
                f'a view of "{self._name}" that was made in its forward is '
                "still there after it, and will show other weights' bytes; "
                "keep a clone(), or a budget for all of the module")


def _viewed(weights: Sequence[_Weight]) -> list[_Weight]:
    """Those with a view. Another thread may drop it: torch makes a view of each
    weight in a state_dict, before ours gives that true ones."""
    end = time.monotonic() + _PATIENCE
    while True:
        found = [weight for weight in weights if weight.is_viewed]
        if (not found or threading.active_count() == 1
                or sys.exc_info()[1] is not None  # Its frames may have them.
                or time.monotonic() > end):
            return found
        time.sleep(0.001)


class Lent(*_hot.fields("Lent")):  # type: ignore[misc]
    """Parameters over bytes that stay there for a forward.

    After each forward all are checked together, and one by one only if a count
    differs.
    """

    def __init__(self) -> None:
        self._weights: list[_Weight] = []
        self._values: list[torch.Tensor] = []
        self._storages: list[int] = []
        self._seen: Any = None  # The last counts.
        self._counts = _hot.counts()
        self._asked = uses if _hot.fast() is None else asked
        self.is_lent = False  # See lend.

    def add(self, name: str, value: torch.Tensor, alone: bool) -> None:
        """alone: nothing else of hoist's shares its memory."""
        weight = _Weight(name, value, alone)
        self._weights.append(weight)
        self._values.append(value)
        if weight.cdata:
            self._storages.append(weight.cdata)

    def lend(self) -> None:
        """The modules now hold the parameters, as at every later check; earlier
        references are permitted."""
        self.is_lent = True
        for weight in self._weights:
            weight.lend()
        self._seen = self._counts(self._values, self._storages, self._asked)

    def is_held(self) -> bool:
        """A weight is referred to or viewed elsewhere."""
        counts = self._counts(self._values, self._storages, self._asked)
        if counts == self._seen:
            return False
        if any([weight.is_held for weight in self._weights]):
            return True
        self._seen = counts
        return False

    def keep(self) -> None:
        """Call it while the bytes are there. FailedPrecondition: a view is
        held, and cannot be given other memory."""
        viewed = _viewed(self._weights)
        for weight in self._weights:
            if weight.is_referred_to:
                weight.own()
        for weight in viewed:
            weight.refuse()

    def refuse_views(self) -> None:
        """FailedPrecondition: a view is held."""
        for weight in _viewed(self._weights):
            weight.refuse()


class Read:
    """A stored tensor that a graph's nodes view while they run. It has a
    storage of its own, so that views are counted."""

    def __init__(self, base: torch.Tensor) -> None:
        self.base = base
        self._storage = base.untyped_storage()
        self._uses = uses(self._storage._cdata)

    @property
    def is_kept(self) -> bool:
        """A view of it is held."""
        return uses(self._storage._cdata) > self._uses


def own_output(output: Any, is_lent: Callable[[torch.Tensor], bool]) -> Any:
    """The same output, with clones of the tensors over lent memory; also of
    those in tuples, lists and dictionaries."""
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
