"""An engine's processed weights, handed to hoistd by several threads: others
find all of them, or none."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from deaths import start_again  # noqa: E402
from failing import drain  # noqa: E402
from hoist.serving._published import find, publish  # noqa: E402
from real_daemon import MIB  # noqa: E402
from torch import nn  # noqa: E402

LAYERS = 12  # Of 1 MiB.


def layers(count=LAYERS):
    return nn.Sequential(*(nn.Linear(512, 512, bias=False)
                           for _ in range(count)))


def assert_whole(session, count):
    model, manifest = find(session, "name")
    assert len(manifest.stored) == count
    assert len(model) == count + 1


def test_a_full_host_is_told_and_what_was_left_makes_room(make_hoistd):
    make_hoistd(host=8 * MIB)
    with hoist.connect() as session:
        with pytest.raises(hoist.ResourceExhausted):
            publish(session, "name", {}, layers(), deadline=1)
        assert find(session, "name") is None
        publish(session, "name", {}, layers(4), deadline=10)
        assert_whole(session, 4)


@pytest.fixture
def between_groups(monkeypatch):
    """between_groups(session, act): before the sixth group, so some are there."""
    def set_up(session, act):
        given, calls = session.publish, itertools.count(1)

        def publish_one(*of, **options):
            if next(calls) == LAYERS // 2:
                act()
            return given(*of, **options)

        monkeypatch.setattr(session, "publish", publish_one)

    return set_up


def test_what_has_begun_is_published_while_hoistd_drains(make_hoistd,
                                                         between_groups):
    daemon = make_hoistd()
    with hoist.connect() as session:
        between_groups(session, lambda: drain(daemon))
        publish(session, "name", {}, layers(), deadline=10)
        assert_whole(session, LAYERS)


def test_a_dead_hoistd_is_told_and_its_successor_takes_all(make_hoistd,
                                                           between_groups):
    daemon, module = make_hoistd(), layers()
    with hoist.connect() as session:
        between_groups(session, daemon.kill)
        with pytest.raises(hoist.Unavailable):
            publish(session, "name", {}, module, deadline=10)
    start_again(daemon)
    with hoist.connect() as session:
        assert find(session, "name") is None
        publish(session, "name", {}, module, deadline=10)
        assert_whole(session, LAYERS)
