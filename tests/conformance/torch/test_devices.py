"""Several devices of one hoistd: modules spread over them, and copies of one
model on each, from one host copy."""

from __future__ import annotations

import os
import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import (CASES, WIDTH, Block, ImageTransformer, Stack,  # noqa: E402
                    Transformer, numbers)
from passes import (assert_passes, attached, make, references)  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
TWO = "" if KIND == "cuda" else "[device.emulated]\ncount = 2\n"
pytestmark = [pytest.mark.hoistd(extra=TWO),
              pytest.mark.usefixtures("two_devices", "hoistd")]


@pytest.fixture
def two_devices() -> None:
    if KIND == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs, and torch sees "
                    f"{torch.cuda.device_count()}")


def parts_of(model: nn.Module) -> dict[str, int]:
    """{group: device's index}"""
    attachment = vars(model)["_hoist"]
    return {group.spec.name: group.part.device.index
            for group in attachment.groups}


def used(hoistd, device: int) -> int:
    return hoistd.tier("DEVICE", device)["used_bytes"]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_a_module_over_two_devices_computes_the_same(device, name, groups):
    if KIND == "cuda" and name == "cached":
        pytest.skip("it writes to a list of its caller's, whose tensors move")
    case, model = make(name)
    expected = references(case, model, device)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    # Of the smallest modules one block is more than half.
    with attached(model, {0: 0.7, 1: 0.7}, groups=groups):
        assert_passes(case, model, device, expected, name)
        assert_passes(case, model, device, expected, name)
    for key, value in model.state_dict().items():
        assert same_bytes(value, state[key]), key


def test_groups_are_spread_in_order_by_the_budgets_shares(hoistd):
    model = Stack(8)
    whole = sum(p.nbytes for p in model.parameters())
    with attached(model, {0: whole // 4, 1: 3 * whole // 4}):
        assert list(parts_of(model).values()) == [0, 0, 1, 1, 1, 1, 1, 1]
    with attached(model, {1: whole // 2, 0: whole // 2}):
        assert list(parts_of(model).values()) == [1] * 4 + [0] * 4
        assert used(hoistd, 0) > 0 and used(hoistd, 1) > 0


def test_what_one_module_needs_at_once_is_on_one_device():
    """The head's bias beside the tied weight, which the embedding has too."""
    model = Transformer()
    model.head = nn.Linear(WIDTH, 50)
    model.head.weight = model.embed.weight
    with attached(model, {0: 0.5, 1: 0.5}):
        parts = parts_of(model)
        assert parts["head"] == parts["tied.embed.weight"]
        assert set(parts.values()) == {0, 1}


def test_counts_are_sums_over_the_devices(device, hoistd):
    case, model = make("stack")
    whole = sum(p.nbytes for p in model.parameters())
    expected = references(case, model, device)
    with attached(model, {0: whole // 3, 1: whole // 3}, order=[
            f"layers.{at}" for at in range(6)]):
        before = hoist.stats(model)
        parts = vars(model)["_hoist"].parts
        assert before.groups == 6 and before.model_bytes >= whole
        assert before.budget_bytes <= 2 * (whole // 3)
        assert before.budget_bytes == sum(part.plan.info.budget_bytes
                                          for part in parts)
        assert before.streamed_bytes == sum(part.plan.info.streamed_bytes
                                            for part in parts) > 0
        assert_passes(case, model, device, expected)
        after = hoist.stats(model)
        assert after.passes == len(expected)
        assert after.stages - before.stages == 6 * len(expected)
        for part in parts:
            assert part.plan.stats.stages == 3 * len(expected)
            assert used(hoistd, part.device.index) <= whole // 3


def test_a_fraction_is_of_the_whole_model_for_each_device():
    model = Stack(8)
    whole = sum(p.nbytes for p in model.parameters())
    with attached(model, {0: 0.5, 1: 0.5}):
        # Each holds its half; nothing is streamed.
        assert hoist.stats(model).streamed_bytes == 0
        hoist.set_budget(model, {0: 0.25, 1: 0.25})
        assert hoist.stats(model).streamed_bytes > 0
        budgets = [part.plan.info.budget_bytes
                   for part in vars(model)["_hoist"].parts]
        assert all(whole / 8 < one <= whole * 0.26 for one in budgets)


def test_detach_gives_everything_back_on_both_devices(hoistd):
    model = Stack(4)
    hoist.attach(model, {0: 0.5, 1: 0.5})
    hoist.detach(model)
    for at in (0, 1):
        assert hoistd.tier("DEVICE", at)["leased_bytes"] == 0
        assert hoistd.tier("DEVICE", at)["pinned_bytes"] == 0
    assert all(type(value) is nn.Parameter for value in model.parameters())


def test_copies_on_two_devices_share_one_host_copy(device, hoistd):
    torch.manual_seed(3)
    one, other = Stack().eval(), Stack().eval()
    other.load_state_dict(one.state_dict())
    expected = references(CASES["stack"], one, device)
    with attached(one, device=0):
        alone = hoistd.tier("HOST")["used_bytes"]
        published = hoistd.counters()
        with attached(other, device=1):
            assert hoist.stats(one).model == hoist.stats(other).model
            assert hoistd.tier("HOST")["used_bytes"] == alone > 0
            for model in (one, other):
                assert_passes(CASES["stack"], model, device, expected)
            assert used(hoistd, 0) > 0 and used(hoistd, 1) > 0
            assert hoistd.tier("HOST")["used_bytes"] == alone


@pytest.mark.parametrize("budget, device", [
    ({0: 0.5, 7: 0.5}, None), ({7: None}, None), (None, 7)], ids=str)
def test_a_device_that_is_not_there_is_not_found(budget, device):
    model = Stack(2)
    own = list(model.parameters())
    with pytest.raises(hoist.NotFound, match=r"no device 7; it has 0 .*1 "):
        hoist.attach(model, budget, device=device)
    assert all(a is b for a, b in zip(model.parameters(), own))


def test_a_device_named_twice_or_none_is_refused():
    with pytest.raises(hoist.InvalidArgument, match="twice"):
        hoist.attach(Stack(2), {0: 0.5, "cpu" if KIND == "cpu" else "cuda:0":
                                0.5})
    with pytest.raises(hoist.InvalidArgument, match="names no device"):
        hoist.attach(Stack(2), {})


def test_a_device_that_is_too_small_says_what_would_do():
    model = Stack(4)
    before = [value.clone() for value in model.parameters()]
    with pytest.raises(hoist.ResourceExhausted, match="would"):
        hoist.attach(model, {0: 4096, 1: 4096})
    assert all(type(value) is nn.Parameter for value in model.parameters())
    assert_equal_outputs(list(model.parameters()), before)


def test_buffers_that_are_written_and_excluded_modules_behave(device):
    """Private buffers are on their group's device, excluded modules where
    they were."""
    class Counting(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return super().forward(x) + self.count.sum()

    model = nn.Sequential(*[Counting() for _ in range(4)],
                          nn.Linear(WIDTH, WIDTH)).eval()
    import copy
    whole = copy.deepcopy(model).to(device)
    model[4].to(device)
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad(), attached(model, {0: 0.5, 1: 0.5}, exclude=["^4$"]):
        assert set(parts_of(model).values()) == {0, 1}
        for _ in range(3):
            assert_equal_outputs(model(x), whole(x))
        assert type(model[4].weight) is nn.Parameter
    for at in range(4):
        assert model[at].count.tolist() == [3.0] * 3


def test_adapters_follow_the_block_that_they_are_in(device):
    class Adapted(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base
            self.extra = nn.Linear(WIDTH, 4 * WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.extra(x)

    model = Stack(4).eval()
    import copy
    for groups in ("block", "leaf"):
        whole = copy.deepcopy(model).to(device)
        with torch.no_grad(), attached(model, {0: 0.5, 1: 0.5},
                                       groups=groups):
            for at, layer in enumerate(model.layers):
                torch.manual_seed(at)
                layer.up = Adapted(layer.up)
                whole.layers[at].up = Adapted(whole.layers[at].up)
                whole.layers[at].up.extra.load_state_dict(
                    layer.up.extra.state_dict())
            whole.to(device)
            for _ in range(2):
                x = numbers(2, WIDTH).to(device)
                assert_equal_outputs(model(x), whole(x))
            wanted = {f"cuda:{at}" for at in (0, 1)} if (
                KIND == "cuda" and groups == "block") else {
                "cuda:0" if KIND == "cuda" else "cpu"}
            assert {str(layer.up.extra.weight.device)
                    for layer in model.layers} == wanted
        for layer in model.layers:
            layer.up = layer.up.base


def test_outputs_come_on_the_device_of_the_inputs(device):
    model = ImageTransformer().eval()
    with torch.no_grad(), attached(model, {0: 0.5, 1: 0.5}):
        assert model(numbers(2, 3, 16, 16).to(device)).device.type == (
            device.type)
        assert model(numbers(2, 3, 16, 16)).device.type == "cpu"


def test_budgets_by_device_may_be_any_mapping(hoistd, device):
    model = Stack(4).to(device)
    hoist.attach(model, types.MappingProxyType({0: 0.9}))
    before = hoist.stats(model).budget_bytes
    hoist.set_budget(model, types.MappingProxyType({0: 1.0}))
    assert 0 < before < hoist.stats(model).budget_bytes
