#!/usr/bin/env python3
"""hoist.ray.load beside Ray alone, which moves the same objects.

    export HOIST_BUILD_DIR=build/dev    # after scripts/test_ray.sh
    build/ray-venv/bin/python tests/bench/bench_ray.py [--nodes 4]
        [--groups 8] [--mib 8] [--rounds 3] [--link MBIT]

Nodes are raylets of this machine, each with a hoistd on an emulated device. With
--link each has a network namespace and a link of that rate of its own
(tests/ray/apart.py), which needs root; without, no network is measured. Both make
the same arrays on one node, as objects, a window of four at a time, for all nodes.
Ray alone is done when each node has each object mapped; hoist.ray when each
hoistd has hashed and published it. Rates are of bytes that arrived at a node;
with --link also: what the node that reads sent, by the bytes that each node got.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import ray

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "ray"))

from apart import Apart  # noqa: E402
from conftest import MIB, start  # noqa: E402

import hoist.ray  # noqa: E402
from hoist.ray import _nodes  # noqa: E402
from ray.util.scheduling_strategies import (  # noqa: E402
    NodeAffinitySchedulingStrategy)

WINDOW = 4
LINK = pathlib.Path("/sys/class/net/wire/statistics/tx_bytes")


class Sink:
    """Has an object mapped, and nothing else."""

    def take(self, image: Any) -> int:
        return int(image[-1])


def arrays(count: int, nbytes: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 255, nbytes, np.uint8) for _ in range(count)]


def ray_alone(sinks: list[Any], images: list[Any]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    under_way: list[list[Any]] = []
    for image in images:
        if len(under_way) == WINDOW:
            ray.get(under_way.pop(0))
        ref = ray.put(image)
        under_way.append([sink.take.remote(ref) for sink in sinks])
    for calls in under_way:
        ray.get(calls)
    return time.perf_counter() - begun


def with_hoist(images: list[Any], name: str) -> float:
    """Seconds."""
    groups = [(f"g{at}", {"w": image}) for at, image in enumerate(images)]
    begun = time.perf_counter()
    hoist.ray.load(groups, name, window=WINDOW)
    return time.perf_counter() - begun


def sent() -> int:
    """By this node over its link; 0: it has none of its own."""
    return int(LINK.read_text()) if LINK.exists() else 0


def measured(work: Any, nbytes: int) -> str:
    before = sent()
    took = work()
    told = f"{nbytes / took / 1e6:,.0f} MB/s a node"
    if LINK.exists():
        told += f" (the source sent {(sent() - before) / nbytes:.2f} x)"
    return told


def run(options: argparse.Namespace) -> None:
    nodes = _nodes.alive()
    sinks = [ray.remote(Sink).options(
        num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(
            node, soft=False)).remote() for node in nodes]
    warm = arrays(1, MIB, 99)
    ray_alone(sinks, warm)
    _nodes.ask(_nodes.find(), "ready")
    with_hoist(warm, "warm")
    hoist.ray.forget("warm")
    nbytes = options.groups * options.mib * MIB
    print(f"{len(nodes)} nodes of this machine, {options.groups} groups of "
          f"{options.mib} MiB, window {WINDOW}"
          + (f", links of {options.link} Mbit/s" if options.link else ""))
    for turn in range(options.rounds):
        images = arrays(options.groups, options.mib * MIB, turn)
        alone = measured(lambda: ray_alone(sinks, images), nbytes)
        loaded = measured(lambda: with_hoist(images, "m"), nbytes)
        hoist.ray.forget("m")
        print(f"round {turn + 1}: Ray alone {alone}, hoist.ray {loaded}",
              flush=True)


def apart(options: argparse.Namespace, store: int, sizes: dict[str, int]
          ) -> None:
    """This program, within the first node's network."""
    cluster = Apart(options.nodes, options.link, store, **sizes)
    try:
        subprocess.run(cluster.inside(
            0, sys.executable, *sys.argv, "--within", cluster.head),
            check=True)
    finally:
        cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--link", type=int, metavar="MBIT")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = {"pool": 16 * MIB,
             "host": (options.groups + 2) * options.mib * MIB + 32 * MIB}
    # A node that serves has each buffer twice, until it has come there.
    store = 80 * MIB + 4 * WINDOW * options.mib * MIB
    if options.within:
        ray.init(address=options.within, log_to_driver=False)
        run(options)
    elif options.link:
        apart(options, store, sizes)
    else:
        world = start(options.nodes, store, **sizes)
        try:
            run(options)
        finally:
            world.stop()


if __name__ == "__main__":
    main()
