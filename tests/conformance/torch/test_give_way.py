"""Modules with the default budget give way to others, and come back."""

from __future__ import annotations

import json
import threading
import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist.nn._api.attachment import Attachment  # noqa: E402
from hoist.nn._api.lender import Lender  # noqa: E402
from hoist.nn._plan import lending  # noqa: E402
from passes import hooks_of  # noqa: E402
from real_daemon import MIB, until  # noqa: E402
from stacks import WIDTH, assert_right, stack, wanted  # noqa: E402

# A Stack of width 256 has 12.7 MiB: two do not fit.
pytestmark = [pytest.mark.real_time,
              pytest.mark.usefixtures("nothing_is_compiled"),
              pytest.mark.hoistd(pool=16 * MIB, host=128 * MIB)]


@pytest.fixture
def x(device):
    return torch.randn(2, WIDTH, device=device)


def is_whole(model) -> bool:
    stats = hoist.stats(model)
    return stats.bound_groups == stats.groups


def pauses(began: threading.Event, goes_on: threading.Event):
    def pause(*_) -> None:
        began.set()
        goes_on.wait()

    return pause


def budget_of(model) -> int:
    """hoistd gives lent memory away before the lender's own call returns."""
    return hoist.stats(model).budget_bytes


def test_it_has_hooks_once_hoistd_has_asked(hoistd, x):
    model, other = stack(0), stack(1)
    want = wanted(model, x)
    hoist.attach(model, deadline=10)
    assert_right(model, x, want)
    assert hooks_of(model) == 0
    hoist.attach(other, deadline=10)
    until(lambda: budget_of(model) == 0)
    hoist.detach(other)
    for _ in range(3):
        assert_right(model, x, want)
    assert is_whole(model)
    assert hooks_of(model) == 2, "the root's, which note its use"
    hoist.set_budget(model, 1.0)
    assert_right(model, x, want)
    assert hooks_of(model) == 0, "it is not asked any more"
    hoist.detach(model)


def test_five_models_by_turns_on_a_device_for_one(hoistd, x):
    models = [stack(seed) for seed in range(5)]
    wants = [wanted(model, x) for model in models]
    for model in models:
        hoist.attach(model, deadline=10)
    for _ in range(2):
        for model, want in zip(models, wants):
            for _ in range(3):
                assert_right(model, x, want)
            assert is_whole(model)
    for model in models:
        hoist.check(model)
        hoist.detach(model)


def test_a_budget_is_kept_from_an_idle_module_and_the_module_has_the_rest(
        hoistd, x):
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    hoist.attach(model, deadline=10)
    assert_right(model, x, want)
    assert is_whole(model)
    hoist.attach(other, budget=10 * MIB, deadline=10)
    until(lambda: budget_of(model) == 0)
    assert_right(model, x, want)
    assert 0 < budget_of(model) < 8 * MIB
    assert_right(other, x, others)
    assert budget_of(other) == 10 * MIB, "a budget is no loan"
    hoist.detach(model)
    hoist.detach(other)


def test_an_idle_module_gives_way_to_a_stage_and_comes_back(hoistd, x):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, deadline=10)
    assert_right(model, x, want)
    bytes_ = torch.arange(8 * MIB, dtype=torch.int32).to(torch.uint8)
    with hoist.connect(hoistd.socket, name="stager") as session:
        other = session.publish("other", "all", {"bytes": bytes_})
        with session.stage(other.groups[0], deadline=10) as staged:
            until(lambda: budget_of(model) == 0)
            assert torch.equal(staged["bytes"].torch().cpu(), bytes_)
            (loan,) = json.loads(hoistd.ctl("--json", "plans"))["loans"]
            assert (loan["cause"], loan["to_model"]) == ("CAUSE_NEED", "other")
            assert_right(model, x, want)  # It streams.
            assert 0 < budget_of(model) <= 8 * MIB
            assert torch.equal(staged["bytes"].torch().cpu(), bytes_)
    until(lambda: assert_right(model, x, want) or is_whole(model))
    hoist.check(model)


def test_one_with_a_budget_does_not_give_way(hoistd, x):
    model = hoist.attach(stack(), budget=13 * MIB)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(stack(1), budget=6 * MIB, deadline=1)
    assert budget_of(model) == 13 * MIB
    hoist.set_budget(model, None)
    other = hoist.attach(stack(1), budget=10 * MIB, deadline=10)
    until(lambda: budget_of(model) == 0)
    hoist.detach(model)
    hoist.detach(other)


def test_one_that_is_asked_before_it_has_hooks_gives_way_after(
        hoistd, x, monkeypatch, caplog):
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    planned, asked = threading.Event(), threading.Event()
    install, consider = Attachment.install, Lender.consider

    def install_once_asked(attachment, source):
        if attachment.root is model:
            planned.set()
            assert asked.wait(10)
        install(attachment, source)

    def note(lender):
        try:
            consider(lender)
        finally:
            asked.set()

    monkeypatch.setattr(Attachment, "install", install_once_asked)
    monkeypatch.setattr(Lender, "consider", note)
    thread = threading.Thread(
        target=lambda: hoist.attach(model, deadline=10))
    thread.start()
    assert planned.wait(10)
    hoist.attach(other, deadline=10)
    thread.join()
    until(lambda: budget_of(model) == 0)
    assert_right(other, x, others)
    assert_right(model, x, want)
    assert "does not give way" not in caplog.text
    hoist.detach(model)
    hoist.detach(other)


def test_an_attach_that_fails_once_it_is_asked_says_why(
        hoistd, x, monkeypatch):
    model, other = stack(0), stack(1)
    others = wanted(other, x)
    planned, asked = threading.Event(), threading.Event()
    install, consider = Attachment.install, Lender.consider

    def fail_once_asked(attachment, source):
        if attachment.root is model:
            planned.set()
            assert asked.wait(10)
            raise OSError("no hooks")
        install(attachment, source)

    def note(lender):
        consider(lender)
        asked.set()

    monkeypatch.setattr(Attachment, "install", fail_once_asked)
    monkeypatch.setattr(Lender, "consider", note)
    failed = []

    def attach() -> None:
        try:
            hoist.attach(model, deadline=10)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=attach)
    thread.start()
    assert planned.wait(10)
    hoist.attach(other, deadline=10)
    thread.join()
    assert [str(one) for one in failed] == ["no hooks"]
    assert_right(other, x, others)
    hoist.detach(other)


def test_a_busy_module_keeps_its_memory_and_the_other_streams(hoistd, x):
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    hoist.attach(model, deadline=10)
    assert_right(model, x, want)
    began, goes_on = threading.Event(), threading.Event()
    handle = model.layers[2].norm.register_forward_hook(pauses(began, goes_on))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(assert_right(model, x, want)))
    thread.start()
    began.wait()
    hoist.attach(other, deadline=10)
    assert_right(other, x, others)
    assert is_whole(model)
    assert 0 < budget_of(other) <= 4 * MIB
    goes_on.set()
    thread.join()
    assert found == [None]
    handle.remove()
    hoist.detach(model)
    hoist.detach(other)


def test_it_gives_way_with_the_end_of_its_pass(hoistd, x):
    """The other fits in no part."""
    model, other = stack(0), stack(1)
    want, others = wanted(model, x), wanted(other, x)
    hoist.attach(model, deadline=10)
    assert_right(model, x, want)
    began, goes_on = threading.Event(), threading.Event()
    last = model.layers[-1].down
    handle = last.register_forward_hook(pauses(began, goes_on))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(assert_right(model, x, want)))
    thread.start()
    began.wait()
    second = threading.Thread(target=lambda: hoist.attach(
        other, budget=12 * MIB, deadline=30))
    second.start()
    second.join(1)  # Longer than the wish.
    assert second.is_alive() and is_whole(model)
    goes_on.set()
    thread.join()
    assert found == [None], "the pass had its weights to its end"
    second.join()
    handle.remove()
    until(lambda: budget_of(model) == 0)
    assert_right(other, x, others)
    hoist.set_budget(other, 6 * MIB)
    assert_right(model, x, want)
    hoist.detach(model)
    hoist.detach(other)


def test_a_call_of_a_part_of_it_keeps_it(hoistd, x):
    """Bound modules have no hooks: the call is seen on its thread's stack."""
    model = stack()
    hoist.attach(model, deadline=10)
    with torch.no_grad():
        model(x)
    began, goes_on = threading.Event(), threading.Event()
    layer = model.layers[2]
    handle = layer.norm.register_forward_hook(pauses(began, goes_on))
    with torch.no_grad():
        want = layer.down(torch.relu(layer.up(torch.ones_like(x))))
    found = []

    def run() -> None:
        with torch.no_grad():
            found.append(layer(x))

    thread = threading.Thread(target=run)
    thread.start()
    began.wait()
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(stack(1), budget=12 * MIB, deadline=1)
    assert is_whole(model)
    goes_on.set()
    thread.join()
    handle.remove()
    assert len(found) == 1
    until(lambda: budget_of(model) == 0, seconds=10)  # It had been asked to.
    with torch.no_grad():
        assert_equal_outputs(
            layer.down(torch.relu(layer.up(torch.ones_like(x)))), want)
    hoist.detach(model)


def test_a_module_stays_in_a_process_with_compiled_code(hoistd, x):
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, deadline=10)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_right(compiled, x, want)
    assert is_whole(model)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(stack(1), budget=12 * MIB, deadline=1)
    assert is_whole(model)
    assert_right(compiled, x, want)
    hoist.detach(model)


def test_a_graph_that_is_not_yet_used_keeps_it(hoistd, x):
    model = stack()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    twin = stack()
    hoist.attach(model, deadline=10)
    x.requires_grad_(True)
    want, = torch.autograd.grad(twin.to(x.device)(x).sum(), x)
    output = model(x)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(stack(1), budget=12 * MIB, deadline=1)
    found, = torch.autograd.grad(output.sum(), x)
    assert_equal_outputs(found, want)
    hoist.detach(model)


def test_a_weight_that_is_referenced_keeps_its_bytes(hoistd, x):
    model = stack()
    with torch.no_grad():
        want = model.layers[0].up.weight.clone()
    hoist.attach(model, deadline=10)
    with torch.no_grad():
        model(x)
    kept = model.layers[0].up.weight
    other = hoist.attach(stack(1), budget=8 * MIB, deadline=10)
    until(lambda: budget_of(model) == 0)
    assert torch.equal(kept.cpu(), want)
    hoist.detach(model)
    hoist.detach(other)


@pytest.mark.parametrize("lacks", ["thread", "descriptor"])
def test_a_process_without_a_thread_or_descriptor_for_asks_keeps_its_memory(
        hoistd, x, monkeypatch, lacks):
    model = stack()
    want = wanted(model, x)

    def refused(*_, **__):
        raise {"thread": RuntimeError("can't start new thread"),
               "descriptor": OSError(24, "Too many open files")}[lacks]

    monkeypatch.setattr(lending, "_asks", None)
    with monkeypatch.context() as patch:
        if lacks == "thread":
            patch.setattr(lending, "threading", types.SimpleNamespace(
                Lock=threading.Lock, Thread=refused))
        else:
            patch.setattr(lending.os, "dup", refused)
        hoist.attach(model, deadline=10)
    assert_right(model, x, want)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(stack(1), budget=12 * MIB, deadline=1)
    assert_right(model, x, want)
    hoist.detach(model)


def test_an_error_of_one_lender_leaves_the_others_asks_heard(hoistd, x):
    class Fails:
        def consider(self) -> None:
            failed.set()
            raise ValueError("planted")

    failed = threading.Event()
    fails = Fails()
    lending.asks().look_again(fails, 0)
    assert failed.wait(10)
    model = hoist.attach(stack(), deadline=10)
    other = hoist.attach(stack(1), budget=10 * MIB, deadline=10)
    until(lambda: budget_of(model) == 0)
    hoist.detach(model)
    hoist.detach(other)


def loans(hoistd) -> list[dict]:
    return json.loads(hoistd.ctl("--json", "plans"))["loans"]


def test_the_next_hoistd_knows_no_loan_and_keeps_the_same_promises(
        make_hoistd, hoist_keeper, x):
    hoistd = make_hoistd(pool=16 * MIB, host=128 * MIB,
                         keeper=hoist_keeper)
    models = [stack(seed) for seed in range(3)]
    wants = [wanted(model, x) for model in models]
    lender, borrower, floor = models
    hoist.attach(lender, deadline=10)
    assert_right(lender, x, wants[0])
    hoist.attach(borrower, deadline=10)
    until(lambda: budget_of(lender) == 0)
    assert loans(hoistd)
    hoistd.kill_kept()
    assert_right(borrower, x, wants[1])
    assert not loans(hoistd)
    # The floor of one with a budget, and of the rest what is left.
    hoist.attach(floor, budget=10 * MIB, deadline=10)
    until(lambda: budget_of(floor) == 10 * MIB)
    for _ in range(2):
        for model, want in zip(models, wants):
            for _ in range(3):
                assert_right(model, x, want)
    assert budget_of(floor) == 10 * MIB
    assert max(budget_of(lender), budget_of(borrower)) < 8 * MIB
    # Once the floor is gone, who runs has all of it, and lends it again.
    hoist.detach(floor)
    for model, want in zip(models[:2], wants):
        until(lambda: assert_right(model, x, want) or is_whole(model))
    for model in models[:2]:
        hoist.detach(model)
