"""Weak references to the modules of a tree, which its owner may take apart.

An attachment refers to the root alone. A module that leaves the tree without
another owner ends at once, and its group with it (see tree.py).
"""

from __future__ import annotations

import weakref
from typing import Iterable, Iterator

from torch import nn


class Modules:
    """Each once, in order, while it is referenced elsewhere."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        self._found: weakref.WeakKeyDictionary[nn.Module, None] = (
            weakref.WeakKeyDictionary())
        self.add(*modules)

    def add(self, *modules: nn.Module) -> None:
        for module in modules:
            self._found.setdefault(module)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(list(self._found))

    def __contains__(self, module: object) -> bool:
        return module in self._found

    def __len__(self) -> int:
        return len(list(self._found))
