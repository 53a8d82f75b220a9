"""One load of a name at a time, in the whole cluster."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from typing import Any, Iterator

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._errors import Cancelled
from ._nodes import NAMESPACE

_LOOK = 0.2  # Seconds between looks at cancel().


class _Turn:
    """Its maker loads. The turn ends with this actor or its driver."""

    def __init__(self) -> None:
        self._never = threading.Event()

    def mine(self, who: str) -> str:
        """Only the maker calls this."""
        return who

    def ended(self) -> None:
        """Never returns: waiters see the actor's end."""
        self._never.wait()


@contextlib.contextmanager
def turn(model: str, cancelled: threading.Event) -> Iterator[Any]:
    """Waits until no other load of that name runs. Ray's table of named actors
    is the lock, so a driver's death releases it. Yields the actor: a caller of
    its `ended` is notified of that death."""
    name = "hoist-load-" + hashlib.sha256(model.encode()).hexdigest()[:32]
    actor = None
    while actor is None:
        actor = _make(name)
        if actor is None:
            _wait(name, model, cancelled)
    try:
        yield actor
    finally:
        ray.kill(actor)


def _make(name: str) -> Any:
    here = ray.get_runtime_context().get_node_id()
    try:
        # Pinned here: no other node's end kills it.
        actor: Any = ray.remote(_Turn).options(
            name=name, namespace=NAMESPACE, num_cpus=0,
            max_concurrency=64,
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                here, soft=False)).remote()
        ray.get(actor.mine.remote(name))
        return actor
    except (ValueError, RayActorError):  # The name is taken.
        return None


def _wait(name: str, model: str, cancelled: threading.Event) -> None:
    try:
        ended = ray.get_actor(name, namespace=NAMESPACE).ended.remote()
    except ValueError:  # It has just ended.
        return
    while not ray.wait([ended], timeout=_LOOK)[0]:
        if cancelled.is_set():
            raise Cancelled(f'the load of "{model}" was cancelled')
