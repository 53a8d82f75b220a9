"""A load: one node reads, the others take, a window of groups at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from typing import Any, Callable, Iterable, Mapping, cast

import ray

from .._errors import (AlreadyExists, Cancelled, DataLoss, DeadlineExceeded,
                       HoistError, InvalidArgument, ResourceExhausted,
                       Unavailable)
from .._publish import model_content
from .._registration import Groups
from ._arrivals import Arrivals, Progress
from ._image import GroupHead
from ._moving import Moving
from ._nodes import Node, ask, typed
from ._source import GroupSource, Held, IterableReader, Keep, Named

_LOOK = 0.2  # Seconds between looks at cancel().
_GLANCE = 0.01  # Seconds between looks at a local source.
# Seconds after the deadline for an agent to report what it waited for.
_ANSWER = 10.0
# Errors that the next load would repeat: the node then drops the whole model.
_LASTING = (DataLoss, ResourceExhausted)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of a load.

    A node's object store frees Ray's copies of finished buffers by itself.
    """

    model: str
    content: bytes  # 32: the model's content hash, the same on each node.
    nodes: tuple[str, ...]  # The nodes with the whole model.
    errors: Mapping[str, HoistError]  # Of the others.
    read_bytes: int  # Of groups' buffers that the source made.
    sent_bytes: int  # Of buffers that were taken, summed over nodes.
    peak_bytes: int  # Of one node's simultaneous buffers, at most.


class NodesFailed(HoistError):
    """Some nodes lack the model; the others have it. `errors`: by node;
    `code` is the first one's; `report`: of all nodes."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.errors = report.errors
        first = next(iter(report.errors.values()))
        self.code = first.code
        super().__init__(
            f'model "{report.model}" is on {len(report.nodes)} nodes and not '
            f"on {len(report.errors)}: "
            + "; ".join(map(str, report.errors.values())))


@dataclasses.dataclass(frozen=True)
class Terms:
    """A load's parameters; see hoist.ray.load."""

    model: str
    window: int
    groups: Groups
    readers: str | None
    deadline: float
    contents: Mapping[str, bytes] | None
    progress: Progress | bool | None
    from_files: bool


class Run:
    """The load itself, independent of its thread."""

    def __init__(self, source: str | Held | GroupSource | Iterable[Named],
                 head: Node, nodes: list[Node], terms: Terms) -> None:
        self._source = source
        self._head = head
        self._nodes = {node.id: node for node in nodes}
        self._all = dict(self._nodes)
        self._terms = terms
        self._id = uuid.uuid4().hex
        self._local: IterableReader | None = None
        self._had: dict[str, dict[str, bytes]] = {}
        self._began_on: set[str] = set()  # Nodes that started empty.
        self._errors: dict[str, HoistError] = {}
        self._contents: dict[str, bytes] = {}
        self._moving = Moving(
            head, terms.window, self._take, self._taken,
            lambda node, error: self._fail(node.id, error))
        self._arrivals = Arrivals(terms.model, terms.progress)
        self._read = self._sent = 0
        self._whole = False  # True: everything has been read.
        self.cancelled = threading.Event()

    def run(self, turn: Any) -> Report:
        """Runs in its turn. Cancelled: no trace of the load is left. An error
        of the source ends the load; nodes keep their groups for the next."""
        began = False
        try:
            self._look_around()
            known = self._open(turn)
            began = True
            if known is None or not self._all_have(known):
                with self._arrivals.shown():
                    self._move()
            else:
                self._contents = {head.name: head.content for head in known}
            self._whole = True
            return self._report()
        except Cancelled:
            self._close(began)
            self._undo()
            raise
        except BaseException:
            if self._terms.from_files and not self._whole:
                # The files were not read completely.
                self._close(began)
                self._forget_on([self._head.id])
            raise
        finally:
            self._drop()
            self._close(began)

    # --- Before the first move.

    def _look_around(self) -> None:
        """Asks nodes for their groups of that name, and removes nodes that do
        not answer. With from_files, the reading node reports at open."""
        of_files = {self._head.id} if self._terms.from_files else set()
        self._had, failed = ask(
            [node for node in self._nodes.values() if node.id not in of_files],
            "contents", self._terms.model, deadline=self._terms.deadline)
        self._began_on = {node for node, had in self._had.items() if not had}
        self._had.update((node, {}) for node in of_files)
        for node, error in failed.items():
            self._fail(node, error)
        if not self._had:
            raise next(iter(failed.values()))

    def _open(self, turn: Any) -> list[GroupHead] | None:
        if not isinstance(self._source, (str, Held)) and not callable(
                self._source):
            self._local = IterableReader(self._source)
            self._arrivals.expect(None, self._had)
            return None
        keep = (Keep(self._terms.model, self._terms.readers)
                if self._terms.from_files else None)
        told = self._from_head(self._head.agent.open.remote(
            self._id, self._source, self._terms.groups,
            self._terms.deadline, turn, keep))
        heads = cast("list[GroupHead] | None", told["heads"])
        if told["new"]:
            self._began_on.add(self._head.id)
        if keep is not None and heads is not None:
            self._had[self._head.id] = {
                head.name: head.content for head in heads}
        self._arrivals.expect(told["sizes"], self._had)
        try:
            self._compare(told["sizes"], heads)
        except BaseException:
            self._close(True)
            raise
        return heads

    def _compare(self, sizes: Mapping[str, int] | None,
                 heads: list[GroupHead] | None) -> None:
        """Checks existing groups of this name, on all nodes, before the first
        one moves."""
        if sizes is None:
            return
        for node, had in self._had.items():
            more = sorted(had.keys() - sizes.keys())
            if more:
                raise self._other(node, more[0])
        by_name = {head.name: head for head in heads or []}
        there = {name for had in self._had.values() for name in had}
        for name in sizes:
            if name in there:
                self._check(by_name.get(name) or self._from_head(
                    self._head.agent.peek.remote(self._id, name)))

    def _check(self, head: GroupHead) -> None:
        for node, had in self._had.items():
            if had.get(head.name, head.content) != head.content:
                raise self._other(node, head.name)

    def _other(self, node: str, group: str) -> AlreadyExists:
        return AlreadyExists(
            f'node {node} has a model "{self._terms.model}" of other content '
            f'(group "{group}"); take another name, or forget it there: '
            "hoist.ray.forget")

    def _all_have(self, heads: list[GroupHead]) -> bool:
        return all(had.get(head.name) == head.content
                   for had in self._had.values() for head in heads)

    # --- Moving.

    def _move(self) -> None:
        more = True
        while more or self._moving:
            self._check_cancelled()
            if not self._nodes:
                return
            try:
                if more and self._moving.may_read:
                    more = self._begin_group()
                else:
                    self._moving.wait(_LOOK)
            except Cancelled:
                raise
            except BaseException:
                # Groups that were read still arrive, for the next load.
                while self._moving and not self.cancelled.is_set():
                    with contextlib.suppress(Unavailable):
                        self._moving.wait(_LOOK)
                raise

    def _begin_group(self) -> bool:
        """Reads and sends a group. False: there are no more."""
        read = self._next()
        if read is None:
            return False
        head, image = read
        expected = self._terms.contents
        if expected is not None and expected.get(head.name) != head.content:
            raise DataLoss(
                f'group "{head.name}" of node {self._head.id} is not what '
                "contents= says")
        self._check(head)
        self._contents[head.name] = head.content
        self._read += head.nbytes
        if self._terms.from_files:
            self._have_in_files(head)
        self._moving.add(head, image, [
            node for node in self._nodes.values()
            if head.name not in self._had[node.id]])
        return True

    def _next(self) -> tuple[GroupHead, Any] | None:
        if self._local is not None:
            return self._next_here(self._local)
        head_ref, image = self._head.agent.read.options(
            num_returns=2).remote(self._id)
        head = self._from_head(head_ref)
        return None if head is None else (head, image)

    def _next_here(self, local: IterableReader
                   ) -> tuple[GroupHead, Any] | None:
        """Reads in a separate thread, so that transfers continue."""
        found: list[tuple[GroupHead, Any] | None] = []
        failed: list[BaseException] = []

        def read() -> None:
            try:
                group = local.next()
                found.append(None if group is None else
                             (group[0], ray.put(group[1])))
            except BaseException as error:  # noqa: BLE001 - raised below.
                failed.append(error)

        thread = threading.Thread(target=read, name="hoist.ray source",
                                  daemon=True)
        thread.start()
        try:
            while thread.is_alive() and self._moving.calls:
                self._moving.wait(_GLANCE)
        finally:
            thread.join()
        if failed:
            raise failed[0]
        return found[0]

    def _take(self, node: Node, head: GroupHead, image: Any) -> Any:
        return node.agent.take.remote(
            self._terms.model, head, image, self._terms.readers,
            self._terms.deadline)

    def _taken(self, node: Node, head: GroupHead) -> None:
        self._sent += head.nbytes
        self._arrivals.came(node.id, head)

    def _have_in_files(self, head: GroupHead) -> None:
        """Marks the group as present on the reading node: it is not sent."""
        had = self._had[self._head.id]
        if head.name not in had:
            had[head.name] = head.content
            self._arrivals.came(self._head.id, head)

    def _from_head(self, ref: Any) -> Any:
        """The reading node's answer; its death ends the load."""
        end = time.monotonic() + self._terms.deadline + _ANSWER
        while not self._moving.wait(_LOOK, beside=ref):
            self._check_cancelled()
            if time.monotonic() >= end:
                raise DeadlineExceeded(
                    f"node {self._head.id}, which reads, gave nothing for "
                    f"{self._terms.deadline + _ANSWER:g} s")
        try:
            return ray.get(ref)
        except Exception as error:
            raise typed(error, self._head.id) from None

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise Cancelled(f'the load of "{self._terms.model}" was cancelled')

    def _fail(self, node: str, error: HoistError) -> None:
        self._errors[node] = error
        self._nodes.pop(node, None)

    # --- The end.

    def _report(self) -> Report:
        if not self._contents:
            raise InvalidArgument("the source has no groups")
        content = model_content(self._contents.values())
        holding = [node for node in self._nodes.values()]
        _, failed = ask(holding, "hold", self._terms.model,
                        deadline=self._terms.deadline)
        for node, error in failed.items():
            self._fail(node, error)
        self._forget_on([node for node, error in self._errors.items()
                         if isinstance(error, _LASTING)])
        report = Report(self._terms.model, content, tuple(self._nodes),
                        dict(self._errors), self._read, self._sent,
                        self._moving.peak_bytes)
        if report.errors:
            raise NodesFailed(report)
        return report

    def _undo(self) -> None:
        """Forgets the model where this load began it, after the pending calls
        there have ended."""
        calls = self._moving.calls
        if calls:
            ray.wait(calls, num_returns=len(calls),
                     timeout=self._terms.deadline)
        self._forget_on(list(self._nodes))

    def _forget_on(self, nodes: list[str]) -> None:
        ask([self._all[node] for node in nodes if node in self._began_on],
            "forget", self._terms.model)

    def _drop(self) -> None:
        self._moving.drop()

    def _close(self, began: bool) -> None:
        """Idempotent."""
        if self._local is not None:
            self._local.close()
        elif began:
            ask([self._head], "close", self._id)


class Load:
    """A load in a background thread; made by hoist.ray.start_load."""

    def __init__(self, run: Callable[[], Report],
                 cancelled: threading.Event) -> None:
        self._cancelled = cancelled
        self._report: Report | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._work, args=(run,), name="hoist.ray load", daemon=True)
        self._thread.start()

    def _work(self, run: Callable[[], Report]) -> None:
        try:
            self._report = run()
        except BaseException as error:  # noqa: BLE001 - raised by result().
            self._error = error

    @property
    def done(self) -> bool:
        """Whether result() returns immediately."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Returns once no trace of the load is left: nodes forget the model
        where this load began it. No effect on a load that has ended."""
        self._cancelled.set()
        self._thread.join()

    def result(self, timeout: float | None = None) -> Report:
        """Waits; raises the load's error.

        timeout: seconds; DeadlineExceeded: the load continues.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"the load has not ended in {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report
