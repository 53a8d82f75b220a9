"""What hoist.ray offers."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Iterable, Literal, Mapping, Union

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._errors import HoistError, InvalidArgument, NotFound, Unavailable
from .._registration import Groups
from . import _nodes
from ._arrivals import Progress
from ._image import model_content
from ._load import Load, Report, Run, Terms
from ._nodes import Node, alive, ask, find
from ._source import GroupSource, Held, Named
from ._turn import turn

_NODE_ID = "ray.io/node-id"  # The label that Ray gives each node.
_LOOK = 0.2  # Seconds between tries to forget.

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
    """As load, which goes on in a thread of this process.

    `progress` is called there.
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

    source: a safetensors file or folder of `source_node`; a function, which
        that node calls; or an iterable, which threads of this process go
        through. The last two give (group, {tensor: array}).
    name: of the model, on each node.
    nodes: Ray's ids; None: all. copies: on so many of them, `source_node`
        first if it is among them.
    source_node: None: this process's.
    window: groups under way at once on a node, which has a buffer each in its
        object store, two where it serves another node, and one that is about
        to be dropped. Below 3 a chain of nodes waits for word of each group.
    groups: how files are grouped, as Session.register has it.
    readers: "owner", "everyone"; None: as each hoistd is configured.
    deadline: seconds to wait for a group, or for room for it on a node.
    contents: what each group must be, 32 bytes, as Group.content.
    progress: called with (node, group) as each is there, and can be staged; or
        True, False, None for a bar if stderr is a terminal; with tqdm.
    sockets: of hoistd, by node; None: as each node's $HOIST_SOCKET says.
    from_files: `source_node` has the model of its files, as if it had been
        registered there: it takes no memory that hoistd cannot have back, since
        what has to go is read again, and the files have to stay as they are.
        It forgets it where the load ends before all of it was read. Else it is
        published there as on the others.

    NodesFailed: some nodes do not have it, the others do. AlreadyExists: a node
    has other weights of that name. Unavailable: the node that reads has ended.
    In each of these, what nodes have stays, and the next load goes on from
    there. KeyboardInterrupt: it is cancelled, and nodes forget what came of it.
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
    """Brings a model to more nodes, from one that has it. Its source is not
    needed, and need not be there any more, unless it is what that node has.

    nodes, copies: as load has it; those that have the model are sent nothing.
    source_node: which sends it first; None: one that has most of its groups.
    content: what the whole has to be, as Report.content. Without it a model
        that an interrupted load left in part is brought as it is.
    window, readers, deadline, progress, sockets: as load has it.

    Waits for a load of that name that is under way. In Report.read_bytes is
    what the first node took out of its own hoistd.

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
    """Which node has most of it, and what its groups are there."""
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
    """A row a node and tier: room, use, evictions; a node that does not answer
    has one row with `error`. It needs an admin's rights on each node."""
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
    """A row a node and model; `content`: what hoistd found a published one to
    be, 32 bytes, and what the agent found in files that it has read; else None.
    It needs an admin's rights. Nodes that do not answer are left out."""
    said, _ = ask(find(nodes), "models")
    return [{"node": node, **row} for node, rows in said.items()
            for row in rows]


def where(model: str, nodes: Iterable[str] | None = None
          ) -> list[dict[str, Any]]:
    """A row a node, group and tier that has it: bytes, pinned, leased, seconds
    since its use. It needs an admin's rights. Nodes without the model have no
    row."""
    said, _ = ask(find(nodes), "where", model)
    return [{"node": node, **row} for node, rows in said.items()
            for row in rows]


def strategies(model: str, kind: Literal["soft", "hard", "spread",
                                         "least evicted"] = "soft",
               nodes: Iterable[str] | None = None
               ) -> list[NodeAffinitySchedulingStrategy]:
    """Where to run what computes with the model: scheduling strategies, best
    first.

    kind: "soft", "hard": nodes by how much of it is in their memory, the
        device's before the host's, and whether Ray may take another node;
        "spread": the same nodes, the one with fewest leases of it first;
        "least evicted": the one whose hoistd has evicted least first. The
        latter two are soft.

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
    """Options of an actor that is to be where the model is: for `.options()`,
    and for `ray_actor_options` of Ray Serve, which takes no strategies().

    They name all nodes, of these, that have as many of its groups as any.
    kind: "hard": nowhere else, the actor waits; "soft": if those are full or
    gone, any node: replicate() there, as the actor starts, brings the weights.

    NotFound: no node has it. It needs an admin's rights, as where.
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
    """Ends the agents of nodes, None: of all; which had one. So before another
    version of this package is put there, or when it is not needed any more.

    Models stay, and nobody holds them in use: a hoistd that needs the room may
    do with them what it does with those that no worker has. Loads that are under
    way end with Unavailable. The next call makes new agents.

    deadline: seconds; DeadlineExceeded: Ray has not ended them.
    """
    return _nodes.end_agents(nodes, deadline)


def _rows(model: str, nodes: list[Node]) -> dict[str, list[dict[str, Any]]]:
    """Of where, by node; NotFound: there are none. Unavailable: nor does
    somebody answer."""
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
    """Keeps the model's copies in a tier, or no longer; which nodes refused."""
    return ask(find(nodes), "pin", model, tier, pinned)[1]


def evict(model: str, tier: str = "device", *,
          nodes: Iterable[str] | None = None) -> dict[str, HoistError]:
    """Takes the model's copies out of a tier; which nodes refused."""
    return ask(find(nodes), "evict", model, tier)[1]


def forget(model: str, *, nodes: Iterable[str] | None = None,
           deadline: float = 0.0) -> dict[str, HoistError]:
    """Drops the model where it is; which nodes refused, as others use it.

    deadline: seconds to wait for whoever uses it. It stays whole for them.
    """
    end = time.monotonic() + deadline
    refused = ask(find(nodes), "forget", model)[1]
    while refused and time.monotonic() < end:
        time.sleep(min(_LOOK, max(0.0, end - time.monotonic())))
        refused = ask(find(refused), "forget", model)[1]
    return refused
