"""A large block is several groups, which are staged together: a budget keeps a
part of each block."""

from __future__ import annotations

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.nn._tree import layout  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import CASES, Stack, numbers  # noqa: E402
from passes import (assert_passes, attached, group_names,  # noqa: E402
                    least_budget, make, references)

BLOCKS = 12


@pytest.fixture(autouse=True)
def _small_blocks_have_parts(monkeypatch):
    monkeypatch.setattr(layout, "_LARGE", 8 << 10)


def stack(blocks=BLOCKS):
    return Stack(blocks).eval()


def names_of(model):
    return {name: [one for one in group_names(model)
                   if one.startswith(f"layers.{name}/")]
            for name in range(BLOCKS)}


@pytest.mark.parametrize("kind", ["block", ("block", 2)], ids=str)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("hoistd")
def test_passes_are_right_at_any_budget(device, name, kind):
    case, model = make(name)
    expected = references(case, model, device)
    least = least_budget(model, groups=kind)
    with attached(model, least, groups=kind):
        whole = hoist.stats(model).model_bytes
        for budget in (least, 0.5, 0.9, 2 * whole, 0.7, least):
            if isinstance(budget, float):
                budget = max(least, int(budget * whole))
            hoist.set_budget(model, budget)
            assert hoist.stats(model).budget_bytes <= budget
            assert_passes(case, model, device, expected, f"{budget}")


@pytest.mark.usefixtures("hoistd")
def test_blocks_keep_a_part(device):
    """Whole ones would stream more. (The arithmetic is block_residents_test's:
    beside blocks as small as these the ring is large.)"""
    blocks = {f"block {at}": [f"layers.{at}"] for at in range(BLOCKS)}
    model, x = stack(), numbers(3, 64).to(device)
    streamed = {}
    with torch.no_grad():
        for groups in ("block", blocks):
            with attached(model, 0.8, groups=groups):
                for _ in range(3):
                    model(x)
                streamed[str(groups)] = hoist.stats(model).streamed_bytes
                if groups == "block":
                    kept = [group.spec.name for group
                            in vars(model)["_hoist"].groups if group.bound]
                    assert any(
                        0 < sum(one in kept for one in names) < len(names)
                        for names in names_of(model).values())
    assert streamed["block"] < streamed[str(blocks)]


@pytest.mark.usefixtures("hoistd")
def test_names_and_leaves_of_the_caller_are_whole(device):
    for groups in ("leaf", {"all": ["layers"]},
                   lambda name, _: "one" if name == "layers" else None):
        with attached(stack(), groups=groups) as model:
            assert not [one for one in group_names(model) if "/" in one]


@pytest.mark.parametrize("pool", [8, 64])
def test_without_a_budget_what_exceeds_the_device_has_parts(make_hoistd, device,
                                                            pool):
    make_hoistd(pool=pool << 20, slab=2 << 20, host=64 << 20)
    model, x = Stack(BLOCKS, 256).eval(), numbers(3, 256).to(device)
    whole = copy.deepcopy(model).to(device)
    nbytes = sum(one.nbytes for one in model.parameters())
    with attached(model), torch.no_grad():
        assert (nbytes > pool << 20) == any(
            "/" in one for one in group_names(model))
        for _ in range(3):
            assert_equal_outputs(model(x), whole(x))


@pytest.mark.usefixtures("hoistd")
def test_casts_have_whole_blocks(device):
    with attached(stack(), storage_dtype=torch.bfloat16) as model:
        assert len(group_names(model)) == BLOCKS


@pytest.mark.usefixtures("hoistd")
def test_gradients_through_parts(device):
    """A backward stages a block once, as a forward does."""
    case, model = make("stack")
    for one in model.parameters():
        one.requires_grad_(False)
    x = numbers(3, 64).to(device)
    whole = copy.deepcopy(model).to(device)

    def step(of):
        given = x.clone().requires_grad_()
        of(given).square().sum().backward()
        return given.grad

    expected = step(whole)
    with attached(model, 0.5):
        for _ in range(3):
            assert_equal_outputs(step(model), expected)
        before = hoist.stats(model).stages
        step(model)
        groups = hoist.stats(model).groups
        assert hoist.stats(model).stages - before <= 2 * groups


def test_parts_go_on_after_hoistds_end(device, make_hoistd, hoist_keeper):
    daemon = make_hoistd(keeper=hoist_keeper)
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model, 0.6):
        assert_passes(case, model, device, expected)
        daemon.kill_kept()
        with contextlib.suppress(hoist.Aborted):
            case.run(model, device, 0)
        assert_passes(case, model, device, expected)
        assert 0 < hoist.stats(model).streamed_bytes


@pytest.mark.usefixtures("hoistd")
def test_a_refused_budget_names_the_largest_block(device):
    model = stack()
    block = sum(one.nbytes for one in model.layers[0].parameters())
    assert block <= least_budget(model) <= block + 4096 * 6
    with attached(model, 0.5):
        with pytest.raises(hoist.ResourceExhausted, match="largest block"):
            hoist.set_budget(model, 4096)
        model(numbers(3, 64).to(device))
