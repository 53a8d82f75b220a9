"""Attributes of other libraries that hoist replaces for a time.

There are two kinds: while any module is attached, so that libraries know of
hoist (`replace`, `restore`); and while a caller wants hoist instead of
diffusers' own calls (`put`, `take_out`). Either may begin and end during the
other: a put value is beneath a replacement, and when both have ended the
attribute is the original.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable

_MISSING = object()


@dataclasses.dataclass
class _Replaced:
    owner: Any  # A class or a Python module.
    name: str
    make: Callable[[Any], Any]
    before: Any
    ours: Any

    @property
    def stands(self) -> bool:
        """It has not been replaced since."""
        return vars(self.owner).get(self.name) is self.ours

    def stand_over(self, before: Any) -> None:
        self.before = before
        self.ours = self.make(before)
        setattr(self.owner, self.name, self.ours)


_lock = threading.Lock()
_replaced: dict[tuple[int, str], _Replaced] = {}


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Sets the attribute to make(its value), once; without the attribute,
    nothing happens. `make` is called again if the value beneath changes."""
    with _lock:
        if owner is None or (id(owner), name) in _replaced:
            return
        before = vars(owner).get(name, _MISSING)
        if before is _MISSING:
            return
        one = _Replaced(owner, name, make, before, None)
        one.stand_over(before)
        _replaced[id(owner), name] = one


def restore() -> None:
    """Restores all attributes, except those that others have replaced."""
    with _lock:
        for one in _replaced.values():
            if one.stands:
                setattr(one.owner, one.name, one.before)
        _replaced.clear()


@dataclasses.dataclass(frozen=True)
class Put:
    owner: Any
    name: str
    before: Any
    function: Any


def put(owner: Any, name: str, make: Callable[[Any], Any]) -> Put:
    """Sets the attribute to make(its value), until `take_out`."""
    with _lock:
        over = _replaced.get((id(owner), name))
        if over is not None and over.stands:
            done = Put(owner, name, over.before, make(over.before))
            over.stand_over(done.function)
        else:
            before = vars(owner)[name]
            done = Put(owner, name, before, make(before))
            setattr(owner, name, done.function)
        return done


def take_out(done: Put) -> None:
    """Undoes `put`, unless another library has replaced it since."""
    with _lock:
        over = _replaced.get((id(done.owner), done.name))
        if over is not None and over.before is done.function:
            if over.stands:
                over.stand_over(done.before)
            else:
                over.before = done.before
        elif vars(done.owner).get(done.name) is done.function:
            setattr(done.owner, done.name, done.before)
