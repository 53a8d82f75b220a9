"""Engines whose weights leave the device while they are idle."""

from __future__ import annotations

import pytest
from conftest import MIB, Refused, make_llama
from real_daemon import until

pytest.importorskip("vllm")

IDLE = {"idle_after": 0.3}


def test_an_idle_engine_holds_nothing_of_the_device_until_its_next_step(
        start, hoistd, disk_tokens):
    engine = start(model_loader_extra_config=IDLE)

    def rests() -> bool:
        return hoistd.tier("DEVICE")["leased_bytes"] == 0

    (before,) = engine.facts()
    for _ in range(2):
        assert engine.ask("generate") == disk_tokens
        until(rests)
    hoistd.kill()  # While they rest.
    hoistd.start()
    assert engine.ask("generate") == disk_tokens
    (after,) = engine.facts()
    assert after["addresses"] == before["addresses"]
    assert after["shared"] == after["bytes"]
    engine.ask("ask", what="hoist_suspend")
    assert rests()
    engine.ask("ask", what="hoist_resume")
    assert engine.ask("generate") == disk_tokens
    until(rests)


@pytest.mark.hoistd(pool=32 * MIB, host=96 * MIB)
def test_engines_take_turns_on_a_device_for_one(start, hoistd, tmp_path):
    engines = [start(make_llama(tmp_path / f"llama{seed}", seed=seed),
                     model_loader_extra_config=IDLE) for seed in range(2)]
    first = [engine.ask("generate") for engine in engines]
    assert first[0] != first[1]
    for _ in range(2):
        assert [engine.ask("generate") for engine in engines] == first


def test_a_budget_is_refused(start):
    with pytest.raises(Refused, match="exclude each other"):
        start(model_loader_extra_config={**IDLE, "budget": 0.5})


def test_the_workers_of_two_ranks_rest(start, hoistd):
    engine = start(model_loader_extra_config=IDLE, tensor_parallel_size=2)
    first = engine.ask("generate")
    for _ in range(2):
        assert engine.ask("generate") == first
        until(lambda: hoistd.tier("DEVICE")["leased_bytes"] == 0)
