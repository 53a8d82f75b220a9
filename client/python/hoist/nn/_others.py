"""Modules that are somebody else's: of the tree, which its owner may take apart.

An attachment refers to the root alone. What is taken out of the tree, and is
nobody's, ends then and there, and its group with it (see _tree).
"""

from __future__ import annotations

import weakref
from typing import Iterable, Iterator

from torch import nn


class Modules:
    """Each once, in order, for as long as somebody else has it."""

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

    def __bool__(self) -> bool:
        return len(self) > 0

    def __len__(self) -> int:
        return len(list(self._found))
