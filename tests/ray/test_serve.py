"""Ray Serve's replicas are where their weights are, on three nodes: the
example, and its parts."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import subprocess
import sys
from typing import Any, Iterator

import pytest
import ray
from conftest import BUILD, ROOT, World, start
from real_daemon import until, write_safetensors
from test_load import names, staged
from test_replicate import file_reads

import hoist
import hoist.ray

sys.path.insert(0, str(ROOT / "client" / "examples"))
import ray_serve  # noqa: E402

IMAGE = ray_serve.LAYERS * ray_serve.WIDTH * (ray_serve.WIDTH + 1) * 4


@pytest.fixture(scope="module")
def three() -> Iterator[World]:
    world = start(3)
    # Replicas cannot import this example by its name.
    ray.cloudpickle.register_pickle_by_value(ray_serve)
    ray_serve.serve.start(proxy_location="Disabled")
    yield world
    ray_serve.serve.shutdown()
    world.stop()


@pytest.fixture
def world(three: World) -> Iterator[World]:
    """No app and no model is there before or after."""
    yield three
    for app in list(ray_serve.serve.status().applications):
        ray_serve.serve.delete(app)
    for node in three.nodes:
        for name in names(node):
            assert not hoist.ray.forget(name, nodes=[node], deadline=30)


def met(handle: Any, seeds: dict[str, int], nodes: int
        ) -> ray_serve.Asking:
    """So many nodes answer, and no answer is wrong."""
    asking = ray_serve.Asking(handle, seeds)
    asking.meet(nodes)
    assert not asking.wrong
    return asking


def arrays(seed: int) -> dict[str, bytes]:
    return {name: array.tobytes() for _, tensors in ray_serve.weights(seed)
            for name, array in tensors.items()}


def test_replicas_are_where_the_weights_are(world):
    first, second, third = world.nodes
    hoist.ray.load(ray_serve.weights(1), "red", nodes=[first, second])
    hoist.ray.load(ray_serve.weights(2), "blue", nodes=[third])
    red = ray_serve.deploy("red", "red", 2)
    blue = ray_serve.deploy("blue", "blue", 2)
    assert met(red, {"red": 1}, 2).brought == {first: 0, second: 0}
    assert met(blue, {"blue": 2}, 1).brought == {third: 0}
    # Else this compares what is always the same.
    assert len({ray_serve.truth(seed, number) for seed in (1, 2)
                for number in range(8)}) == 16
    assert (names(first), names(third)) == (["red"], ["blue"])


def test_a_cold_node_serves_what_its_neighbour_had(world, tmp_path):
    """The source is a file, and is gone by then."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {
        name: ("F32", list(array.shape), array.tobytes())
        for _, tensors in ray_serve.weights(1)
        for name, array in tensors.items()})
    first, second, third = world.nodes
    hoist.ray.load(path, "red", nodes=[first, second])
    path.unlink()
    red = ray_serve.deploy("red", "red", 2)
    assert set(met(red, {"red": 1}, 2).brought) == {first, second}
    before = file_reads(world)
    with ray_serve.Asking(red, {"red": 1}) as asking:
        report = hoist.ray.replicate("red", nodes=[third])
        red = ray_serve.deploy("red", "red", 3)
    assert not asking.wrong and asking.by_model["red"] > 0
    assert report.sent_bytes >= IMAGE
    assert met(red, {"red": 1}, 3).brought == {
        first: 0, second: 0, third: 0}
    assert file_reads(world) == before
    assert staged(world, third, "red") == arrays(1)


def test_a_replica_brings_its_weights_as_it_starts(world):
    first, second, third = world.nodes
    calls = []

    def source():
        calls.append(1)
        yield from ray_serve.weights(2)

    hoist.ray.load(source(), "blue", nodes=[first, second])
    blue = ray_serve.deploy_growing("blue", "blue", 2, 3)
    assert met(blue, {"blue": 2}, 2).brought == {first: 0, second: 0}
    assert names(third) == []
    with ray_serve.Asking(blue, {"blue": 2}, threads=6) as asking:
        ray_serve.settle("blue", 3)
    assert not asking.wrong
    brought = met(blue, {"blue": 2}, 3).brought
    assert brought[third] >= IMAGE
    assert brought == {first: 0, second: 0, third: brought[third]}
    assert calls == [1]
    assert staged(world, third, "blue") == arrays(2)


def test_a_model_changes_under_requests(world):
    first, second, _ = world.nodes
    hoist.ray.load(ray_serve.weights(1), "red", nodes=[first, second])
    red = ray_serve.deploy("red", "red", 2)
    with (concurrent.futures.ThreadPoolExecutor(1) as pool,
          hoist.connect(world.hoistds[second].socket) as slow,
          ray_serve.Asking(red, {"red": 1, "red-2": 3}) as asking):
        # By the old weights, and in no hurry to end.
        lease = slow.stage(slow.model("red")["layers.0"])
        until(lambda: asking.by_model["red"])
        changing = pool.submit(ray_serve.change, "red", "red", "red-2", 2,
                               functools.partial(ray_serve.weights, 3))
        # The first node has no more of the old: nobody uses it there.
        until(lambda: names(first) == ["red-2"] or changing.done(), 120)
        assert not changing.done()
        assert sorted(names(second)) == ["red", "red-2"]
        assert staged(world, second, "red") == arrays(1)
        assert lease["layers.0.weight"].numpy().tobytes() == (
            arrays(1)["layers.0.weight"])
        lease.release()
        slow.close()
        assert changing.result(60) == {}
        since = asking.by_model["red-2"]
        until(lambda: asking.by_model["red-2"] > since + 8)
    assert not asking.wrong
    assert asking.by_model["red"] > 0
    assert [names(node) for node in world.nodes] == [["red-2"], ["red-2"], []]
    assert set(met(red, {"red-2": 3}, 2).by_model) == {"red-2"}


def run_example(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "client/examples/ray_serve.py"), *words],
        env={**os.environ, "HOIST_CTL": str(BUILD / "client/ctl/hoistctl")},
        text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "brought 4.0 MiB from a node that had them" in done.stdout
    assert "models now: blue, red-2" in done.stdout
    assert "\nall answers were right\n" in done.stdout


def test_the_example_runs_on_a_cluster_that_is_there(world):
    run_example("--address", world.cluster.address)
    assert not ray_serve.serve.status().applications
    assert [names(node) for node in world.nodes] == [[], [], []]


def test_the_example_runs_on_nodes_that_it_makes():
    run_example("--hoistd", str(BUILD / "daemon/hoistd"))
