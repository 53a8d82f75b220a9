"""Less device memory than the model, and none at all."""

from __future__ import annotations

import pytest
from conftest import Refused
from real_daemon import MIB

pytest.importorskip("vllm")


def test_with_seven_tenths_of_the_model_tokens_are_the_same(start, hoistd,
                                                            disk_tokens):
    engine = start(model_loader_extra_config={"budget": 0.7})
    assert engine.ask("generate") == disk_tokens
    (facts,) = engine.facts()
    assert hoistd.tier("DEVICE")["used_bytes"] <= 0.7 * facts["bytes"] + 4 * MIB
    assert hoistd.counters()["host_to_device_bytes"] > facts["bytes"]


def test_compiled_tokens_are_those_of_the_compiled_model(start, hoistd):
    with start(enforce_eager=False) as whole:
        want = whole.ask("generate")
    engine = start(enforce_eager=False,
                   model_loader_extra_config={"budget": 0.7})
    assert engine.ask("generate") == want


def test_a_budget_below_what_is_outside_of_layers_says_what_would_do(start):
    engine = start.begin(model_loader_extra_config={"budget": "2MiB"})
    with pytest.raises(Refused, match="ResourceExhausted.*two layers"):
        engine.answer()


def test_asleep_nothing_of_hoistd_is_left_and_awake_all_is_as_it_was(
        start, hoistd, disk_tokens):
    engine = start()
    assert engine.ask("generate") == disk_tokens
    (before,) = engine.facts()
    assert before["maps"]
    engine.ask("ask", what="hoist_suspend")
    (asleep,) = engine.facts()
    assert asleep["maps"] == [] and asleep["fds"] == []
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0
    engine.ask("ask", what="hoist_resume")
    (awake,) = engine.facts()
    assert awake["addresses"] == before["addresses"]
    assert awake["shared"] == awake["bytes"] and awake["dirty"] == 0
    assert engine.ask("generate") == disk_tokens


def test_who_was_asleep_when_hoistd_died_wakes_up_with_the_next_one(
        start, hoistd, disk_tokens):
    engine = start()
    engine.ask("ask", what="hoist_suspend")
    hoistd.kill()
    hoistd.start()
    engine.ask("ask", what="hoist_resume")
    assert engine.ask("generate") == disk_tokens
