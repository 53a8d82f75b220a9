"""Attributes of other libraries that are ours while any module is attached."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, Callable

_MISSING = object()


@dataclasses.dataclass
class _Replaced:
    owner: Any  # A class or a module of Python's.
    name: str
    before: Any
    ours: Any


_lock = threading.Lock()
_replaced: dict[tuple[int, str], _Replaced] = {}


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner` has make(what it has) by that name from now on, once; where it
    has none, nothing happens."""
    with _lock:
        if owner is None or (id(owner), name) in _replaced:
            return
        before = vars(owner).get(name, _MISSING)
        if before is _MISSING:
            return
        ours = make(before)
        setattr(owner, name, ours)
        _replaced[id(owner), name] = _Replaced(owner, name, before, ours)


def restore() -> None:
    """All have what was theirs, but for what somebody else has replaced."""
    with _lock:
        for one in _replaced.values():
            if vars(one.owner).get(one.name) is one.ours:
                setattr(one.owner, one.name, one.before)
        _replaced.clear()
