"""A model comes to all nodes, and its bytes are read once."""

from __future__ import annotations

import os
import pathlib
import threading
from typing import Any, Iterator

import numpy as np
import pytest
import ray
from ray._private.internal_api import node_stats
from real_daemon import MIB, block_model, until, write_safetensors

import hoist
import hoist.ray
from hoist.ray import _image, _nodes

BLOCKS, BLOCK = 6, 4 * MIB


def made(tmp_path: pathlib.Path, blocks: int = BLOCKS) -> tuple[str, dict]:
    tensors = block_model(blocks, BLOCK)
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return str(path), tensors


def arrays(groups: int = 3, nbytes: int = MIB, seed: int = 0) -> list:
    random = np.random.default_rng(seed)
    return [(f"g{group}", {"w": random.integers(
        0, 255, (nbytes // 4, 4), np.uint8)}) for group in range(groups)]


def staged(world, node: str, model: str) -> dict[str, bytes]:
    """Every tensor, as a worker of that node has it."""
    found = {}
    with hoist.connect(world.hoistds[node].socket) as session:
        for group in session.model(model):
            with session.stage(group) as lease:
                for name in lease:
                    found[name] = lease[name].numpy().tobytes()
    return found


def names(node: str) -> list[str]:
    return [row["name"] for row in hoist.ray.models([node])]


def disk_reads(pid: int) -> int:
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def agents_pid(node: str) -> int:
    return ray.get(_nodes.find([node])[0].agent.ready.remote())["pid"]


@ray.remote(num_cpus=0)
class Worker:
    def where(self) -> str:
        return ray.get_runtime_context().get_node_id()


def test_the_guides_block_loads_and_places_a_worker(world, tmp_path,
                                                    monkeypatch):
    guide = pathlib.Path(hoist.ray.__file__).with_name("README.md").read_text()
    block = guide.split("```python\n")[1].split("```")[0]
    path, tensors = made(tmp_path)
    monkeypatch.setattr(ray, "init", lambda address: None)  # As it is already.
    left = {"Worker": Worker}
    exec(block.replace("/models/llama", path), left)
    assert set(left["report"].nodes) == set(world.nodes)
    node = ray.get(left["worker"].where.remote())
    assert staged(world, node, "llama") == {
        name: bytes(data) for name, (*_, data) in tensors.items()}
    ray.kill(left["worker"])


def test_each_byte_is_read_once_and_is_everywhere(world, tmp_path):
    path, tensors = made(tmp_path)
    size = os.path.getsize(path)
    pids = {node: [world.hoistds[node].process.pid, agents_pid(node)]
            for node in world.nodes}
    before = {pid: disk_reads(pid) for both in pids.values() for pid in both}
    file_reads = {node: hoistd.counters()["file_read_bytes"]
                  for node, hoistd in world.hoistds.items()}
    report = hoist.ray.load(path, "m")
    assert set(report.nodes) == set(world.nodes) and not report.errors
    read = {node: hoistd.counters()["file_read_bytes"] - file_reads[node]
            for node, hoistd in world.hoistds.items()}
    first, *others = world.nodes
    assert size <= read[first] + 8 * 4096 and read[first] <= size + 32 * 4096
    assert [read[node] for node in others] == [0, 0, 0]
    # A file system without a disk counts nothing there.
    assert all(disk_reads(pid) - before[pid] <= size // 8
               for node in others for pid in pids[node])
    want = {name: data for name, (_, _, data) in tensors.items()}
    for node in world.nodes:
        assert staged(world, node, "m") == want
    # Nothing of the reading is left at the source.
    assert names(first) == ["m"]
    assert report.sent_bytes == 4 * report.read_bytes
    assert report.peak_bytes <= 4 * (BLOCK + 2 * 4096)


def test_a_bar_shows_bytes_of_all_nodes(world, tmp_path, capsys):
    path, _ = made(tmp_path)
    first = world.nodes[0]
    hoist.ray.load(path, "m", nodes=[first], progress=False)
    assert capsys.readouterr().err == ""
    report = hoist.ray.load(path, "m", progress=True)
    *_, last = capsys.readouterr().err.strip().split("\r")
    assert last.startswith("load m: 100%"), last
    assert report.sent_bytes == 3 * report.read_bytes
    total = f"{report.sent_bytes / MIB:.1f}M"
    assert f"{total}/{total}" in last
    assert "4 of 4 nodes have all" in last
    # Of what an iterable gives nobody knows how much comes.
    hoist.ray.load(arrays(2), "other", progress=True)
    *_, last = capsys.readouterr().err.strip().split("\r")
    assert last.startswith("load other: 8.00MB"), last


def test_what_is_there_is_not_sent_again(world, tmp_path):
    path, _ = made(tmp_path)
    first, second, *rest = world.nodes
    hoist.ray.load(path, "m", nodes=[first, second])
    again = hoist.ray.load(path, "m")
    assert again.sent_bytes == len(rest) * again.read_bytes
    third = hoist.ray.load(path, "m")
    assert (third.read_bytes, third.sent_bytes) == (0, 0)
    assert third.content == again.content


class Broken(Exception):
    pass


def breaks_after(count: int, groups: list[Any]) -> Iterator[Any]:
    """So many of them, and then it raises."""
    yield from groups[:count]
    raise Broken()


def test_an_interrupted_load_goes_on_where_it_stopped(world):
    with pytest.raises(Broken):
        hoist.ray.load(breaks_after(2, arrays(5)), "m")
    report = hoist.ray.load(arrays(5), "m")
    assert report.sent_bytes == 4 * 3 * MIB


def test_a_function_is_called_by_the_node_that_reads(world):
    other = world.nodes[2]

    def here():
        node = ray.get_runtime_context().get_node_id()
        yield "g", {"node": np.frombuffer(node.encode(), np.uint8)}

    hoist.ray.load(here, "m", source_node=other)
    for node in world.nodes:
        assert staged(world, node, "m") == {"node": other.encode()}


def test_the_first_group_is_staged_before_the_last_arrives(world):
    there = {node: threading.Event() for node in world.nodes}
    found = {}

    def groups():
        first, last = arrays(2)
        yield first
        node = world.nodes[-1]
        assert there[node].wait(60)
        with hoist.connect(world.hoistds[node].socket) as session:
            model = session.model("m")
            with session.stage(model["g0"]) as lease:
                found["w"] = lease["w"].numpy().copy()
            found["groups"] = len(model)
        yield last

    hoist.ray.load(groups(), "m", window=1,
                   progress=lambda node, group: there[node].set())
    assert found["groups"] == 1
    assert (found["w"] == arrays(2)[0][1]["w"]).all()
    assert all(event.is_set() for event in there.values())


def stores() -> list[Any]:
    """What each node's object store says of itself."""
    return [node_stats(node["NodeManagerAddress"], node["NodeManagerPort"]
                       ).store_stats for node in ray.nodes() if node["Alive"]]


def test_the_window_bounds_what_is_under_way(world):
    used = []
    before = [store.object_store_bytes_primary_copy for store in stores()]

    def groups():
        for group in arrays(22, 4 * MIB):
            used.append([store.object_store_bytes_primary_copy
                         for store in stores()])
            yield group

    # More than an object store holds.
    report = hoist.ray.load(groups(), "m", window=2)
    assert report.read_bytes == 88 * MIB
    grown = [now - then for row in used for now, then in zip(row, before)]
    # Of those that a node serves it has two; the driver still names the one
    # that it is about to drop.
    assert max(grown) <= 5 * (4 * MIB + 4096)
    assert max(grown) >= 4 * MIB
    assert all(store.spilled_bytes_total == 0 for store in stores())
    assert report.peak_bytes == 8 * MIB
    # Of all that come at once, too, each node has them in their order.
    for node in world.nodes:
        with hoist.connect(world.hoistds[node].socket) as session:
            assert [group.name for group in session.model("m")] == [
                f"g{number}" for number in range(22)]


def test_other_content_of_that_name_is_refused_before_it_moves(
        world, tmp_path):
    path, _ = made(tmp_path)
    last = world.nodes[-1]
    with hoist.connect(world.hoistds[last].socket) as session:
        session.publish("m", "layers.5", {"w": np.ones(9, "u1")})
        with pytest.raises(hoist.AlreadyExists, match=f"node {last}.*layers.5"):
            hoist.ray.load(path, "m")
        session.forget(session.model("m"))
    for node in world.nodes:
        assert names(node) == []


def test_of_two_loads_at_once_one_reads(world, tmp_path):
    path, _ = made(tmp_path)
    loads = [hoist.ray.start_load(path, "m") for _ in range(2)]
    reports = [load.result(120) for load in loads]
    assert sorted(report.read_bytes > 0 for report in reports) == [False, True]
    assert reports[0].content == reports[1].content


def test_a_cancelled_load_leaves_nothing(world):
    begun, go = threading.Event(), threading.Event()

    def groups():
        yield from arrays(1)
        begun.set()
        go.wait(60)
        yield from arrays(3)[1:]

    load = hoist.ray.start_load(groups(), "m", window=1)
    assert begun.wait(60)
    load._cancelled.set()
    go.set()
    load.cancel()
    with pytest.raises(hoist.Cancelled):
        load.result()
    for node in world.nodes:
        assert names(node) == []


def test_other_bytes_than_said_are_refused_by_hoistd(world):
    node = world.nodes[1]
    agent = _nodes.find([node])[0].agent
    head, image = _image.pack("g", {"w": np.arange(1000)})
    image[7] ^= 1
    said, failed = _nodes.ask([_nodes.Node(node, agent)], "take", "m", head,
                              image, None, 10.0)
    assert not said
    assert isinstance(failed[node], hoist.DataLoss)
    assert node in str(failed[node])
    assert names(node) == []


def test_a_source_that_is_not_what_was_wanted_is_refused(world):
    with pytest.raises(hoist.DataLoss, match="contents="):
        hoist.ray.load(arrays(1), "m", contents={"g0": bytes(32)})
    for node in world.nodes:
        assert names(node) == []


def test_where_and_strategies_tell_of_tiers(world):
    first, second, *_ = world.nodes
    hoist.ray.load(arrays(2), "m", nodes=[first, second])
    staged(world, second, "m")
    rows = hoist.ray.where("m")
    assert {row["node"] for row in rows} == {first, second}
    assert sum(row["bytes"] for row in rows if row["tier"] == "host") == (
        4 * MIB)
    assert all(row["node"] == second for row in rows
               if row["tier"] == "device")
    best = hoist.ray.strategies("m", "hard")
    assert [(one.node_id, one.soft) for one in best] == [
        (second, False), (first, False)]
    assert all(one.soft for one in hoist.ray.strategies("m", "least evicted"))
    with pytest.raises(hoist.NotFound):
        hoist.ray.strategies("nothing")
    assert not hoist.ray.pin("m", nodes=[first])
    assert all(row["pinned"] for row in hoist.ray.where("m", [first]))
    assert not hoist.ray.pin("m", pinned=False, nodes=[first])
    assert not hoist.ray.evict("m", nodes=[second])
    assert all(row["tier"] == "host" for row in hoist.ray.where("m"))
    assert {row["node"] for row in hoist.ray.status()} == set(world.nodes)
    until(lambda: hoist.ray.models([first])[0]["content"])


def test_agents_end_and_models_stay(world):
    first, second = world.nodes[:2]
    hoist.ray.load(arrays(2), "m", nodes=[first, second])

    class Older:
        def ready(self):
            pass

    older = ray.remote(Older).options(
        name=f"hoist-agent-{first}", namespace=_nodes.NAMESPACE, num_cpus=0,
        lifetime="detached").remote()
    ray.get(older.ready.remote())
    pids = [agents_pid(first), agents_pid(second)]
    assert hoist.ray.end_agents([first]) == [first]
    with pytest.raises(ValueError):
        ray.get_actor(f"hoist-agent-{first}", namespace=_nodes.NAMESPACE)
    assert hoist.ray.end_agents([first]) == []
    assert agents_pid(first) != pids[0] and agents_pid(second) == pids[1]
    again = hoist.ray.load(arrays(2), "m", nodes=[first, second])
    assert again.sent_bytes == 0
