"""Who waits for whom: passes, backwards, and the engine's own threads.

On a CPU torch runs a backward's nodes in the thread that calls it, so what its
threads for GPUs do is played here.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator

import pytest

pytest.importorskip("torch")

from hoist.nn._run import turns as turns_module  # noqa: E402


class Played(threading.Thread):
    """Runs what it is given, one after another."""

    def __init__(self, in_backward: bool, called_here: bool = False) -> None:
        super().__init__(daemon=True)
        self.in_backward = in_backward
        self._called_here = called_here
        self._work: list[Callable[[], Any]] = []
        self._there = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        if self._called_here:
            _engine_run_backward(self._loop)
        else:
            self._loop()

    def _loop(self) -> None:
        while True:
            self._there.acquire()
            work = self._work.pop(0)
            work()
            self._done.release()

    def begin(self, work: Callable[[], Any]) -> None:
        self._work.append(work)
        self._there.release()

    def has_done(self, seconds: float = 60) -> bool:
        return self._done.acquire(timeout=seconds)

    def waits_for(self, turns: turns_module.Turns) -> bool:
        """Nobody else does."""
        while not turns._changed._waiters:  # type: ignore[attr-defined]
            if self.has_done(0.001):
                return False
        return True

    def do(self, work: Callable[[], Any]) -> None:
        self.begin(work)
        assert self.has_done()


def _engine_run_backward(work: Callable[[], Any]) -> None:
    """As torch's, by its name."""
    work()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes threads; those with in_backward run a node."""
    monkeypatch.setattr(turns_module, "is_in_backward", lambda: getattr(
        threading.current_thread(), "in_backward", False))
    yield Played


@pytest.fixture
def turns() -> turns_module.Turns:
    return turns_module.Turns(lambda: [])


def test_a_pass_waits_for_a_backward_which_another_thread_ends(played, turns):
    engine, other = played(in_backward=True), played(in_backward=False)
    engine.do(turns.begin_backward)
    other.begin(turns.take)
    assert other.waits_for(turns)
    turns.end_backward()
    assert other.has_done()
    other.do(turns.give)


def test_a_backward_waits_for_a_pass(played, turns):
    engine, other = played(in_backward=True), played(in_backward=False)
    with turns.between():
        engine.begin(turns.begin_backward)
        assert engine.waits_for(turns)
    assert engine.has_done()
    turns.end_backward()
    other.do(turns.take)
    other.do(turns.give)


def test_what_a_backward_computes_again_takes_and_gives(played, turns):
    engine = played(in_backward=True)
    engine.do(turns.begin_backward)
    engine.do(turns.take)
    seen: list[bool] = []
    engine.do(lambda: seen.append(turns.is_mine()))
    engine.do(turns.give)
    assert seen == [True] and turns.held == 0
    turns.end_backward()
    turns.take()
    assert turns.is_mine()
    turns.give()


def test_two_backwards_share_a_thread_of_the_engines(played, turns):
    engine = played(in_backward=True)
    engine.do(turns.begin_backward)
    engine.do(turns.begin_backward)
    turns.end_backward()
    other = played(in_backward=False)
    other.begin(turns.take)
    assert other.waits_for(turns)
    turns.end_backward()
    assert other.has_done()


def test_threads_of_the_engine_do_not_wait_for_one_another(played, turns):
    """Each may have nodes that the other's backward waits for."""
    one, another = played(in_backward=True), played(in_backward=True)
    one.do(turns.begin_backward)
    another.do(turns.begin_backward)
    turns.end_backward()
    turns.end_backward()


def test_backwards_that_run_where_they_are_called_take_turns(played, turns):
    one, another = (played(in_backward=True, called_here=True)
                    for _ in range(2))
    one.do(turns.begin_backward)
    another.begin(turns.begin_backward)
    assert another.waits_for(turns)
    one.do(turns.end_backward)
    assert another.has_done()
    another.do(turns.end_backward)


def test_the_engine_goes_on_within_the_pass_that_waits_for_it(played, turns):
    """A forward that goes backward within itself: on a GPU the caller has the
    turn, and waits."""
    engine = played(in_backward=True)
    done = threading.Lock()
    done.acquire()

    def call_a_backward() -> None:
        turns.take()
        waits(done)
        turns.give()

    # Whose innermost frame is the engine's, as it waits in C.
    def waits(lock: Any) -> None:
        lock.acquire()

    waits.__code__ = waits.__code__.replace(co_name="_engine_run_backward")
    caller = threading.Thread(target=call_a_backward, daemon=True)
    caller.start()
    engine.do(turns.begin_backward)
    engine.do(turns.take)
    seen: list[bool] = []
    engine.do(lambda: seen.append(turns.is_mine()))
    engine.do(turns.give)
    assert seen == [True]
    engine.do(turns.end_backward)
    done.release()
    caller.join(60)
    assert not caller.is_alive()
    turns.take()
    turns.give()
    assert turns.held == 0


def test_nobody_takes_over_what_a_backward_holds(played, turns, monkeypatch):
    """Its thread runs none of the modules, and is not gone for that."""
    looked = threading.Semaphore(0)
    look = turns._take_over
    monkeypatch.setattr(turns, "_take_over",
                        lambda: (look(), looked.release()))
    engine, other = played(in_backward=True), played(in_backward=False)
    engine.do(turns.begin_backward)
    other.begin(turns.take)
    for _ in range(2):
        assert looked.acquire(timeout=60)
    assert other.waits_for(turns) and not turns.taken_over
    turns.end_backward()
    assert other.has_done()


def test_who_waits_for_long_says_for_whom(played, turns, monkeypatch, caplog):
    """The owner may wait for it by an event, which no stack shows."""
    monkeypatch.setattr(turns_module, "_LONG", 0.0)
    looked = threading.Semaphore(0)
    look = turns._take_over
    monkeypatch.setattr(turns, "_take_over",
                        lambda: (look(), looked.release()))
    owner, other = played(in_backward=False), played(in_backward=False)
    owner.name = "the-one-that-runs"
    go_on = threading.Event()
    owner.do(turns._enter)
    owner.begin(go_on.wait)
    other.begin(turns.take)
    for _ in range(3):
        assert looked.acquire(timeout=60)
    said = [record.getMessage() for record in caplog.records
            if record.name == "hoist.nn"]
    assert len(said) == 1 and "hoist.set_budget" in said[0]
    assert "'the-one-that-runs' (in " in said[0]
    go_on.set()
    assert owner.has_done()
    owner.do(turns._leave)
    assert other.has_done()
    other.do(turns.give)
