"""The public functions of hoist.ray."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Iterable, Literal, Mapping, Union

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._errors import HoistError, InvalidArgument, NotFound, Unavailable
from .._publish import model_content
from .._registration import Groups
from . import _nodes
from ._arrivals import Progress
from ._load import Load, Report, Run, Terms
from ._nodes import Node, alive, ask, find
from ._source import GroupSource, Held, Named
from ._turn import turn

_NODE_ID = "ray.io/node-id"  # The label that Ray gives each node.
_LOOK = 0.2  # Seconds between attempts to forget.

Source = Union[str, "os.PathLike[str]", GroupSource, Iterable[Named]]


def start_load(source: Source, name: str, *,
               nodes: Iterable[str] | None = None, copies: int | None = None,
               source_node: str | None = None, window: int = 4,
               groups: Groups = "block", readers: str | None = None,
               deadline: float = 60.0,
               contents: Mapping[str, bytes] | None = None,
               progress: Progress | bool | None = None,
               sockets: Mapping[str, str] | None = None,
               from_files: bool = False) -> Load:
    """As load, but in a thread of this process.

    That thread calls `progress`.
    """
    _check_window(window)
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else (
        source)
    here = source_node or ray.get_runtime_context().get_node_id()
    head, targets = _choose(here, nodes, copies, sockets)
    if from_files and not (isinstance(path, str) and head in targets):
        raise InvalidArgument(
            "from_files=True is for a source that is files, on a node that is "
            "to have the model: leave it out, or name source_node in nodes")
    run = Run(path, head, targets, Terms(
        name, window, groups, readers, deadline, contents, progress,
        from_files))

    def work() -> Report:
        with turn(name, run.cancelled) as mine:
            return run.run(mine)

    return Load(work, run.cancelled)


def load(source: Source, name: str, *, nodes: Iterable[str] | None = None,
         copies: int | None = None, source_node: str | None = None,
         window: int = 4, groups: Groups = "block",
         readers: str | None = None, deadline: float = 60.0,
         contents: Mapping[str, bytes] | None = None,
         progress: Progress | bool | None = None,
         sockets: Mapping[str, str] | None = None,
         from_files: bool = False) -> Report:
    """Brings a model into the hoistd of several nodes; one node reads it.

    source: a safetensors file or folder of `source_node`; a function that
        `source_node` calls; or an iterable of this process. The last two yield
        (group, {tensor: array}).
    name: the model's, on each node.
    nodes: Ray's ids; None: all. copies: their number, `source_node` first if it
        is one of them.
    source_node: None: this process's.
    window: groups in flight on a node. Each has a buffer in the node's object
        store, two if the node serves another one; one more is about to be
        dropped. Below 3, a chain of nodes waits for each acknowledgement.
    groups: the files' grouping, as in Session.register.
    readers: "owner", "everyone"; None: each hoistd's default.
    deadline: seconds to wait for a group, or for space for it on a node.
    contents: the expected Group.content of each group, 32 bytes.
    progress: called with (node, group) once that node can stage the group; or
        True, False, None: a bar if stderr is a terminal; needs tqdm.
    sockets: hoistd's, by node; None: each node's $HOIST_SOCKET.
    from_files: `source_node` registers its files: hoistd can evict the whole
        model and read it again, so the files must not change. It forgets the
        model if the load ends early. Otherwise it publishes, as the others do.

    NodesFailed: some nodes lack the model, the others have it. AlreadyExists: a
    node has other weights of that name. Unavailable: the reading node ended.
    After these errors nodes keep their groups, and the next load continues.
    KeyboardInterrupt cancels the load, and nodes forget its groups.
    """
    going = start_load(
        source, name, nodes=nodes, copies=copies, source_node=source_node,
        window=window, groups=groups, readers=readers, deadline=deadline,
        contents=contents, progress=progress, sockets=sockets,
        from_files=from_files)
    try:
        return going.result()
    except KeyboardInterrupt:
        going.cancel()
        raise


def replicate(model: str, *, nodes: Iterable[str] | None = None,
              copies: int | None = None, source_node: str | None = None,
              content: bytes | None = None, window: int = 4,
              readers: str | None = None, deadline: float = 60.0,
              progress: Progress | bool | None = None,
              sockets: Mapping[str, str] | None = None) -> Report:
    """Copies a model to more nodes, from one that has it. Its source may be
    gone, unless that node reads the model from files.

    nodes, copies: as in load; nodes with the model receive nothing.
    source_node: the first sender; None: the node with most of its groups.
    content: the expected Report.content. Without it, a model that an
        interrupted load left incomplete is copied as it is.
    window, readers, deadline, progress, sockets: as in load.

    Waits for a running load of that name. Report.read_bytes counts the first
    node's reads from its own hoistd.

    NotFound: no node has it, or none has this content. Else as load.
    """
    _check_window(window)
    cancelled = threading.Event()

    def work() -> Report:
        with turn(model, cancelled) as mine:
            head, held = _holder(model, source_node, content)
            _, targets = _choose(head, nodes, copies, sockets)
            run = Run(Held(model), find([head])[0], targets, Terms(
                model, window, "block", readers, deadline, held, progress,
                from_files=False))
            run.cancelled = cancelled
            return run.run(mine)

    going = Load(work, cancelled)
    try:
        return going.result()
    except KeyboardInterrupt:
        going.cancel()
        raise


def _holder(model: str, source_node: str | None, content: bytes | None
            ) -> tuple[str, dict[str, bytes]]:
    """The node with most groups of the model, and their content there."""
    said, failed = ask(find(source_node and [source_node]), "contents", model)
    having = {node: groups for node, groups in said.items() if groups and (
        content is None or model_content(groups.values()) == content)}
    if having:
        return max(having.items(), key=lambda item: len(item[1]))
    if source_node is not None and failed:
        raise failed[source_node]
    where_ = f"node {source_node} does not have" if source_node else (
        "no node has")
    what = "" if content is None else f" of content {content.hex()}"
    raise NotFound(f'{where_} a model "{model}"{what}; '
                   "hoist.ray.load brings one from a source")


def _check_window(window: int) -> None:
    if window < 1:
        raise InvalidArgument(f"window={window}; at least one group has to be "
                              "under way")


def _choose(head: str, nodes: Iterable[str] | None, copies: int | None,
            sockets: Mapping[str, str] | None) -> tuple[Node, list[Node]]:
    wanted = list(dict.fromkeys(alive() if nodes is None else nodes))
    wanted.sort(key=lambda node: node != head)
    if copies is not None:
        if not 1 <= copies <= len(wanted):
            raise InvalidArgument(f"copies={copies} of {len(wanted)} nodes")
        wanted = wanted[:copies]
    if not wanted:
        raise InvalidArgument("nodes is empty")
    return find([head], sockets=sockets)[0], find(wanted, sockets=sockets)


def status(nodes: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """One row per node and tier: space, use, evictions; a node that does not
    answer has one row with `error`. Needs an admin's rights on each node."""
    found = find(nodes)
    said, failed = ask(found, "status")
    rows: list[dict[str, Any]] = []
    for node in found:
        if node.id in failed:
            rows.append({"node": node.id, "error": str(failed[node.id])})
            continue
        told = said[node.id]
        rows += [{"node": node.id, **tier, "evictions": told["evictions"]}
                 for tier in told["tiers"]]
    return rows


def models(nodes: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """One row per node and model. `content`: hoistd's hash of a published one,
    or the agent's of files that it has read, 32 bytes; else None. Needs an
    admin's rights. Nodes that do not answer are omitted."""
    said, _ = ask(find(nodes), "models")
    return [{"node": node, **row} for node, rows in said.items()
            for row in rows]


def where(model: str, nodes: Iterable[str] | None = None
          ) -> list[dict[str, Any]]:
    """One row per node, group and tier with a copy: bytes, pinned, leased,
    seconds since last use. Needs an admin's rights. Nodes without the model
    have no row."""
    said, _ = ask(find(nodes), "where", model)
    return [{"node": node, **row} for node, rows in said.items()
            for row in rows]


def strategies(model: str, kind: Literal["soft", "hard", "spread",
                                         "least evicted"] = "soft",
               nodes: Iterable[str] | None = None
               ) -> list[NodeAffinitySchedulingStrategy]:
    """Scheduling strategies for workers of the model, best first.

    kind: "soft", "hard": nodes by its bytes in their memory, the device's
        before the host's, with or without other nodes for Ray; "spread": the
        same nodes, fewest leases of it first; "least evicted": fewest evictions
        first. The latter two are soft.

    NotFound: no node has it.
    """
    kinds = ("soft", "hard", "spread", "least evicted")
    if kind not in kinds:
        raise InvalidArgument(f"kind={kind!r} is none of {', '.join(kinds)}")
    found = find(nodes)
    rows = _rows(model, found)

    def in_tier(node: str, tier: str) -> int:
        return sum(row["bytes"] for row in rows[node] if row["tier"] == tier)

    order = sorted(rows, key=lambda node: (
        -in_tier(node, "device"), -in_tier(node, "host"), node))
    if kind == "spread":
        order.sort(key=lambda node: sum(row["leased"] for row in rows[node]))
    elif kind == "least evicted":
        told, _ = ask([node for node in found if node.id in rows], "status")
        order = [node for node in order if node in told]
        order.sort(key=lambda node: told[node]["evictions"])
    return [NodeAffinitySchedulingStrategy(node, soft=kind != "hard")
            for node in order]


def actor_options(model: str, kind: Literal["soft", "hard"] = "hard", *,
                  nodes: Iterable[str] | None = None) -> dict[str, Any]:
    """Options that place an actor at the model: for `.options()`, and for
    `ray_actor_options` of Ray Serve, which takes no strategies().

    They name all of these nodes that have the maximum number of its groups.
    kind: "hard": the actor waits for one of them; "soft": if those are full or
    gone, any node: replicate() there, at the actor's start, brings the weights.

    NotFound: no node has the model. Needs an admin's rights, as where.
    """
    if kind not in ("soft", "hard"):
        raise InvalidArgument(f"kind={kind!r} is neither soft nor hard")
    rows = _rows(model, find(nodes))
    groups = {node: len({row["group"] for row in held})
              for node, held in rows.items()}
    best = max(groups.values())
    named = ",".join(node for node, held in groups.items() if held == best)
    options: dict[str, Any] = {"label_selector": {_NODE_ID: f"in({named})"}}
    if kind == "soft":
        options["fallback_strategy"] = [{"label_selector": {}}]
    return options


def end_agents(nodes: Iterable[str] | None = None, *,
               deadline: float = 30.0) -> list[str]:
    """Ends the agents of nodes, None: of all; returns the nodes that had one.
    For use after an upgrade of this package, or after its last use.

    Models stay, but unused: they are the first eviction victims. Running loads
    end with Unavailable. The next call makes new agents.

    deadline: seconds; DeadlineExceeded: Ray has not ended them yet.
    """
    return _nodes.end_agents(nodes, deadline)


def _rows(model: str, nodes: list[Node]) -> dict[str, list[dict[str, Any]]]:
    """Rows of where, by node. NotFound: there are none. Unavailable: there are
    none, and a node does not answer."""
    rows, failed = ask(nodes, "where", model)
    rows = {node: held for node, held in rows.items() if held}
    if not rows:
        for error in failed.values():
            if isinstance(error, Unavailable):
                raise error
        raise NotFound(f'no node has a model "{model}"; hoist.ray.load brings '
                       "it" + "".join(f"; {error}" for error in
                                      list(failed.values())[:1]))
    return rows


def pin(model: str, tier: str = "host", *, pinned: bool = True,
        nodes: Iterable[str] | None = None) -> dict[str, HoistError]:
    """Pins or unpins the model's copies in a tier; returns refusals by node."""
    return ask(find(nodes), "pin", model, tier, pinned)[1]


def evict(model: str, tier: str = "device", *,
          nodes: Iterable[str] | None = None) -> dict[str, HoistError]:
    """Evicts the model's copies from a tier; returns refusals by node."""
    return ask(find(nodes), "evict", model, tier)[1]


def forget(model: str, *, nodes: Iterable[str] | None = None,
           deadline: float = 0.0) -> dict[str, HoistError]:
    """Drops the model on its nodes; returns refusals by node (others use it).

    deadline: seconds to wait for its users. For them it stays complete.
    """
    end = time.monotonic() + deadline
    refused = ask(find(nodes), "forget", model)[1]
    while refused and time.monotonic() < end:
        time.sleep(min(_LOOK, max(0.0, end - time.monotonic())))
        refused = ask(find(refused), "forget", model)[1]
    return refused
