"""What ends in the middle costs its own part alone."""

from __future__ import annotations

import os
import pathlib
import signal

import numpy as np
import pytest
import ray
from conftest import World, start
from real_daemon import MIB, until
from test_load import agents_pid, arrays, names, staged

import hoist
import hoist.ray
from hoist.ray import _nodes

GROUPS = 4


def want() -> dict[str, bytes]:
    """The last group's tensor is what is left of one name."""
    return {"w": arrays(GROUPS)[-1][1]["w"].tobytes()}


def load_through(do) -> hoist.ray.NodesFailed | None:
    """`do` is called once the first group is on both nodes."""
    there = set()

    def groups() -> object:
        first, *rest = arrays(GROUPS)
        yield first
        until(lambda: len(there) == 2)
        do()
        yield from rest

    try:
        hoist.ray.load(groups(), "m", window=1, deadline=20,
                       progress=lambda node, _: there.add(node))
    except hoist.ray.NodesFailed as error:
        return error
    return None


def check_cost(two: World, failed: hoist.ray.NodesFailed | None,
               victim: str) -> None:
    well = [node for node in two.nodes if node != victim]
    assert failed is not None
    assert set(failed.errors) == {victim}
    error = failed.errors[victim]
    assert isinstance(error, hoist.Unavailable) and victim in str(error)
    assert failed.report.nodes == tuple(well)
    for node in well:
        assert staged(two, node, "m") == want()


def test_an_agent_is_killed(two):
    """Ray makes it anew; the next load goes on."""
    victim = two.nodes[1]
    pid = agents_pid(victim)

    def kill():
        os.kill(pid, signal.SIGKILL)
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists())

    failed = load_through(kill)
    if failed is not None:  # It was called before Ray had made it anew.
        check_cost(two, failed, victim)
        until(lambda: not _nodes.ask(_nodes.find([victim]), "ready")[1])
        again = hoist.ray.load(arrays(GROUPS), "m")
        assert again.sent_bytes < GROUPS * MIB
    assert agents_pid(victim) != pid
    for node in two.nodes:
        assert staged(two, node, "m") == want()


def test_a_hoistd_is_killed(two):
    victim = two.nodes[1]
    check_cost(two, load_through(two.hoistds[victim].kill), victim)
    hoistd = two.hoistds[victim]
    os.unlink(hoistd.socket)
    hoistd.start()
    until(lambda: os.path.exists(hoistd.socket))
    assert hoist.ray.load(arrays(GROUPS), "m").sent_bytes == GROUPS * MIB
    assert staged(two, victim, "m") == want()


def test_a_raylet_is_killed(two):
    victim = two.nodes[1]

    def kill():
        two.cluster.remove_node(two.raylets[victim], allow_graceful=False)
        until(lambda: victim not in _nodes.alive())

    check_cost(two, load_through(kill), victim)


@pytest.mark.parametrize("what", ["raylet", "agent"])
def test_those_whom_it_serves_get_theirs_from_the_one_before(what):
    """The first of a chain of three ends, with much of it on its way."""
    world = start(4)
    try:
        reads, *others = world.nodes
        victim, *rest = sorted(others)
        there = set()

        def groups():
            first, *later = arrays(24)
            yield first
            until(lambda: len(there) == 4)
            if what == "raylet":
                world.cluster.remove_node(world.raylets[victim],
                                          allow_graceful=False)
            else:
                os.kill(agents_pid(victim), signal.SIGKILL)
            yield from later

        try:
            report = hoist.ray.load(groups(), "m", deadline=30,
                                    progress=lambda node, _: there.add(node))
        except hoist.ray.NodesFailed as failed:
            assert set(failed.errors) == {victim}
            report = failed.report
        assert set(report.nodes) >= {reads, *rest}
        want = {"w": arrays(24)[-1][1]["w"].tobytes()}
        for node in (reads, *rest):
            assert staged(world, node, "m") == want
    finally:
        world.stop()


def test_the_node_that_reads_is_killed(two):
    source = two.nodes[1]

    two_groups = arrays(2)  # This file cannot be imported there.

    def groups():
        yield from two_groups
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(hoist.Unavailable, match=source):
        hoist.ray.load(groups, "m", source_node=source, window=1, deadline=20)
    # What came stays for the next load, from whichever source.
    until(lambda: not _nodes.ask(_nodes.find([source]), "ready")[1])
    report = hoist.ray.load(arrays(GROUPS), "m")
    assert report.sent_bytes <= 2 * (GROUPS - 1) * MIB
    for node in two.nodes:
        assert staged(two, node, "m") == want()


def test_a_node_without_room_keeps_nothing():
    world = start(1)
    try:
        small = world.add(host=4 * MIB)
        with pytest.raises(hoist.ray.NodesFailed) as failed:
            hoist.ray.load(arrays(6), "m", deadline=5)
        error = failed.value.errors[small]
        assert isinstance(error, hoist.ResourceExhausted)
        assert small in str(error) and failed.value.code == error.code
        assert names(small) == []
        assert names(world.nodes[0]) == ["m"]
    finally:
        world.stop()


def test_an_agent_holds_no_weights(two):
    """48 MiB come through it, and no more than a group of 1 MiB stays."""
    node = two.nodes[1]
    pid = agents_pid(node)

    def own_bytes() -> int:
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(text.split("RssAnon:")[1].split()[0]) << 10

    hoist.ray.load(arrays(2, seed=1), "warm")
    before = own_bytes()
    hoist.ray.load(arrays(48), "m")
    assert own_bytes() - before < 16 * MIB
    assert not ray.get(_nodes.find([node])[0].agent.contents.remote("none"))
    assert np.frombuffer(staged(two, node, "m")["w"], np.uint8).size == MIB
