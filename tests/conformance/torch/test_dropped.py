"""Modules that are taken out of an attached tree, and that nobody has any
more: what they had of the device is free at once."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import group_names, least_budget  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    """At once means that no garbage collection has to come first."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held(hoistd: Any) -> int:
    """Of the device, by sessions' leases and plans."""
    tier = hoistd.tier("DEVICE")
    return int(tier["leased_bytes"]) + int(tier["pinned_bytes"])


def delete(model: Any) -> None:
    del model.layers[3]


def replace(model: Any) -> None:
    model.layers[3] = nn.Identity()


def cut_off(model: Any) -> None:
    model.layers = model.layers[:3]


DROPS = [delete, replace, cut_off]


@torch.no_grad()
@pytest.mark.parametrize("part", [0.5, 1.0], ids=["streamed", "resident"])
@pytest.mark.parametrize("when", ["at once", "after passes"])
@pytest.mark.parametrize("drop", DROPS)
def test_a_group_goes_with_its_module(hoistd, device, drop, when, part):
    model = Stack(6).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, part)
    if when == "after passes":
        for _ in range(3):
            assert_equal_outputs(model(x), plain(x))
    before, stats = held(hoistd), hoist.stats(model)
    gone = weakref.ref(model.layers[3])
    drop(model)
    assert gone() is None
    left = len(model.layers) - (drop is replace)
    after = hoist.stats(model)
    assert after.groups == left
    assert "layers.3" not in group_names(model)
    if part == 1.0:
        assert held(hoistd) <= before * left // 6
        assert after.resident_bytes == stats.resident_bytes * left // 6
    drop(plain)
    for _ in range(3):
        assert_equal_outputs(model(x), plain(x))
    hoist.check(model)
    stages = hoist.stats(model).unplanned
    assert_equal_outputs(model(x), plain(x))
    assert hoist.stats(model).unplanned == stages
    hoist.set_budget(model, 1.0)
    assert_equal_outputs(model(x), plain(x))
    hoist.detach(model)
    assert held(hoistd) == 0
    for name, value in plain.state_dict().items():
        assert same_bytes(model.state_dict()[name], value.cpu()), name


@torch.no_grad()
def test_what_is_pinned_goes_too(hoistd, device):
    """Norms among leaves have leases, not places in the plan."""
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, 0.6, groups="leaf")
    assert_equal_outputs(model(x), plain(x))
    pinned, leased = hoist.stats(model).pinned_bytes, held(hoistd)
    assert pinned
    model.again = model.layers[2].norm  # Held twice: one of them may go.
    model.layers[2].norm = plain.layers[2].norm = nn.Identity()
    assert hoist.stats(model).pinned_bytes == pinned
    del model.again
    assert hoist.stats(model).pinned_bytes == pinned * 3 // 4
    assert held(hoistd) < leased
    for _ in range(2):
        assert_equal_outputs(model(x), plain(x))


@torch.no_grad()
@pytest.mark.parametrize("part", [0.5, 1.0], ids=["streamed", "resident"])
def test_a_module_that_somebody_has_is_there_yet(hoistd, device, part):
    """It was taken out to be put elsewhere, or to be called by itself."""
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, part)
    model(x)
    block, inner = model.layers[1], model.layers[2].up
    kept = model.layers[3].down.weight
    own = plain.layers[3].down.weight
    del model.layers[1:]
    assert hoist.stats(model).groups == 3
    assert_equal_outputs(block(x), plain.layers[1](x))
    assert_equal_outputs(inner(x), plain.layers[2].up(x))
    assert torch.equal(kept.to(device), own)
    model.layers.append(block)
    for _ in range(3):
        assert_equal_outputs(model(x), plain.layers[1](plain.layers[0](x)))
    del block, inner, model.layers[1]
    assert hoist.stats(model).groups == 1
    assert torch.equal(kept.to(device), own)
    assert_equal_outputs(model(x), plain.layers[0](x))


@torch.no_grad()
def test_within_a_pass_it_waits_for_the_end(hoistd, device):
    """A forward that throws its last block away."""

    class Sheds(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            if len(self.layers) > 2:
                del self.layers[-1]
            return x

    model = Sheds(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, least_budget(model))
    for left in (3, 2, 2, 2):
        assert_equal_outputs(model(x), plain(x))
        assert hoist.stats(model).groups == left


@torch.no_grad()
def test_nothing_may_be_left(hoistd, device):
    model = Stack(3).eval()
    hoist.attach(model)
    x = numbers(2, WIDTH).to(device)
    model(x)
    del model.layers[:]
    assert held(hoistd) == 0
    assert hoist.stats(model).groups == 0
    assert model(x) is x
    hoist.detach(model)


@torch.no_grad()
@pytest.mark.parametrize("end", ["kill", "detach"])
def test_hoistds_end_is_no_matter(make_hoistd, device, end):
    """What is let go of then is let go of quietly."""
    daemon = make_hoistd()
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, 0.6, stage_deadline=1.0)
    assert_equal_outputs(model(x), plain(x))
    if end == "kill":
        daemon.kill()
    else:
        hoist.detach(model)
    del model.layers[1], plain.layers[1]
    if end == "detach":
        assert_equal_outputs(model.to(device)(x), plain(x))
    else:
        assert hoist.stats(model).groups == 3
        with pytest.raises(hoist.Unavailable):
            model(x)


@torch.no_grad()
def test_cast_weights_and_adapters_go_with_theirs(hoistd, device):
    model = Stack(4).eval()
    hoist.attach(model, 1.0, storage_dtype=torch.bfloat16, groups="leaf")
    x = numbers(2, WIDTH).to(device)
    for _ in range(2):
        model(x)
    model.layers[2].up.more = nn.Linear(2, 2)
    groups = hoist.stats(model).groups
    model.layers[2].up = nn.Identity()
    model.layers[2].down = nn.Linear(WIDTH, WIDTH).to(device)
    assert hoist.stats(model).groups == groups - 2
    first = model(x)
    assert_equal_outputs(model(x), first)
    hoist.detach(model)


class Callers:
    """Something that a caller has."""


def test_a_refusal_keeps_nothing_of_its_callers(device):
    model = Stack(4).eval()
    hoist.attach(model, 1.0)

    def refused() -> weakref.ref[Callers]:
        mine = Callers()
        try:
            hoist.set_budget(model, 4096)
        except hoist.ResourceExhausted:
            return weakref.ref(mine)
        raise AssertionError("it was not refused")

    assert refused()() is None
    hoist.detach(model)
