"""Groups in transfer from node to node: each byte once over each link."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Callable, Sequence

import ray
from ray.exceptions import ObjectLostError, RayActorError

from .._errors import HoistError, Unavailable
from ._image import GroupHead
from ._nodes import Node, typed

# Up to this many nodes form a chain; more form a binary tree, so that the path
# to the last node is short. deploy/NODES.md has both times.
CHAIN = 64


class _Place:
    """A node's groups of the load, present and pending."""

    def __init__(self, node: Node) -> None:
        """Begins empty."""
        self.node = node
        self.held: set[_Copy] = set()  # Its buffers, and those it fetches.
        self.to_fetch: collections.deque[_Copy] = collections.deque()
        self.to_take: collections.deque[_Copy] = collections.deque()
        self.is_taking = False

    @property
    def nbytes(self) -> int:
        return sum(copy.head.nbytes for copy in self.held)


@dataclasses.dataclass(eq=False)
class _Copy:
    """A group's copy on a node."""

    head: GroupHead
    place: _Place
    parent: _Copy | None  # The copy to fetch; None: it was read there.
    source: _Copy | None = None  # The copy that the last fetch used.
    image: Any = None  # A reference to the object that the node takes.
    is_here: bool = False
    is_taken: bool = False
    children: set[_Copy] = dataclasses.field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        """Whether it and its children are there."""
        return self.is_here and all(one.is_here for one in self.children)


class Moving:
    """The groups in transfer.

    A node fetches a group's buffer into its object store, and serves it as its
    own object, so that others fetch it only from there. It takes groups
    sequentially, in their order of arrival here.

    A node has at most `window` buffers: those that it has not taken, and those
    that its children or grandchildren have not received. So if one node ends,
    its children fetch from its parent; if two neighbours end at once, the next
    node may fail too.

    Threads: one.
    """

    def __init__(self, reader: Node, window: int,
                 take: Callable[[Node, GroupHead, Any], Any],
                 taken: Callable[[Node, GroupHead], None],
                 failed: Callable[[Node, HoistError], None]) -> None:
        """reader: the node that reads. take: calls a node's agent; taken and
        failed: receive the outcome."""
        self._window = window
        self._take = take
        self._taken = taken
        self._failed = failed
        self._reader = _Place(reader)
        self._places: dict[str, _Place] = {reader.id: self._reader}
        self._left: set[_Copy] = set()  # Copies not taken yet.
        self._fetching: dict[Any, _Copy] = {}
        self._taking: dict[Any, _Copy] = {}
        self.peak_bytes = 0  # Of one node's simultaneous buffers, at most.

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def may_read(self) -> bool:
        """Whether the reading node has room for another buffer."""
        return len(self._reader.held) < self._window

    @property
    def calls(self) -> list[Any]:
        """The agents' pending calls."""
        return [*self._fetching, *self._taking]

    def add(self, head: GroupHead, image: Any, nodes: Sequence[Node]) -> None:
        """image: a reference to an object of the reading node."""
        if not nodes:
            return
        root = _Copy(head, self._reader, None, image=image, is_here=True,
                     is_taken=True)
        others = [node for node in nodes if node.id != self._reader.node.id]
        fan_out = 1 if len(others) <= CHAIN else 2
        copies: list[_Copy] = []
        for at, node in enumerate(others):
            place = self._places.setdefault(node.id, _Place(node))
            parent = copies[(at - 1) // fan_out] if at else root
            copy = _Copy(head, place, parent)
            parent.children.add(copy)
            place.to_fetch.append(copy)
            copies.append(copy)
        if len(others) < len(nodes):
            root.is_taken = False
            self._reader.to_take.append(root)
            copies.append(root)
        self._left.update(copies)
        self._hold(root)
        for copy in copies:
            self._go_on(copy.place)

    def wait(self, timeout: float, beside: Any = None) -> bool:
        """Handles the agents' answers; waits for at least one, up to `timeout`
        seconds. beside: another reference; True: it is ready.

        Unavailable: a buffer of the reading node was lost.
        """
        waits = [*self.calls, *([] if beside is None else [beside])]
        if not waits:
            return False
        done, _ = ray.wait(waits, timeout=timeout)
        for call in done:
            if call in self._fetching:
                self._fetched(call)
            elif call in self._taking:
                self._took(call)
        return beside is not None and beside in done

    def drop(self) -> None:
        """Abandons all pending copies."""
        self._left.clear()
        self._places.clear()
        self._fetching.clear()
        self._taking.clear()

    def _go_on(self, place: _Place) -> None:
        """Begins all calls that the node is ready for."""
        while (place.to_fetch and len(place.held) < self._window
               and self._can_come(place.to_fetch[0])):
            copy = place.to_fetch.popleft()
            place.to_take.append(copy)
            self._fetch(copy)
        if place.to_take and not place.is_taking and place.to_take[0].is_here:
            copy = place.to_take.popleft()
            place.is_taking = True
            call = self._take(place.node, copy.head, copy.image)
            self._taking[call] = copy

    @staticmethod
    def _can_come(copy: _Copy) -> bool:
        return copy.parent is not None and copy.parent.is_here

    def _hold(self, copy: _Copy) -> None:
        copy.place.held.add(copy)
        self.peak_bytes = max(self.peak_bytes, copy.place.nbytes)

    def _release(self, copy: _Copy | None) -> None:
        """Drops a buffer that no node needs any more."""
        if copy is not None and copy.is_taken and all(
                one.is_settled for one in copy.children):
            copy.place.held.discard(copy)
            copy.image = None
            self._go_on(copy.place)

    # --- Fetching.

    def _fetch(self, copy: _Copy) -> None:
        assert copy.parent is not None
        copy.source = copy.parent
        agent, source = copy.place.node.agent, copy.parent.image
        if source is None:
            self._fail(copy.place, Unavailable(
                "nodes before it have ended, and nobody has the group "
                f'"{copy.head.name}" any more; load again'))
            return
        if copy.children:
            call, copy.image = agent.relay.options(num_returns=2).remote(
                source)
        else:
            call, copy.image = agent.fetch.remote(source), source
        self._fetching[call] = copy
        self._hold(copy)

    def _fetched(self, call: Any) -> None:
        copy = self._fetching.pop(call)
        if copy not in self._left:
            return  # Its node has failed since.
        try:
            ray.get(call)
        except Exception as error:  # noqa: BLE001 - classified below.
            self._did_not_come(copy, error)
            return
        copy.is_here = True
        assert copy.parent is not None
        self._release(copy.parent)
        self._release(copy.parent.parent)
        for other in copy.children:
            self._go_on(other.place)
        self._go_on(copy.place)

    def _did_not_come(self, copy: _Copy, error: BaseException) -> None:
        source = copy.source
        assert source is not None
        if not _is_lost(error, copy.place.node):
            self._fail(copy.place, error)
            return
        if source.parent is None:
            self._fail(copy.place, error)
            raise typed(error, self._reader.node.id) from None
        if source is copy.parent:  # Its failure was unknown so far.
            self._move_up(copy)
            self._release(source)
            self._release(source.parent)
        self._fetch(copy)

    @staticmethod
    def _move_up(copy: _Copy) -> None:
        """Replaces its parent with its grandparent, which still has it."""
        assert copy.parent is not None and copy.parent.parent is not None
        copy.parent.children.discard(copy)
        copy.parent = copy.parent.parent
        copy.parent.children.add(copy)

    # --- Taking.

    def _took(self, call: Any) -> None:
        copy = self._taking.pop(call)
        copy.place.is_taking = False
        if copy not in self._left:
            return
        try:
            ray.get(call)
        except Exception as error:  # noqa: BLE001 - the node's own.
            self._fail(copy.place, error)
            return
        self._left.discard(copy)
        copy.is_taken = True
        self._release(copy)
        self._go_on(copy.place)
        self._taken(copy.place.node, copy.head)

    def _fail(self, place: _Place, error: BaseException) -> None:
        """Excludes the node; its children fetch from its parent instead."""
        gone = {copy for copy in self._left if copy.place is place}
        self._left -= gone
        place.to_fetch.clear()
        place.to_take.clear()
        for copy in gone | place.held:
            parent, children = copy.parent, [*copy.children]
            if parent is None:  # Read there: only the node's own take ends.
                copy.is_taken = True
                self._release(copy)
                continue
            place.held.discard(copy)
            for other in children:
                self._move_up(other)
            parent.children.discard(copy)
            self._release(parent)
            self._release(parent.parent)
            for other in children:
                self._go_on(other.place)
        self._failed(place.node, typed(error, place.node.id))


def _is_lost(error: BaseException, node: Node) -> bool:
    """Whether the error is a loss of the source, not of the node itself."""
    if isinstance(error, RayActorError):
        return error.actor_id not in (None, node.agent._actor_id.hex())
    return isinstance(error, ObjectLostError)
