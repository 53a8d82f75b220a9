"""The same in clusters of their own, which have less room or end."""

from __future__ import annotations

import os

import pytest
from conftest import start
from real_daemon import MIB, until
from test_from_files import kinds, wanted
from test_load import made, staged

import hoist
import hoist.ray


def test_it_may_be_larger_than_that_nodes_host_tier(tmp_path):
    world = start(1, host=16 * MIB)
    try:
        first, other = *world.nodes, world.add()
        world.cluster.wait_for_nodes()
        path, tensors = made(tmp_path)
        with pytest.raises(hoist.ResourceExhausted, match=f"node {first}"):
            hoist.ray.load(path, "published", deadline=3)
        assert not hoist.ray.forget("published")
        assert set(hoist.ray.load(path, "m", from_files=True).nodes) == {
            first, other}
        assert staged(world, first, "m") == wanted(tensors)
        assert staged(world, other, "m") == wanted(tensors)
    finally:
        world.stop()


def test_a_hoistd_that_begins_anew_is_told_of_them(two, tmp_path):
    path, tensors = made(tmp_path)
    first, second = two.nodes
    hoist.ray.load(path, "m", from_files=True)
    hoistd = two.hoistds[first]
    hoistd.kill()
    os.unlink(hoistd.socket)
    hoistd.start()
    until(lambda: os.path.exists(hoistd.socket))
    until(lambda: kinds(two).get(first) is False)
    assert staged(two, first, "m") == wanted(tensors)
    assert hoist.ray.load(path, "m", from_files=True).sent_bytes == 0
