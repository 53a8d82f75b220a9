"""A load or attach that fails leaves no model in hoistd that was not there."""

from __future__ import annotations

import pathlib
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from failing import fail, models_in, watched  # noqa: E402
from models import Stack  # noqa: E402
from real_daemon import MIB, until  # noqa: E402

HALF = {"storage_dtype": torch.float16, "skip": ()}


@pytest.fixture
def file(tmp_path) -> pathlib.Path:
    torch.manual_seed(1)
    safetensors.save_file(Stack(4).state_dict(), tmp_path / "m.safetensors")
    return tmp_path / "m.safetensors"


def load(file: pathlib.Path, budget: Any = 1.0, **options: Any) -> Any:
    return hoist.load(lambda: Stack(4), file, budget, **options)


def attach(file: pathlib.Path, budget: Any = 1.0, **options: Any) -> Any:
    return hoist.attach(Stack(4), budget, **options)


# Of a call: the file's model, its conversion, its casts; published groups.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "files": (load, {}), "converted": (load, {"dtype": torch.float16}),
    "cast": (load, HALF), "attached": (attach, {}),
    "attached cast": (attach, HALF), "by group": (attach, {
        "hand_over": "by_group"})}
each_call = pytest.mark.parametrize("make, options", CALLS.values(), ids=CALLS)


@each_call
def test_a_budget_that_is_too_small_leaves_nothing(hoistd, file, make, options):
    with hoist.connect(hoistd.socket) as session:
        with pytest.raises(hoist.ResourceExhausted):
            make(file, budget=1, session=session, **options)
        until(lambda: not models_in(hoistd))
        module = make(file, session=session, **options)
        assert models_in(hoistd) >= {hoist.stats(module).model}


@each_call
def test_what_was_there_stays(hoistd, file, make, options):
    """As a copy, for the next load, whoever asked for it."""
    torch.manual_seed(1)
    hoist.detach(make(file, **options))
    there = models_in(hoistd)
    torch.manual_seed(1)
    with hoist.connect(hoistd.socket) as session:
        with pytest.raises(hoist.ResourceExhausted):
            make(file, budget=1, session=session, **options)
        assert {session.model(name).name for name in there} == there != set()
    assert models_in(hoistd) == there


@each_call
def test_what_another_session_uses_stays(hoistd, monkeypatch, file, make,
                                         options):
    found = []
    with hoist.connect(hoistd.socket) as other, watched(monkeypatch) as calls:
        def use_and_fail() -> None:
            found.extend(map(other.model, models_in(hoistd)))
            fail()

        calls.act_at("hoist_set_plan", use_and_fail)
        with hoist.connect(hoistd.socket) as session:
            with pytest.raises(hoist.ResourceExhausted, match="no space"):
                make(file, session=session, **options)
            for one in found:
                session.model(one.name)
        assert models_in(hoistd) == {one.name for one in found} != set()
        with other.host_image(found[0].groups[0]) as image:
            image.load(10)


@pytest.mark.real_time
@each_call
def test_under_a_keeper_hoistds_death_changes_nothing(
        make_hoistd, hoist_keeper, monkeypatch, file, make, options):
    """What the next hoistd took over is forgotten there."""
    daemon = make_hoistd(keeper=hoist_keeper, pool=16 * MIB, host=32 * MIB)
    with watched(monkeypatch) as calls:
        def die_and_fail() -> None:
            assert models_in(daemon)
            daemon.kill_kept()
            fail()

        calls.act_at("hoist_set_plan", die_and_fail)
        with pytest.raises(hoist.HoistError):
            make(file, **options)
        until(lambda: not models_in(daemon))
