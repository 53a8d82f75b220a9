"""What is still to come to which node, and who is told of what came."""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, Mapping

from .._progress import Advance, progress_bar
from ._image import GroupHead

Progress = Callable[[str, str], None]  # Of a node and a group.


class Arrivals:
    """Of one load; a bar has the bytes of all nodes, and how many have all.

    Threads: one.
    """

    def __init__(self, model: str, progress: Progress | bool | None) -> None:
        """progress: a function that is called as a group is there; else whether
        there is a bar, None: if stderr is a terminal."""
        self._model = model
        self._tell = progress if callable(progress) else None
        self._bar = False if callable(progress) else progress
        self._left: dict[str, set[str]] = {}  # Groups, by node.
        self._nbytes: int | None = None
        self._advance: Advance | None = None

    def expect(self, sizes: Mapping[str, int] | None,
               had: Mapping[str, Mapping[str, bytes]]) -> None:
        """sizes: bytes of all groups; None: nobody knows. had: what each node
        has already."""
        self._left = {node: set(sizes or ()) - groups.keys()
                      for node, groups in had.items()}
        if sizes is not None:
            self._nbytes = sum(sizes[group] for groups in self._left.values()
                               for group in groups)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """For the block there is a bar, if there is to be one."""
        with progress_bar(self._bar, f"load {self._model}", self._nbytes
                          ) as self._advance:
            yield

    def came(self, node: str, head: GroupHead) -> None:
        """It can be staged there."""
        self._left[node].discard(head.name)
        if self._advance is not None:
            whole = sum(not groups for groups in self._left.values())
            self._advance(head.nbytes, "" if self._nbytes is None else
                          f"{whole} of {len(self._left)} nodes have all")
        if self._tell is not None:
            self._tell(node, head.name)
