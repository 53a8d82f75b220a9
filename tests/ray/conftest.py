"""Four of Ray's nodes on one machine, each with a hoistd of its own."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any, Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from real_daemon import MIB, RealDaemon, until  # noqa: E402

BUILD = pathlib.Path(os.environ["HOIST_BUILD_DIR"])
STORE = 80 * MIB  # Of objects, a node.


class World:
    """The cluster, and by node id each node's raylet and hoistd."""

    def __init__(self, cluster: Cluster, store: int = STORE) -> None:
        self.cluster = cluster
        self.store = store
        self.raylets: dict[str, Any] = {}
        self.hoistds: dict[str, RealDaemon] = {}

    def add(self, **sizes: Any) -> str:
        """A node; its id."""
        hoistd = RealDaemon(BUILD / "daemon/hoistd",
                            **{"pool": 16 * MIB, "host": 96 * MIB, **sizes})
        until(lambda: os.path.exists(hoistd.socket))
        return self.add_raylet(hoistd)

    def add_raylet(self, hoistd: RealDaemon) -> str:
        """A node over a hoistd that is there; its id."""
        raylet = self.cluster.add_node(
            num_cpus=1, object_store_memory=self.store,
            env_vars={"HOIST_SOCKET": hoistd.socket,
                      "HOIST_CTL": str(BUILD / "client/ctl/hoistctl")})
        self.raylets[raylet.node_id] = raylet
        self.hoistds[raylet.node_id] = hoistd
        return raylet.node_id

    def end_raylet(self, node: str) -> RealDaemon:
        """As a crash; its hoistd, which goes on."""
        self.cluster.remove_node(self.raylets.pop(node), allow_graceful=False)
        until(lambda: all(row["NodeID"] != node or not row["Alive"]
                          for row in ray.nodes()))
        return self.hoistds.pop(node)

    @property
    def nodes(self) -> list[str]:
        """The driver's first."""
        return list(self.hoistds)

    def stop(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()
        for hoistd in self.hoistds.values():
            hoistd.stop()


def start(nodes: int, store: int = STORE, **sizes: Any) -> World:
    """With a driver on the first node."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    world = World(Cluster(), store)
    for _ in range(nodes):
        world.add(**sizes)
    world.cluster.wait_for_nodes()
    ray.init(address=world.cluster.address, log_to_driver=False)
    return world


@pytest.fixture(scope="module")
def four() -> Iterator[World]:
    world = start(4)
    yield world
    world.stop()


@pytest.fixture
def world(four: World) -> Iterator[World]:
    """Nothing is in any hoistd of it before or after."""
    import hoist.ray
    yield four
    for node in four.nodes:
        for row in hoist.ray.models([node]):
            assert not hoist.ray.forget(row["name"], nodes=[node])


@pytest.fixture
def two() -> Iterator[World]:
    """For a test that ends some of it."""
    world = start(2)
    yield world
    world.stop()
