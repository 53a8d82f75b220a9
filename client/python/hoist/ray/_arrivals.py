"""Groups that are still to arrive, by node, and reports of arrivals."""

from __future__ import annotations

import contextlib
from typing import Callable, Iterator, Mapping

from .._progress import Advance, progress_bar
from ._image import GroupHead

Progress = Callable[[str, str], None]  # Takes a node and a group.


class Arrivals:
    """One load's arrivals; a bar shows all nodes' bytes and complete nodes.

    Threads: one.
    """

    def __init__(self, model: str, progress: Progress | bool | None) -> None:
        """progress: a function that is called at each arrival; or whether to
        show a bar, None: if stderr is a terminal."""
        self._model = model
        self._tell = progress if callable(progress) else None
        self._bar = False if callable(progress) else progress
        self._left: dict[str, set[str]] = {}  # Groups, by node.
        self._nbytes: int | None = None
        self._advance: Advance | None = None

    def expect(self, sizes: Mapping[str, int] | None,
               had: Mapping[str, Mapping[str, bytes]]) -> None:
        """sizes: bytes of all groups; None: unknown. had: by node, the groups
        that it already has."""
        self._left = {node: set(sizes or ()) - groups.keys()
                      for node, groups in had.items()}
        if sizes is not None:
            self._nbytes = sum(sizes[group] for groups in self._left.values()
                               for group in groups)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the bar, if any, for the block."""
        with progress_bar(self._bar, f"load {self._model}", self._nbytes
                          ) as self._advance:
            yield

    def came(self, node: str, head: GroupHead) -> None:
        """Reports that the node can stage the group."""
        self._left[node].discard(head.name)
        if self._advance is not None:
            whole = sum(not groups for groups in self._left.values())
            self._advance(head.nbytes, "" if self._nbytes is None else
                          f"{whole} of {len(self._left)} nodes have all")
        if self._tell is not None:
            self._tell(node, head.name)
