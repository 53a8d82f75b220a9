#!/usr/bin/env python3
"""hoist.ray.load beside Ray alone, which moves the same objects.

    export HOIST_BUILD_DIR=build/dev    # after scripts/test_ray.sh
    build/ray-venv/bin/python tests/bench/bench_ray.py [--nodes 4]
        [--groups 8] [--mib 8] [--rounds 3]

Nodes are raylets of this machine, each with a hoistd on an emulated device
(tests/ray/conftest.py), so that no network is measured. Both make the same
arrays on one node, as objects, a window of two at a time, for all nodes. Ray
alone is done when each node has each object mapped; hoist.ray when each
hoistd has hashed and published it. Bytes are those that arrived, of all nodes.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import Any

import numpy as np
import ray

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "ray"))

from conftest import MIB, World, start  # noqa: E402

import hoist.ray  # noqa: E402
from hoist.ray import _nodes  # noqa: E402
from ray.util.scheduling_strategies import (  # noqa: E402
    NodeAffinitySchedulingStrategy)

WINDOW = 2


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


def run(world: World, options: argparse.Namespace) -> None:
    sinks = [ray.remote(Sink).options(
        num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(
            node, soft=False)).remote() for node in world.nodes]
    warm = arrays(1, MIB, 99)
    ray_alone(sinks, warm)
    _nodes.ask(_nodes.find(), "ready")
    with_hoist(warm, "warm")
    hoist.ray.forget("warm")
    moved = options.groups * options.mib * MIB * len(world.nodes)
    print(f"{len(world.nodes)} nodes of this machine, {options.groups} groups "
          f"of {options.mib} MiB, window {WINDOW}")
    for turn in range(options.rounds):
        images = arrays(options.groups, options.mib * MIB, turn)
        alone = ray_alone(sinks, images)
        loaded = with_hoist(images, "m")
        hoist.ray.forget("m")
        print(f"round {turn + 1}: Ray alone {moved / alone / 1e6:,.0f} MB/s, "
              f"hoist.ray {moved / loaded / 1e6:,.0f} MB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    world = start(options.nodes)
    try:
        run(world, options)
    finally:
        world.stop()


if __name__ == "__main__":
    main()
