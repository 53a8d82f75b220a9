"""The node that reads has the model of its files; the others are sent it."""

from __future__ import annotations

import os
import pathlib
import signal
import threading

import pytest
from real_daemon import block_model, until, write_safetensors
from test_load import BLOCK, BLOCKS, agents_pid, arrays, made, names, staged

import hoist
import hoist.ray


def kinds(world, model: str = "m") -> dict[str, bool]:
    """By node: whether it is published there."""
    return {row["node"]: row["published"] for row in hoist.ray.models()
            if row["name"] == model}


def in_host(world, node: str) -> int:
    return next(row["used_bytes"] for row in hoist.ray.status([node])
                if row["tier"] == "host")


def file_reads(world, node: str) -> int:
    return world.hoistds[node].counters()["file_read_bytes"]


def wanted(tensors: dict) -> dict[str, bytes]:
    return {name: data for name, (_, _, data) in tensors.items()}


def test_its_bytes_are_read_once_and_lie_there_once(world, tmp_path):
    path, tensors = made(tmp_path)
    first, *others = world.nodes
    before, had = file_reads(world, first), in_host(world, first)
    told = []
    report = hoist.ray.load(path, "m", from_files=True,
                            progress=lambda *one: told.append(one))
    size = os.path.getsize(path)
    assert size - 8 * 4096 <= file_reads(world, first) - before <= (
        size + 32 * 4096)
    assert kinds(world) == {first: False, **dict.fromkeys(others, True)}
    assert report.sent_bytes == 3 * report.read_bytes
    assert in_host(world, first) - had <= size * 1.01
    for node in world.nodes:
        assert staged(world, node, "m") == wanted(tensors)
        with hoist.connect(world.hoistds[node].socket) as session:
            groups = [group.name for group in session.model("m")]
        assert [name for at, name in told if at == node] == groups
    assert names(first) == ["m"]
    # What it is, is known of files, too, and nothing moves again.
    assert {row["content"] for row in hoist.ray.models()} == {report.content}
    for again in (hoist.ray.load(path, "m", from_files=True),
                  hoist.ray.load(path, "m"), hoist.ray.replicate("m")):
        assert (again.read_bytes, again.sent_bytes) == (0, 0)
        assert again.content == report.content
    assert names(first) == ["m"]


def test_what_is_evicted_there_is_read_again(world, tmp_path):
    path, tensors = made(tmp_path)
    first, second, *_ = world.nodes
    hoist.ray.load(path, "m", nodes=[first, second], from_files=True)
    before = file_reads(world, first)
    assert not hoist.ray.evict("m", "host", nodes=[first])
    assert not [row for row in hoist.ray.where("m", [first])
                if row["tier"] == "host"]
    assert staged(world, first, "m") == wanted(tensors)
    assert file_reads(world, first) - before >= BLOCKS * BLOCK
    # Published, it is nowhere else.
    hoist.ray.evict("m", "host", nodes=[second])
    assert sum(row["bytes"] for row in hoist.ray.where("m", [second])
               if row["tier"] == "host") >= BLOCKS * BLOCK


def test_a_neighbour_gets_it_from_there(world, tmp_path):
    path, tensors = made(tmp_path)
    first, second, *_ = world.nodes
    loaded = hoist.ray.load(path, "m", nodes=[first], from_files=True)
    report = hoist.ray.replicate("m", nodes=[second], content=loaded.content)
    assert report.content == loaded.content
    assert report.sent_bytes == loaded.read_bytes
    assert staged(world, second, "m") == wanted(tensors)


def test_a_change_of_the_files_is_noticed(world, tmp_path):
    path, tensors = made(tmp_path)
    first, second, *_ = world.nodes
    hoist.ray.load(path, "m", nodes=[first, second], from_files=True)
    assert not hoist.ray.evict("m", "host", nodes=[first])
    changed = block_model(BLOCKS, BLOCK)
    write_safetensors(pathlib.Path(path), changed)
    with pytest.raises(hoist.DataLoss, match="changed since"):
        staged(world, first, "m")
    with pytest.raises(hoist.DataLoss, match="changed since"):
        hoist.ray.replicate("m", nodes=[world.nodes[2]], source_node=first)
    assert names(world.nodes[2]) == []
    with pytest.raises(hoist.AlreadyExists):
        hoist.ray.load(path, "m", nodes=[first, second], from_files=True)
    assert not hoist.ray.forget("m")
    hoist.ray.load(path, "m", nodes=[first, second], from_files=True)
    assert staged(world, first, "m") == wanted(changed)
    assert staged(world, second, "m") == wanted(changed)


def test_one_that_is_cancelled_or_refused_leaves_nothing(world, tmp_path):
    path, _ = made(tmp_path)
    first, second, *_ = world.nodes
    begun, go = threading.Event(), threading.Event()

    def progress(node: str, group: str) -> None:
        begun.set()
        go.wait(60)

    load = hoist.ray.start_load(path, "m", window=1, from_files=True,
                                progress=progress)
    assert begun.wait(60)
    load._cancelled.set()
    go.set()
    load.cancel()
    with pytest.raises(hoist.Cancelled):
        load.result()
    assert kinds(world) == {}
    with pytest.raises(hoist.DataLoss, match="contents="):
        hoist.ray.load(path, "m", nodes=[first], from_files=True,
                       contents={f"layers.{at}": bytes(32)
                                 for at in range(BLOCKS)})
    assert kinds(world) == {}
    with pytest.raises(hoist.InvalidArgument, match="from_files"):
        hoist.ray.load(arrays(1), "m", from_files=True)
    with pytest.raises(hoist.InvalidArgument, match="source_node in nodes"):
        hoist.ray.load(path, "m", nodes=[second], source_node=first,
                       from_files=True)
    # A name that has something else there.
    hoist.ray.load(arrays(1), "m", nodes=[first])
    with pytest.raises(hoist.AlreadyExists):
        hoist.ray.load(path, "m", nodes=[first], from_files=True)
    assert kinds(world) == {first: True}


def test_one_that_was_there_stays_when_it_is_cancelled(world, tmp_path):
    path, tensors = made(tmp_path)
    first, second, *_ = world.nodes
    hoist.ray.load(path, "m", nodes=[first], from_files=True)
    begun, go = threading.Event(), threading.Event()

    def progress(node: str, group: str) -> None:
        begun.set()
        go.wait(60)

    load = hoist.ray.start_load(path, "m", nodes=[first, second], window=1,
                                from_files=True, progress=progress)
    assert begun.wait(60)
    load._cancelled.set()
    go.set()
    load.cancel()
    assert kinds(world) == {first: False}
    assert staged(world, first, "m") == wanted(tensors)


def test_an_agent_that_begins_anew_reads_them_again(world, tmp_path):
    path, _ = made(tmp_path)
    first, second, *_ = world.nodes
    loaded = hoist.ray.load(path, "m", nodes=[first], from_files=True)
    pid = agents_pid(first)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    until(lambda: not hoist.ray.forget("nothing", nodes=[first]))
    with pytest.raises(hoist.FailedPrecondition, match="from_files=True"):
        hoist.ray.replicate("m", nodes=[second], source_node=first)
    report = hoist.ray.load(path, "m", nodes=[first, second], from_files=True)
    assert report.content == loaded.content
    assert kinds(world) == {first: False, second: True}
