"""A model comes from nodes that have it, and actors go where it is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray
from real_daemon import MIB
from test_load import (Broken, arrays, breaks_after, made, names,
                       staged)

import hoist
import hoist.ray

NODE_ID = "ray.io/node-id"


def file_reads(world) -> dict[str, int]:
    return {node: hoistd.counters()["file_read_bytes"]
            for node, hoistd in world.hoistds.items()}


def test_a_model_comes_from_a_neighbour_when_its_source_is_gone(
        world, tmp_path):
    path, tensors = made(tmp_path)
    first, second, third, fourth = world.nodes
    loaded = hoist.ray.load(path, "m", nodes=[second], source_node=first)
    (tmp_path / "model.safetensors").unlink()
    before = file_reads(world)
    report = hoist.ray.replicate("m", nodes=[third, fourth])
    assert report.nodes == (third, fourth)
    assert report.content == loaded.content
    assert report.sent_bytes == 2 * loaded.sent_bytes
    want = {name: data for name, (_, _, data) in tensors.items()}
    assert staged(world, third, "m") == staged(world, fourth, "m") == want
    assert file_reads(world) == before
    # Nothing of the reading is left, and who has it is sent nothing.
    assert [names(node) for node in world.nodes] == [[], ["m"], ["m"], ["m"]]
    again = hoist.ray.replicate("m", nodes=[third, second])
    assert (again.read_bytes, again.sent_bytes) == (0, 0)
    last = hoist.ray.replicate("m", source_node=fourth)
    assert set(last.nodes) == set(world.nodes)
    assert last.sent_bytes == loaded.sent_bytes
    assert staged(world, first, "m") == want


def test_a_part_of_a_model_is_not_taken_for_the_whole(world):
    first, second, third, _ = world.nodes
    whole = hoist.ray.load(arrays(3), "whole", nodes=[first]).content
    with pytest.raises(Broken):
        hoist.ray.load(breaks_after(2, arrays(3)), "m", nodes=[first])
    with pytest.raises(hoist.NotFound, match="of content"):
        hoist.ray.replicate("m", nodes=[second], content=whole)
    assert names(second) == []
    hoist.ray.load(arrays(3), "m", nodes=[second])
    # Of two it is the one that has more; the first gets what it lacks.
    report = hoist.ray.replicate("m", nodes=[first, third], content=whole)
    assert report.sent_bytes == 4 * MIB
    assert staged(world, first, "m") == staged(world, third, "m")


def test_what_nobody_has_is_refused(world):
    with pytest.raises(hoist.NotFound, match='model "none"'):
        hoist.ray.replicate("none")
    with pytest.raises(hoist.NotFound, match=f"node {world.nodes[1]} does"):
        hoist.ray.replicate("none", source_node=world.nodes[1])
    with pytest.raises(hoist.InvalidArgument, match="window=0"):
        hoist.ray.replicate("none", window=0)
    with pytest.raises(hoist.NotFound):
        hoist.ray.actor_options("none")
    with pytest.raises(hoist.InvalidArgument, match="neither soft nor hard"):
        hoist.ray.actor_options("none", "other")


def test_a_model_of_files_is_not_brought(world, tmp_path):
    path, _ = made(tmp_path)
    node = world.nodes[1]
    with hoist.connect(world.hoistds[node].socket) as session:
        model = session.register(path, "m")
        with pytest.raises(hoist.FailedPrecondition, match="from files"):
            hoist.ray.replicate("m", source_node=node)
        session.done_with(model)
        session.forget(model)


def test_it_waits_for_a_load_of_that_name(world):
    first, second, *_ = world.nodes
    begun, go = threading.Event(), threading.Event()

    def groups():
        yield from arrays(1)
        begun.set()
        go.wait(60)
        yield from arrays(3)[1:]

    load = hoist.ray.start_load(groups(), "m", nodes=[first], window=1)
    assert begun.wait(60)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(
        hoist.ray.replicate("m", nodes=[second])))
    thread.start()
    go.set()
    thread.join()
    assert found[0].content == load.result().content
    assert staged(world, second, "m") == staged(world, first, "m")


def test_actors_go_where_all_of_it_is(world):
    first, second, third, _ = world.nodes
    hoist.ray.load(arrays(2), "m", nodes=[second, third])
    with pytest.raises(Broken):
        hoist.ray.load(breaks_after(1, arrays(1)), "m", nodes=[first])
    hard = hoist.ray.actor_options("m")
    assert set(hard) == {"label_selector"}
    soft = hoist.ray.actor_options("m", "soft", nodes=[first, second])
    assert soft["label_selector"] == {NODE_ID: f"in({second})"}

    class Placed:  # This file cannot be imported there.
        def node(self) -> str:
            return ray.get_runtime_context().get_node_id()

    def place(options: dict[str, Any]) -> Any:
        actor = ray.remote(Placed).options(num_cpus=1, **options).remote()
        at.append(ray.get(actor.node.remote(), timeout=60))
        return actor

    at: list[str] = []
    kept = [place(hard), place(hard)]
    assert sorted(at) == sorted([second, third])
    # Nodes have a CPU each: these are full, and so any other one does.
    kept.append(place(soft))
    assert at[2] not in (second, third)
    for actor in kept:
        ray.kill(actor)


def test_forget_waits_for_who_uses_it(world):
    first, second, *_ = world.nodes
    hoist.ray.load(arrays(2), "m", nodes=[first, second])
    want = staged(world, first, "m")
    session = hoist.connect(world.hoistds[second].socket)
    model = session.model("m")
    lease = session.stage(model["g1"])
    refused = hoist.ray.forget("m")
    assert set(refused) == {second}
    assert isinstance(refused[second], hoist.FailedPrecondition)
    assert (names(first), names(second)) == ([], ["m"])
    assert set(hoist.ray.forget("m", deadline=0.3)) == {second}
    # It is whole for who has it: what was not staged before, too.
    with session.stage(model["g0"]):
        assert staged(world, second, "m") == want
    assert lease["w"].numpy().tobytes() == want["w"]
    closing = threading.Thread(target=lambda: (lease.release(),
                                               session.close()))
    closing.start()
    assert not hoist.ray.forget("m", deadline=30)
    closing.join()
    assert names(second) == []
