"""A module's link with hoistd, over sessions that end when they are told to."""

from __future__ import annotations

import gc
import os
import threading
import types

import pytest

pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.nn._store import link as link_module  # noqa: E402
from hoist.nn._store.link import Link  # noqa: E402


class Node:
    """Where sessions are made: with a hoistd that is there, or not."""

    def __init__(self) -> None:
        self.up = True
        self.instance = 0
        self.tries = 0

    def restart(self) -> None:
        self.instance += 1
        self.up = True


class FakeSession:
    def __init__(self, node: Node) -> None:
        self.node, self.instance = node, node.instance
        self.closed = False

    def check(self) -> None:
        if self.closed:
            raise hoist.FailedPrecondition("closed")
        if not self.node.up or self.instance != self.node.instance:
            raise hoist.Unavailable("connect again")

    def reconnect(self) -> FakeSession:
        self.node.tries += 1
        if not self.node.up:
            raise hoist.Unavailable("nobody listens")
        return FakeSession(self.node)


class Reader:
    def __init__(self) -> None:
        self.moved: list[FakeSession] = []
        self.raises: list[BaseException] = []

    def move(self, session):
        if self.raises:
            raise self.raises.pop(0)
        self.moved.append(session)
        return f"model of {session.instance}"


@pytest.fixture
def now(monkeypatch):
    """A clock that only sleeping moves."""
    clock = types.SimpleNamespace(at=100.0, slept=[], then=lambda: None)

    def passes(seconds: float) -> None:
        clock.slept.append(seconds)
        clock.at += seconds
        clock.then()

    monkeypatch.setattr(link_module, "time", types.SimpleNamespace(
        monotonic=lambda: clock.at, sleep=passes))
    return clock


def linked(deadline: float = 4.0):
    node, reader = Node(), Reader()
    link = Link(FakeSession(node), deadline)
    link.attached(reader, "model of 0")
    return node, reader, link


def test_while_hoistd_lives_nothing_happens(now):
    node, reader, link = linked()
    place = link.place
    link.renew()
    link.check()
    assert link.lives() and link.place is place
    assert not reader.moved and node.tries == 0 and not now.slept


def test_a_hoistd_that_is_there_again_is_taken(now):
    node, reader, link = linked()
    node.restart()
    assert not link.lives()
    with pytest.raises(hoist.Unavailable, match="attaches the module again"):
        link.check()
    link.renew()
    link.check()
    assert [one.instance for one in reader.moved] == [1]
    assert link.place.session is link.session is reader.moved[0]
    assert link.place.original == "model of 1"
    assert not now.slept


def test_it_waits_with_pauses_that_grow_and_not_beyond_its_deadline(now):
    node, _, link = linked(4.0)
    node.up = False
    with pytest.raises(hoist.Unavailable, match="for 4 s once"):
        link.renew()
    assert now.at == pytest.approx(104.0)
    assert now.slept[1] == 2 * now.slept[0] and max(now.slept) <= 0.5
    assert node.tries == len(now.slept) + 1


def test_the_deadline_is_of_the_outage_not_of_each_call(now):
    node, reader, link = linked(4.0)
    node.up = False
    with pytest.raises(hoist.Unavailable):
        link.renew()
    before, now.slept[:] = node.tries, []
    for _ in range(5):
        with pytest.raises(hoist.Unavailable):
            link.renew()
    assert node.tries == before + 5 and not now.slept
    node.restart()
    link.renew()
    node.up = False  # The next outage is waited for again.
    with pytest.raises(hoist.Unavailable):
        link.renew()
    assert sum(now.slept) == pytest.approx(4.0)
    assert len(reader.moved) == 1


def test_a_hoistd_that_comes_while_it_waits_is_taken(now):
    node, reader, link = linked(4.0)
    node.up = False
    now.then = lambda: node.restart() if len(now.slept) == 3 else None
    link.renew()
    assert len(now.slept) == 3 and link.place.session is reader.moved[0]


def test_without_waiting_it_tries_once(now):
    node, _, link = linked()
    node.up = False
    with pytest.raises(hoist.Unavailable):
        link.renew(wait=False)
    assert node.tries == 1 and not now.slept


def test_no_deadline_is_the_plans(now):
    assert linked(0.0)[2].wait == link_module.STAGE_DEADLINE == 60.0


@pytest.mark.parametrize("error", [hoist.DataLoss("other files"),
                                   hoist.NotFound("gone"),
                                   hoist.ResourceExhausted("no space")])
def test_weights_that_are_not_found_are_told_at_once(now, error):
    node, reader, link = linked()
    place = link.place
    node.restart()
    reader.raises = [error]
    with pytest.raises(type(error), match=str(error)):
        link.renew()
    assert not now.slept and link.place is place and not link.lives()
    link.renew()  # The next call tries again.
    assert link.lives() and link.place is not place


def test_a_hoistd_that_ends_again_meanwhile_is_waited_for(now):
    node, reader, link = linked()
    node.restart()
    reader.raises = [hoist.Unavailable("gone again")]
    link.renew()
    assert len(now.slept) == 1 and link.lives()


def test_a_session_that_was_closed_is_not_made_anew_but_for_detach(now):
    _, reader, link = linked()
    link.session.closed = True
    with pytest.raises(hoist.FailedPrecondition, match="closed"):
        link.renew()
    assert not reader.moved
    error = hoist.FailedPrecondition("closed")
    assert link.explained(error, link.session) is error
    link.renew(closed=True)
    assert reader.moved and link.lives()


def test_the_child_of_a_fork_does_not_connect(now, monkeypatch):
    _, reader, link = linked()
    link.session.closed = True
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(hoist.FailedPrecondition):
        link.renew(closed=True)
    assert not reader.moved


def test_errors_are_explained_by_the_session_they_are_of(now):
    node, _, link = linked()
    before = link.session
    other = hoist.ResourceExhausted("no space")
    assert link.explained(other, before) is other
    node.restart()
    link.renew()
    assert link.explained(other, link.session) is other
    told = link.explained(other, before)
    assert isinstance(told, hoist.Unavailable) and "has ended" in str(told)


def test_weights_of_a_module_that_is_gone_have_nowhere_to_come_from(now):
    node, reader, link = linked()
    node.restart()
    del reader
    gc.collect()
    with pytest.raises(hoist.Unavailable, match="is gone"):
        link.renew()
    assert not now.slept and node.tries == 0


def test_threads_connect_once(now):
    node, reader, link = linked()
    node.restart()
    inside, go = threading.Event(), threading.Event()
    move = reader.move

    def slow(session):
        inside.set()
        assert go.wait(60)
        return move(session)

    reader.move = slow
    threads = [threading.Thread(target=link.renew) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(reader.moved) == 1 and node.tries == 1
