"""Weights that somebody else puts in the place of hoist's, or takes out: what
the module computes with is what it shows."""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Stack, Transformer, numbers  # noqa: E402
from passes import least_budget  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"), pytest.mark.filterwarnings(
    "ignore:.*weight_norm:FutureWarning")]


@pytest.fixture(params=[("cpu", 0.5), ("slot", 0.5), ("cpu", 1.0)], ids=str)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    idle, budget = request.param
    return {"idle": idle, "budget": budget}


@torch.no_grad()
@pytest.mark.parametrize("passes", [0, 3])
def test_functional_call_is_with_the_weights_that_it_is_given(
        device, options, passes):
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    given = {name: torch.randn_like(value)
             for name, value in plain.state_dict().items()
             if ".up." in name or name.startswith("layers.2")}
    expected = plain(x), torch.func.functional_call(plain, given, x)
    assert not torch.equal(*expected)
    hoist.attach(model, **options)
    for _ in range(passes):
        assert_equal_outputs(model(x), expected[0])
    for _ in range(3):
        assert_equal_outputs(torch.func.functional_call(model, given, x),
                             expected[1])
        assert_equal_outputs(model(x), expected[0])
    hoist.check(model)
    hoist.detach(model)
    assert_equal_outputs(model.to(device)(x), expected[0])


@torch.no_grad()
def test_functional_call_of_a_block_within_a_pass(device, options):
    class Calls(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            given = {"up.bias": torch.ones(4 * WIDTH, device=x.device)}
            for layer in self.layers:
                x = torch.func.functional_call(layer, given, x) + layer(x)
            return x

    model = Calls(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, **options)
    for _ in range(4):
        assert_equal_outputs(model(x), plain(x))


@torch.no_grad()
def test_functional_call_gives_one_value_to_both_places_of_a_tie(device,
                                                                 options):
    model = Transformer().eval()
    plain = copy.deepcopy(model).to(device)
    ids = torch.arange(6, device=device)[None]
    given = {"embed.weight": torch.randn(50, WIDTH, device=device)}
    hoist.attach(model, **{**options, "budget": 0.8})
    for _ in range(2):
        assert_equal_outputs(torch.func.functional_call(model, given, ids),
                             torch.func.functional_call(plain, given, ids))
        assert_equal_outputs(model(ids), plain(ids))


def no_bias(linear: Any) -> None:
    linear.bias = None


def deleted(linear: Any) -> None:
    del linear.bias
    linear.register_parameter("bias", None)


def other_numbers(linear: Any) -> Any:
    """Where the weight is; the same ones, wherever that may be."""
    return nn.Parameter(numbers(4 * WIDTH, WIDTH).to(linear.weight.device))


def put_in_place(linear: Any) -> None:
    linear._parameters["weight"] = other_numbers(linear)


def deleted_and_set(linear: Any) -> None:
    new = other_numbers(linear)
    del linear.weight
    linear.weight = new


CHANGES = [no_bias, deleted, put_in_place, deleted_and_set]


@torch.no_grad()
@pytest.mark.parametrize("passes", [0, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_changed_stays_changed(device, options, change, passes):
    if device.type == "cuda" and change is put_in_place:
        pytest.skip("hoist is not told of it, and so it is on the CPU")
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, **options)
    for _ in range(passes):
        assert_equal_outputs(model(x), plain(x))
    before = plain(x)
    change(model.layers[1].up)
    change(plain.layers[1].up)
    assert not torch.equal(plain(x), before)
    for _ in range(3):
        assert_equal_outputs(model(x), plain(x))
    assert model.state_dict().keys() == plain.state_dict().keys()
    for name, value in plain.state_dict().items():
        assert same_bytes(model.state_dict()[name].cpu(), value.cpu()), name
    for budget in (1.0, least_budget(Stack(4).eval())):
        hoist.set_budget(model, budget)
        for _ in range(2):
            assert_equal_outputs(model(x), plain(x))
    hoist.detach(model)
    assert_equal_outputs(model.to(device)(x), plain(x))


@torch.no_grad()
def test_weight_norm_deletes_a_weight_and_computes_it(device, options):
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, **options)
    model(x)
    ours, theirs = model.layers[1].up, plain.layers[1].up
    # The norm is computed where the weight is seen, and so equal on one device.
    theirs.to(ours.weight.device)
    for one in ours, theirs:
        torch.nn.utils.weight_norm(one)
    theirs.to(device)
    for _ in range(3):
        assert_equal_outputs(model(x), plain(x))


@torch.no_grad()
def test_what_is_taken_out_and_put_back_is_hoists_again(device, options):
    model = Stack(4).eval()
    plain = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, **options)
    expected = plain(x)
    for _ in range(3):
        ours = model.layers[1].up._parameters.pop("bias")
        model.layers[1].up._parameters["bias"] = ours
        assert_equal_outputs(model(x), expected)


REFUSED: list[tuple[Callable[[Any, Any], Any], type[Exception], str]] = [
    (lambda up, new: setattr(up, "weight", new), hoist.FailedPrecondition,
     "hoist.detach"),
    (lambda up, new: up.register_parameter("weight", new),
     hoist.FailedPrecondition, "hoist.detach"),
    (lambda up, new: setattr(up.weight, "data", new.data),
     hoist.FailedPrecondition, "hoist.detach")]


@torch.no_grad()
@pytest.mark.parametrize("replace, error, says", REFUSED)
def test_what_is_refused_leaves_all_as_it_was(device, options, replace, error,
                                              says):
    model = Stack(4).eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    hoist.attach(model, **options)
    for _ in range(3):
        new = nn.Parameter(torch.randn(4 * WIDTH, WIDTH, device=device))
        with pytest.raises(error, match=says):
            replace(model.layers[1].up, new)
        assert_equal_outputs(model(x), expected)


@pytest.mark.parametrize("budget", [0.5, 1.0])
@torch.no_grad()
def test_a_weight_is_not_swapped_for_another(device, budget):
    """torch.utils.swap_tensors would change an object that is not there in a
    pass; or, of a resident, what detach would take for hoist's."""
    model = Stack(4).eval()
    x = numbers(2, WIDTH).to(device)
    expected = copy.deepcopy(model).to(device)(x)
    hoist.attach(model, budget)
    with pytest.raises(RuntimeError, match="weakref"):
        torch.utils.swap_tensors(model.layers[3].up.weight,
                                 nn.Parameter(torch.zeros(4 * WIDTH, WIDTH)))
    assert_equal_outputs(model(x), expected)
