"""A module that is detached, or dropped, uses its model no more: hoistd makes
room with it. The pool has 20 MiB and spills nowhere; a module has 5."""

from __future__ import annotations

import gc
import json
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from real_daemon import MIB  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.hoistd(host=20 * MIB)
WIDTH = 576


def make(seed: int, device: str) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False)
                           for _ in range(4))).to(device)


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Nothing here waits for one."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def forgotten(hoistd: Any) -> int:
    return int(hoistd.counters()["models_forgotten"])


def names(hoistd: Any) -> set[str]:
    return {model["name"].rpartition(":")[2] for model in
            json.loads(hoistd.ctl("models", "--json"))["models"]}


def attach_and_detach(seeds: range, device: str, **options: Any) -> None:
    x = torch.ones(2, WIDTH, device=device)
    for seed in seeds:
        module = make(seed, device)
        with torch.no_grad():
            expected = module(x)
            hoist.attach(module, 0.5, deadline=2, **options)
            assert torch.equal(module(x), expected)
            hoist.detach(module)
            assert torch.equal(module(x), expected)


def test_one_session_attaches_and_detaches_more_than_fits(
        hoistd, device, no_collections):
    attach_and_detach(range(9), device)
    assert forgotten(hoistd) >= 5


def test_what_is_stored_otherwise_goes_as_well(hoistd, device, no_collections):
    """Two models a module: 5 MiB, and 2.5 of casts."""
    for seed in range(6):
        module = make(seed, device)
        hoist.attach(module, 1.0, deadline=2, storage_dtype=torch.bfloat16)
        hoist.detach(module)
    assert forgotten(hoistd) >= 6


def test_a_module_that_is_dropped_is_done_with_its_model(hoistd, device):
    for seed in range(9):
        hoist.attach(make(seed, device), 0.5, deadline=2)
        gc.collect()
    assert forgotten(hoistd) >= 5


def test_an_attach_that_fails_is_done_with_what_it_handed_over(
        hoistd, device, no_collections):
    module = make(0, device)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(module, 1 * MIB)
    attach_and_detach(range(1, 5), device)
    assert forgotten(hoistd) >= 1


def test_a_model_that_was_found_in_vain_is_not_used(
        hoistd, device, no_collections):
    module = make(0, device)
    hoist.attach(module, 0.5, deadline=2)
    name = hoist.stats(module).model
    hoist.detach(module)
    with pytest.raises(hoist.InvalidArgument):
        hoist.attach(module, order=["none"])
    assert name in names(hoistd)
    attach_and_detach(range(1, 7), device)
    assert name not in names(hoistd)


def test_tensors_that_somebody_keeps_stay_true(hoistd, device, no_collections):
    module = make(0, device)
    own = module[1].weight.detach().cpu().clone()
    hoist.attach(module, 0.5, deadline=2)
    model = hoist.stats(module).model
    kept = module.state_dict()["1.weight"]
    read = module.state_dict()["0.weight"].numpy()
    total = read.sum()
    hoist.detach(module)
    attach_and_detach(range(1, 7), device)
    assert torch.equal(kept.cpu(), own)
    assert forgotten(hoistd) > 0
    assert model in names(hoistd)
    del kept
    attach_and_detach(range(7, 13), device)
    assert model in names(hoistd)
    assert read.sum() == pytest.approx(total)
    del read
    attach_and_detach(range(13, 19), device)
    assert model not in names(hoistd)


def test_a_model_is_used_until_its_last_module_is_detached(
        hoistd, device, no_collections):
    one, other = make(0, device), make(0, device)
    x = torch.ones(2, WIDTH, device=device)
    with torch.no_grad():
        expected = one(x)
        hoist.attach(one, 0.3, deadline=2)
        hoist.attach(other, 0.3, deadline=2)
        name = hoist.stats(one).model
        hoist.detach(one)
        attach_and_detach(range(1, 7), device)
        assert torch.equal(other(x), expected)
        hoist.detach(other)
        assert name in names(hoistd)
        attach_and_detach(range(7, 12), device)
    assert name not in names(hoistd)


def test_who_asked_for_the_model_by_name_keeps_it(
        hoistd, device, no_collections):
    session = hoist.connect(hoistd.socket)
    module = make(0, device)
    hoist.attach(module, 0.5, deadline=2, session=session)
    model = session.model(hoist.stats(module).model)
    hoist.detach(module)
    attach_and_detach(range(1, 7), device)
    with session.stage(model.groups[0]) as lease:
        assert lease.nbytes > 0
    session.done_with(model)
    attach_and_detach(range(7, 13), device)
    with pytest.raises(hoist.NotFound):
        session.model(model.name)
