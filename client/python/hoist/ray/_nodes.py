"""Ray's nodes, and the agent of each."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from typing import Any, Iterable, Mapping

import ray
from ray.exceptions import (GetTimeoutError, RayActorError, RayError,
                            RayTaskError)
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._errors import (BY_CODE, DeadlineExceeded, HoistError, NotFound,
                       Unavailable, UnknownError)
from ._agent import Agent

NAMESPACE = "hoist"
# Incremented when the agents' interface changes: drivers of two versions of
# this package use separate agents.
_AGENTS = 3
_NAME = re.compile(r"hoist-agent\d*-(?P<node>[0-9a-f]+)")
_CALLS = 8  # An agent's concurrent calls.
_LOOK = 0.05  # Seconds between queries of Ray's agents.


@dataclasses.dataclass(frozen=True)
class Node:
    """One of Ray's nodes, by its hexadecimal id, and its agent's handle."""

    id: str
    agent: Any = dataclasses.field(repr=False, compare=False)


def alive() -> list[str]:
    """Ids of Ray's live nodes, in a constant order."""
    return sorted(str(node["NodeID"]) for node in ray.nodes()
                  if node["Alive"])


def find(nodes: Iterable[str] | None = None, *,
         sockets: Mapping[str, str] | None = None,
         ctl: str | None = None) -> list[Node]:
    """The nodes with their agents, which are made where missing.

    An agent is detached: it keeps models in use after the end of the driver
    that loaded them, and the next driver finds it by name.

    NotFound: Ray has no such node.
    """
    there = alive()
    wanted = list(there if nodes is None else nodes)
    for one in wanted:
        if one not in there:
            raise NotFound(f"Ray has no node {one} that lives; it has "
                           + ", ".join(there))
    return [Node(one, _agent(one, (sockets or {}).get(one), ctl))
            for one in wanted]


def _agent(node: str, socket: str | None, ctl: str | None) -> Any:
    return ray.remote(Agent).options(
        name=f"hoist-agent{_AGENTS}-{node}", namespace=NAMESPACE, get_if_exists=True,
        lifetime="detached", num_cpus=0, max_restarts=-1,
        max_concurrency=_CALLS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(node, socket, ctl)


def end_agents(nodes: Iterable[str] | None, deadline: float) -> list[str]:
    """Ends all versions' agents on those nodes, None: on all; returns the nodes
    that had one. DeadlineExceeded: Ray has not ended them yet."""
    wanted = None if nodes is None else set(nodes)
    ended: set[str] = set()
    end = time.monotonic() + deadline
    while True:
        there = {one["name"]: match["node"] for one in list_named_actors(
            all_namespaces=True) if one["namespace"] == NAMESPACE and (
                match := _NAME.fullmatch(one["name"]))}
        left = {name: node for name, node in there.items()
                if wanted is None or node in wanted}
        if not left:
            return sorted(ended)
        if time.monotonic() >= end:
            raise DeadlineExceeded("agents have not ended: "
                                   + ", ".join(sorted(left)))
        for name in left:
            with contextlib.suppress(ValueError):  # It has just ended.
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))
        ended |= {*left.values()}
        time.sleep(_LOOK)


def typed(error: BaseException, node: str) -> HoistError:
    """A typed error for an agent call's exception, naming the node."""
    cause: BaseException = error
    if isinstance(error, RayTaskError) and isinstance(
            error.cause, BaseException):
        cause = error.cause
    if isinstance(cause, HoistError):
        kind = BY_CODE.get(cause.code, UnknownError)
        return kind(f"node {node}: {cause.message}")
    if isinstance(cause, GetTimeoutError):
        return DeadlineExceeded(f"node {node} gave no answer in time")
    if isinstance(cause, RayActorError):
        return Unavailable(f"node {node}: its agent has ended ({cause}); once "
                           "the node is back, load again: what it has is not "
                           "sent again")
    if isinstance(cause, RayError):
        return Unavailable(f"node {node}: {cause}")
    return UnknownError(f"node {node}: {type(cause).__name__}: {cause}")


def ask(nodes: list[Node], verb: str, *arguments: Any, deadline: float = 60.0
        ) -> tuple[dict[str, Any], dict[str, HoistError]]:
    """Calls all agents at once: their answers, and the errors, by node."""
    calls = {node.id: getattr(node.agent, verb).remote(*arguments)
             for node in nodes}
    said: dict[str, Any] = {}
    failed: dict[str, HoistError] = {}
    for node, call in calls.items():
        try:
            said[node] = ray.get(call, timeout=deadline)
        except Exception as error:  # noqa: BLE001 - each node's own.
            failed[node] = typed(error, node)
    return said, failed
