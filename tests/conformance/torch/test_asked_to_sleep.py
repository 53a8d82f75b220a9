"""`hoistctl sleep` and `hoistctl wake` of a session, and idle.after."""

from __future__ import annotations

import json
import logging
import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from real_daemon import MIB, Refused, until  # noqa: E402
from stacks import WIDTH, assert_right, stack, wanted  # noqa: E402

# A Stack of width 256 has 12.7 MiB: two do not fit.
SIZES = {"pool": 16 * MIB, "host": 128 * MIB}
pytestmark = [pytest.mark.real_time, pytest.mark.hoistd(**SIZES)]
BUDGETS = [None, 0.6]


@pytest.fixture
def x(device):
    return torch.randn(2, WIDTH, device=device)


def is_asleep(model) -> bool:
    stats = hoist.stats(model)
    return not (stats.budget_bytes or stats.bound_groups)


def plans(hoistd) -> list[dict]:
    return json.loads(hoistd.ctl("--json", "plans")).get("plans", [])


def loans(hoistd) -> list[dict]:
    return json.loads(hoistd.ctl("--json", "plans"))["loans"]


def await_sleep(hoistd, *models) -> None:
    """hoistd learns of a plan's end a little later."""
    until(lambda: all(map(is_asleep, models)))
    until(lambda: not plans(hoistd))


def session_of(hoistd) -> str:
    """This process's, by its plan."""
    return plans(hoistd)[0]["session_id"]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_module_sleeps_and_wakes_when_it_is_asked(hoistd, x, budget):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, budget)
    assert_right(model, x, want)
    had = hoist.stats(model).budget_bytes
    session = session_of(hoistd)
    for _ in range(2):
        assert "asked 1 plans" in hoistd.ctl("sleep", session)
        await_sleep(hoistd, model)
        assert "wake" in hoistd.ctl("wake", session)
        until(lambda: not is_asleep(model))
        assert hoist.stats(model).budget_bytes == had
        assert_right(model, x, want)
    hoist.detach(model)


def test_a_sleeping_module_wakes_with_its_next_pass(hoistd, x):
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    hoist.attach(model, 13 * MIB)
    hoistd.ctl("sleep", session_of(hoistd))
    until(lambda: is_asleep(model))
    hoist.attach(other, 13 * MIB)
    assert_right(other, x, others)
    hoist.detach(other)
    assert_right(model, x, want)
    hoist.detach(model)


def test_a_module_that_runs_sleeps_after_its_pass(hoistd, x):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, 0.6)
    began, goes_on = threading.Event(), threading.Event()

    def pause(*_) -> None:
        began.set()
        goes_on.wait()

    hook = model.layers[1].register_forward_hook(pause)
    results = []

    def run() -> None:
        with torch.no_grad():
            results.append(model(x))

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    session = session_of(hoistd)
    hoistd.ctl("sleep", session)
    hoistd.ctl("wake", session)  # It is awake: nothing happens.
    assert plans(hoistd)
    goes_on.set()
    thread.join()
    hook.remove()
    assert_equal_outputs(results[0], want)
    until(lambda: is_asleep(model))
    hoist.detach(model)


def test_a_module_that_is_called_without_a_pause_sleeps(hoistd, x):
    """Each look finds a call on a stack."""
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    assert_right(model, x, want)
    session = session_of(hoistd)
    passes = attachment_of(model).passes
    assert passes.stands
    asleep = []

    def seen(*_) -> None:
        if not asleep:
            hoistd.ctl("sleep", session)
            until(lambda: passes.lending.hooked)
        asleep.append(is_asleep(model))

    hook = model.layers[1].register_forward_hook(seen)
    with torch.no_grad():
        results = [model(x) for _ in range(300) if not any(asleep)]
    hook.remove()
    for result in results:
        assert_equal_outputs(result, want)
    until(lambda: not plans(hoistd) or not is_asleep(model))
    assert hoistd.counters()["lent_bytes_by_admins"]
    hoist.detach(model)


def test_one_that_finds_no_room_stays_asleep_and_says_so(hoistd, x, caplog):
    model, other = stack(0), stack(1)
    want = wanted(model, x)
    hoist.attach(model, 13 * MIB, deadline=1)
    session = session_of(hoistd)
    hoistd.ctl("sleep", session)
    until(lambda: is_asleep(model))
    hoist.attach(other, 13 * MIB)
    with caplog.at_level(logging.WARNING, logger="hoist.nn"):
        hoistd.ctl("wake", session)
        until(lambda: "a module stays asleep" in caplog.text)
    assert is_asleep(model)
    hoist.detach(other)
    assert_right(model, x, want)
    hoist.detach(model)


def refusal(hoistd, *arguments: str) -> str:
    with pytest.raises(Refused) as refused:
        hoistd.ctl(*arguments)
    return str(refused.value.stderr)


def test_a_session_without_a_plan_that_gives_way_is_refused(hoistd):
    with hoist.connect() as session:
        number = str(session.id)
        assert "has no plan" in refusal(hoistd, "sleep", number)
        model = session.publish("m", "g", {"w": torch.zeros(1 << 18)})
        with session.set_plan(model, budget=4 * MIB):
            assert "no plan that gives way" in refusal(hoistd, "sleep", number)
        for verb in "sleep", "wake":
            assert "there is no session" in refusal(hoistd, verb, "987654")


def test_an_idle_module_falls_asleep_by_itself(make_hoistd, x):
    hoistd = make_hoistd(**SIZES, extra='[idle]\nafter = "1s"\n')
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    for _ in range(2):
        assert_right(model, x, want)
        await_sleep(hoistd, model)
        loan, = loans(hoistd)
        assert loan["lent"] and loan["cause"] == "CAUSE_IDLE"
    hoist.detach(model)
    until(lambda: not loans(hoistd))


def test_the_next_hoistd_wakes_what_the_last_had_sleep(
        make_hoistd, hoist_keeper, x):
    hoistd = make_hoistd(**SIZES, keeper=hoist_keeper)
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, 0.6)
    session = session_of(hoistd)
    hoistd.ctl("sleep", session)
    await_sleep(hoistd, model)
    hoistd.kill_kept()

    def asked() -> bool:
        try:
            return bool(hoistd.ctl("wake", session))
        except Refused:  # It has not resumed yet.
            return False

    until(asked)
    until(lambda: not is_asleep(model))
    assert_right(model, x, want)
    hoist.detach(model)


def test_a_module_sleeps_and_wakes_while_hoistd_drains(hoistd, x):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    session = session_of(hoistd)
    with pytest.raises(Refused):  # Something is leased.
        hoistd.ctl("drain")
    try:
        hoistd.ctl("sleep", session)
        await_sleep(hoistd, model)
        hoistd.ctl("wake", session)
        until(lambda: not is_asleep(model))
    finally:
        hoistd.ctl("drain", "--resume")
    assert_right(model, x, want)
    hoist.detach(model)


def test_a_budget_of_ones_own_keeps_an_idle_module_awake(make_hoistd, x):
    hoistd = make_hoistd(**SIZES, extra='[idle]\nafter = "1s"\n')
    model, other = stack(0), stack(1)
    hoist.attach(model, 6 * MIB)
    hoist.attach(other)
    until(lambda: is_asleep(other))  # It was planned after the other.
    until(lambda: len(plans(hoistd)) == 1)
    assert not is_asleep(model)
    hoist.detach(model)
    hoist.detach(other)
