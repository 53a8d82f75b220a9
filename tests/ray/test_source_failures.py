"""The node that reads, or its driver, ends in the middle of a load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Callable

import pytest
import ray
from conftest import BUILD, World, start
from real_daemon import RealDaemon, until
from test_load import arrays, made, names, staged

import hoist
import hoist.ray
from hoist.ray import _nodes, _turn

GROUPS = 4


def open_readers(node: str) -> int:
    """Of a node's agent."""
    agent = _nodes.find([node])[0].agent
    return ray.get(agent.__ray_call__.remote(lambda self: len(self._readings)))


class Source:
    """Files, or a function that the reading node calls; what they have."""

    def __init__(self, kind: str, tmp_path: Any) -> None:
        if kind == "files":
            self.source, tensors = made(tmp_path)
            self.want = {name: data for name, (_, _, data) in tensors.items()}
            return
        groups = [(name, {f"{name}.w": tensors["w"]})
                  for name, tensors in arrays(GROUPS)]
        self.source = lambda: iter(groups)
        self.want = {name: array.tobytes() for _, tensors in groups
                     for name, array in tensors.items()}

    def check_part(self, world: World, node: str) -> None:
        """What is there is right."""
        if names(node):
            assert names(node) == ["m"]
            assert staged(world, node, "m").items() <= self.want.items()

    def check_whole(self, world: World, node: str) -> None:
        assert names(node) == ["m"]
        assert staged(world, node, "m") == self.want


@pytest.fixture(params=["files", "function"])
def source(request, tmp_path) -> Source:
    return Source(request.param, tmp_path)


def once(do: Callable[[], Any]) -> Callable[[str, str], None]:
    """Called as each group is there, it does something the first time."""
    left = [do]

    def progress(node: str, group: str) -> None:
        if left:
            left.pop()()

    return progress


def load_through(source: Source, reads: str, do: Callable[[], Any]
                 ) -> hoist.HoistError | None:
    """From a node where something happens once its first group is there."""
    try:
        hoist.ray.load(source.source, "m", source_node=reads, window=1,
                       deadline=20, progress=once(do))
    except hoist.HoistError as error:
        return error
    return None


def test_the_hoistd_of_the_node_that_reads_is_killed(two, source):
    """A function needs no hoistd: then the other node has all of it."""
    first, reads = two.nodes
    hoistd = two.hoistds[reads]
    error = load_through(source, reads, hoistd.kill)
    assert error is not None and error.code == hoist.Unavailable.code
    assert reads in str(error)
    if isinstance(error, hoist.ray.NodesFailed):
        assert set(error.errors) == {reads}
        source.check_whole(two, first)
    else:
        source.check_part(two, first)
    os.unlink(hoistd.socket)
    hoistd.start()
    until(lambda: os.path.exists(hoistd.socket))
    assert open_readers(reads) == 0
    assert names(reads) == []
    hoist.ray.load(source.source, "m", source_node=reads)
    for node in two.nodes:
        source.check_whole(two, node)


def test_a_kept_hoistd_that_reads_is_killed(source):
    """The next one goes on with what its keeper kept: nobody is told."""
    world = start(1)
    try:
        reads = world.add(keeper=BUILD / "daemon/keeper/hoist-keeper")
        hoistd: RealDaemon = world.hoistds[reads]
        error = load_through(source, reads, lambda: os.kill(
            int(hoistd.status()["pid"]), signal.SIGKILL))
        assert error is None
        assert open_readers(reads) == 0
        for node in world.nodes:
            source.check_whole(world, node)
    finally:
        world.stop()


def test_the_raylet_of_the_node_that_reads_is_killed(two, source):
    first, reads = two.nodes
    hoistds: list[RealDaemon] = []
    error = load_through(source, reads,
                         lambda: hoistds.append(two.end_raylet(reads)))
    assert isinstance(error, hoist.Unavailable) and reads in str(error)
    source.check_part(two, first)
    # The node is back, over the hoistd that it had.
    again = two.add_raylet(hoistds[0])
    until(lambda: not _nodes.ask(_nodes.find([again]), "ready")[1])
    source.check_part(two, again)
    hoist.ray.load(source.source, "m", source_node=again)
    assert open_readers(again) == 0
    for node in two.nodes:
        source.check_whole(two, node)


def test_the_agent_that_reads_is_killed(two, source):
    first, reads = two.nodes
    agent = _nodes.find([reads])[0].agent
    pid = ray.get(agent.ready.remote())["pid"]
    error = load_through(source, reads, lambda: os.kill(pid, signal.SIGKILL))
    assert error is not None and error.code == hoist.Unavailable.code
    assert reads in str(error)
    until(lambda: not _nodes.ask(_nodes.find([reads]), "ready")[1])
    for node in two.nodes:
        source.check_part(two, node)
    hoist.ray.load(source.source, "m", source_node=reads)
    assert open_readers(reads) == 0
    for node in two.nodes:
        source.check_whole(two, node)


# Stands still once its first group is somewhere.
_DRIVER = """
import sys, ray, hoist.ray
address, path, reads = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
def progress(node, group):
    print("begun", flush=True)
    sys.stdin.read()
hoist.ray.load(path, "m", source_node=reads, window=1, progress=progress)
"""


def test_of_two_drivers_the_first_is_killed(two, tmp_path):
    """The second one waits for it, and has all that the first one had."""
    source = Source("files", tmp_path)
    first, reads = two.nodes
    with subprocess.Popen(
            [sys.executable, "-c", _DRIVER, two.cluster.address,
             source.source, reads], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as driver:
        try:
            until(lambda: driver.stdout.readline() == "begun\n")
            assert open_readers(reads) == 1
            second = hoist.ray.start_load(source.source, "m",
                                          source_node=first)
            assert not second.done
        finally:
            driver.kill()
    report = second.result(60)
    assert set(report.nodes) == set(two.nodes)
    # One of them had the first group, at least.
    assert report.sent_bytes < 2 * report.read_bytes
    until(lambda: open_readers(reads) == 0)
    for node in two.nodes:
        source.check_whole(two, node)


def test_a_reading_is_closed_after_what_it_reads(two, tmp_path):
    """A load that is cancelled closes what another call is reading."""
    reads = two.nodes[1]
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    groups = arrays(3)

    def source():
        yield groups[0]
        with open(fifo, encoding="utf-8") as file:
            file.read()
        yield from groups[1:]

    agent = _nodes.find([reads])[0].agent
    with _turn.turn("m", threading.Event()) as mine:
        ray.get(agent.open.remote("load", source, "block", 20.0, mine))

        def read() -> list[Any]:
            return agent.read.options(num_returns=2).remote("load")

        assert ray.get(read()[0]).name == "g0"
        second = read()
        with open(fifo, "w", encoding="utf-8"):  # It is waiting for this.
            closing = agent.close.remote("load")
            until(lambda: open_readers(reads) == 0)
        assert ray.get(closing, timeout=60) is None
        head, image = ray.get(second)
        assert head.name == "g1"
        assert image.tobytes() == groups[1][1]["w"].tobytes()
        with pytest.raises(hoist.Unavailable, match="begun anew"):
            ray.get(read()[0])
