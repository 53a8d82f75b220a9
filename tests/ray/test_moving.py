"""Who gets which group from whom, without Ray: nodes end when they like."""

from __future__ import annotations

import random
import types

import pytest
from hoist.ray import _moving
from hoist.ray._image import GroupHead
from hoist.ray._nodes import Node
from ray.exceptions import ObjectLostError, RayActorError


class Ref:
    """An object's, which is lost with the node that it is on."""

    def __init__(self, on: str | None = None) -> None:
        self.on = on


class World:
    """Stands in for Ray: calls end in any order. What is fetched from a node
    that has ended fails, and so does each call of an agent that has."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = [Node(f"n{at}", Agent(self, f"n{at}"))
                      for at in range(nodes)]
        self.ended: set[str] = set()
        self.calls: dict[Ref, tuple[str, Ref | None]] = {}
        self.served: dict[str, int] = {}

    def wait(self, refs, timeout):
        return [self.random.choice(refs)], []

    def get(self, call):
        node, source = self.calls.pop(call)
        if node in self.ended:
            raise RayActorError(actor_id=node)
        if source is not None:
            if source.on in self.ended:
                raise ObjectLostError("", "", "")
            self.served[source.on] = self.served.get(source.on, 0) + 1


class Agent:
    def __init__(self, world: World, node: str) -> None:
        self._actor_id = types.SimpleNamespace(hex=lambda: node)

        def begin(source, returns):
            call = Ref()
            world.calls[call] = node, source
            return (call, Ref(node)) if returns == 2 else call

        self.fetch = types.SimpleNamespace(
            remote=lambda source: begin(source, 1))
        self.relay = types.SimpleNamespace(options=lambda num_returns: (
            types.SimpleNamespace(remote=lambda source: begin(
                source, num_returns))))


def run(monkeypatch, world: World, groups: int, window: int, ends=()):
    """What each node has taken, and who failed."""
    monkeypatch.setattr(_moving, "ray", world)
    taken: dict[str, list[str]] = {node.id: [] for node in world.nodes}
    failed: list[str] = []
    there = list(world.nodes)

    def take(node, head, image):
        assert image is not None
        call = Ref()
        world.calls[call] = node.id, None
        return call

    def gone(node, error):
        failed.append(node.id)
        there.remove(node)

    moving = _moving.Moving(
        world.nodes[0], window, take,
        lambda node, head: taken[node.id].append(head.name), gone)
    ends, steps, next_group = list(ends), 0, 0
    while next_group < groups or moving:
        steps += 1
        assert steps < 100 * groups * len(world.nodes), "it stands still"
        if ends and world.random.random() < 0.05:
            world.ended.add(ends.pop())
        if next_group < groups and moving.may_read:
            moving.add(GroupHead(f"g{next_group}", (), 10, b""),
                       Ref("n0"), list(there))
            next_group += 1
        else:
            moving.wait(1)
        assert moving.peak_bytes <= 10 * window
    return taken, failed


@pytest.mark.parametrize("nodes", [1, 2, 4, 9, 100])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_each_node_takes_all_in_order(monkeypatch, nodes, window):
    world = World(nodes, seed=nodes)
    taken, failed = run(monkeypatch, world, 12, window)
    names = [f"g{at}" for at in range(12)]
    assert taken == {node.id: names for node in world.nodes} and not failed
    # Up to 64 nodes each sends a group once, and of more, twice.
    most = 12 if nodes - 1 <= _moving.CHAIN else 24
    assert all(times <= most for times in world.served.values())


@pytest.mark.parametrize("seed", range(400))
def test_nodes_that_end_cost_their_own_part(monkeypatch, seed):
    world = World(2 + seed % 9, seed)
    victims = world.random.sample(
        [node.id for node in world.nodes[1:]],
        world.random.randint(0, len(world.nodes) - 1))
    taken, failed = run(monkeypatch, world, 8, 1 + seed % 4, victims)
    if len(world.ended) < 2:  # Two may be neighbours.
        assert set(failed) <= world.ended
    for node in world.nodes:
        names = [f"g{at}" for at in range(8)]
        if node.id in failed:
            names = names[:len(taken[node.id])]
        assert taken[node.id] == names
