"""Weights that show memory which will hold something else.

What a forward leaves behind of them, in a hook's list, a module's attribute or
its output, is to stay what it was: it gets memory of its own, or an error.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch

from .._errors import FailedPrecondition

# How many tensors show a storage; torch before 2.5 does not tell.
_uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count",
                                      lambda cdata: 0)


class Lent:
    """One parameter over bytes that stay there for a forward.

    It is somebody else's, too, if it is referred to more often than by what
    shows it; and somebody has a view of it if more tensors show its memory.
    """

    def __init__(self, name: str, value: torch.Tensor, alone: bool) -> None:
        """alone: its memory is shown by nothing else of hoist's."""
        self._name = name
        self._value = value
        self._storage = value.untyped_storage() if alone else None
        self._cdata = self._storage._cdata if self._storage is not None else 0
        self._objects = 0  # References, where nobody else has one.
        self._views = 0

    def _references(self) -> int:
        return sys.getrefcount(self._value)

    def lend(self) -> None:
        """The modules show it, as they will whenever it is looked at; who has
        it by now may have it."""
        self._objects = self._references()
        self._views = _uses(self._cdata) if self._cdata else 0

    @property
    def is_held(self) -> bool:
        return self._is_referred_to or self._is_viewed

    @property
    def _is_referred_to(self) -> bool:
        found = self._references()
        self._objects = min(self._objects, found)
        return found > self._objects

    @property
    def _is_viewed(self) -> bool:
        if not self._cdata:
            return False
        found = _uses(self._cdata)
        self._views = min(self._views, found)
        return found > self._views

    def keep(self) -> None:
        """While the bytes are there. FailedPrecondition: somebody has a view,
        which cannot be given other memory."""
        viewed = self._is_viewed
        if self._is_referred_to:
            own = self._value.detach().clone()
            torch.Tensor.data.__set__(  # type: ignore[attr-defined]
                self._value, own)
        # What an exception's frames refer to goes with them.
        if viewed and sys.exc_info()[1] is None:
            raise FailedPrecondition(
                f'a view of "{self._name}" that was made in its forward is '
                "still there after it, and will show other weights' bytes; "
                "keep a clone(), or a budget for all of the module")


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
