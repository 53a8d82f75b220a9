"""What a plan is asked for, from hoist.attach and hoist.load to hoistd."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import attached  # noqa: E402
from real_daemon import write_safetensors  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")

TERMS = {"weight": 3, "priority": -2, "max_bytes_per_second": 1 << 30,
         "stage_deadline": 45.0}
# As hoistctl has it: without stage_deadline, which is no share of the link.
SHARE = {"weight": 3, "priority": -2, "max_bytes_per_second": str(1 << 30)}


def shares(hoistd) -> list[dict]:
    plans = json.loads(hoistd.ctl("plans", "--json")).get("plans", [])
    return [plan["share"] for plan in plans]


@torch.no_grad()
def test_terms_reach_the_plan_and_stay_when_it_is_made_anew(device, hoistd):
    model = Stack(4).to(device)
    x = numbers(2, WIDTH).to(device)
    expected = model(x)
    with attached(model, 0.9, **TERMS):
        assert shares(hoistd) == [SHARE]
        assert torch.equal(model(x), expected)  # Its order is learned.
        assert shares(hoistd) == [SHARE]
        hoist.set_budget(model, 0.6)
        assert shares(hoistd) == [SHARE]
        assert torch.equal(model(x), expected)
        hoist.check(model)


@pytest.mark.hoistd(host=33 << 20)  # One that nobody is connected to by now.
def test_a_worker_is_shown_under_the_name_that_it_chooses(monkeypatch, hoistd):
    monkeypatch.setenv("HOIST_CLIENT_NAME", "llama-3 of team a")
    with attached(Stack(2)):
        sessions = json.loads(hoistd.ctl("sessions", "--json"))["sessions"]
        assert "llama-3 of team a" in json.dumps(sessions)


@torch.no_grad()
def test_terms_hold_for_what_is_loaded_too(tmp_path, hoistd):
    model = Stack(4)
    write_safetensors(tmp_path / "model.safetensors", {
        name: ("F32", tuple(value.shape), value.numpy().tobytes())
        for name, value in model.state_dict().items()})
    loaded = hoist.load(lambda: Stack(4), tmp_path, budget=0.6, **TERMS)
    try:
        assert shares(hoistd) == [SHARE]
    finally:
        hoist.detach(loaded)


@pytest.mark.parametrize("terms", [
    {"weight": 0}, {"weight": 1001}, {"priority": 11},
    {"max_bytes_per_second": -1}, {"stage_deadline": -1.0}],
    ids=lambda terms: next(iter(terms)))
def test_a_bad_term_is_refused_before_anything_is_handed_over(terms, hoistd):
    before = hoistd.ctl("models", "--json")
    model = Stack(2)
    with pytest.raises(hoist.InvalidArgument, match=next(iter(terms))):
        hoist.attach(model, 0.9, **terms)
    assert hoistd.ctl("models", "--json") == before
    with pytest.raises(TypeError, match="cap"):
        hoist.attach(model, 0.9, cap=1)
    assert type(next(model.parameters())) is torch.nn.Parameter
