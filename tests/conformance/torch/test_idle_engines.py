"""Weights of an idle engine leave the device, and are there in each call."""

from __future__ import annotations

import threading
from typing import Any, Callable

import hoist
import pytest
import torch
from hoist.serving._weights import Find, Weights, device_of
from hoist.vllm._idle import IdleRest
from real_daemon import MIB, RealDaemon, until, write_safetensors

AFTER = 0.05  # Seconds.
SIZE = 3 * MIB


class Engine:
    """A worker, and the weights of the model that `find` finds."""

    def __init__(self, find: Find, device: torch.device) -> None:
        def connect() -> hoist.Session:
            return hoist.connect(connect_deadline=10)

        session = connect()
        self.weights = Weights(
            session, connect, find, {"weight": ("weight", "weight")},
            device_of(session, device), deadline=30)
        weights = self.weights
        self.calls = 0

        class Worker:
            def execute_model(worker, scale: int = 1) -> int:
                self.calls += 1
                return scale * int(weights.tensors["weight"].sum())

            def nested(worker) -> int:
                return worker.execute_model(2)

            def suspend(worker) -> None:
                weights.suspend()

            def resume(worker) -> None:
                weights.resume()

            def check_health(worker) -> bool:
                return weights.suspended

            @staticmethod
            def name() -> str:
                return "worker"

            def _private(worker) -> bool:
                return weights.suspended

        self.idle = IdleRest(AFTER, device)
        self.idle.add(weights)
        self.idle.begin(Worker)
        self.worker = Worker()
        with self.idle.use():
            pass  # The first call, without which nothing rests.

    def rests(self) -> bool:
        return self.weights.suspended


@pytest.fixture
def make_engine(tmp_path: Any, device: torch.device
                ) -> Callable[..., Engine]:
    def make(seed: int = 1) -> Engine:
        path = tmp_path / f"model{seed}"
        path.mkdir()
        write_safetensors(path / "model.safetensors", {
            "weight": ("U8", [SIZE], bytes([seed]) * SIZE)})
        return Engine(lambda session: session.register(
            path, groups={"weight": ["weight"]}), device)

    return make


def leased(daemon: RealDaemon) -> int:
    return int(daemon.tier("DEVICE")["leased_bytes"])


def test_an_idle_engine_leaves_the_device_until_the_next_call(
        hoistd, make_engine):
    engine = make_engine()
    address = engine.weights.tensors["weight"].data_ptr()
    for _ in range(2):
        assert engine.worker.execute_model() == SIZE
        until(engine.rests)
        assert leased(hoistd) == 0
    assert engine.worker.nested() == 2 * SIZE
    assert engine.weights.tensors["weight"].data_ptr() == address


def test_calls_without_weights_wake_nothing(hoistd, make_engine):
    engine = make_engine()
    until(engine.rests)
    assert engine.worker.check_health() and engine.worker._private()
    assert engine.worker.name() == "worker"
    assert engine.rests()


def test_weights_stay_for_as_long_as_any_call_takes(hoistd, make_engine):
    engine = make_engine()
    with engine.idle.use():
        with engine.idle.use():
            pass
        # Another engine's time to rest comes twice meanwhile.
        other = make_engine(2)
        for _ in range(2):
            until(other.rests)
            other.worker.execute_model()
        assert not engine.rests()
    until(engine.rests)


def test_a_suspended_engine_stays_suspended(hoistd, make_engine):
    engine = make_engine()
    until(engine.rests)
    engine.worker.suspend()
    other = make_engine(2)
    until(other.rests)
    with engine.idle.use():
        assert engine.rests()  # The call does not wake it.
    engine.worker.resume()
    assert engine.worker.execute_model() == SIZE
    until(engine.rests)


@pytest.mark.hoistd(pool=4 * MIB)
def test_two_engines_take_turns_on_a_device_for_one(hoistd, make_engine):
    engines = []
    for seed in (1, 2):
        engines.append(make_engine(seed))
        until(engines[-1].rests)
    for _ in range(3):
        for seed, engine in enumerate(engines, 1):
            assert engine.worker.execute_model() == seed * SIZE


@pytest.mark.hoistd(host=4 * MIB)
def test_hoistd_keeps_published_weights_while_they_rest(hoistd, device):
    with hoist.connect() as publisher:
        publisher.publish("own", "weight", {
            "weight": torch.ones(SIZE, dtype=torch.uint8)})
        engine = Engine(lambda session: session.model("own"), device)
    until(engine.rests)
    with hoist.connect() as other:
        more = {"weight": torch.zeros(SIZE, dtype=torch.uint8)}
        with pytest.raises(hoist.ResourceExhausted):
            other.publish("more", "weight", more, deadline=0)
        assert engine.worker.execute_model() == SIZE
        engine.worker.suspend()
        other.publish("more", "weight", more, deadline=0)
    with pytest.raises(hoist.NotFound):
        engine.worker.resume()


def test_a_draining_hoistd_brings_the_weights_back(hoistd, make_engine):
    engine = make_engine()
    until(engine.rests)
    hoistd.ctl("drain")
    try:
        assert engine.worker.execute_model() == SIZE
    finally:
        hoistd.ctl("drain", "--resume")


def test_hoistd_may_start_again_while_the_weights_rest(
        make_hoistd, make_engine):
    daemon = make_hoistd()
    engine = make_engine()
    until(engine.rests)
    daemon.kill()
    daemon.start()
    assert engine.worker.execute_model() == SIZE
    until(engine.rests)
    assert engine.worker.execute_model() == SIZE


def test_a_call_that_finds_no_hoistd_says_so_and_the_next_one_tries_again(
        make_hoistd, make_engine, monkeypatch):
    daemon = make_hoistd()
    engine = make_engine()
    until(engine.rests)
    daemon.kill()
    calls = engine.calls
    monkeypatch.setattr(engine.weights, "_connect",
                        lambda: hoist.connect(connect_deadline=0.1))
    with pytest.raises(hoist.Unavailable):
        engine.worker.execute_model()
    assert engine.calls == calls
    daemon.start()
    monkeypatch.undo()
    monkeypatch.setenv("HOIST_SOCKET", daemon.socket)
    assert engine.worker.execute_model() == SIZE


@pytest.mark.hoistd(pool=4 * MIB)
def test_a_call_that_finds_no_room_says_so_and_the_next_one_tries_again(
        hoistd, make_engine):
    engine = make_engine()
    engine.weights.deadline = 0.5
    until(engine.rests)
    other = make_engine(2)
    with other.idle.use():
        with pytest.raises(hoist.ResourceExhausted):
            engine.worker.execute_model()
    until(other.rests)
    engine.weights.deadline = 30
    assert engine.worker.execute_model() == SIZE


def test_threads_find_the_weights_in_each_call(hoistd, make_engine):
    engine = make_engine()
    found = []

    def call() -> None:
        for _ in range(20):
            found.append(engine.worker.execute_model())
            engine.idle._after = AFTER / 100  # Rests between calls, too.

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [SIZE] * 60
