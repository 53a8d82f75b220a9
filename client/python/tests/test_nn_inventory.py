"""Which bytes a module's weights are, and how they lie in one another."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from hoist.nn._tree.inventory import span_bytes, take_inventory  # noqa: E402


class Holder(nn.Module):
    """The weights that it is given; buffers where they are no parameters."""

    def __init__(self, **weights: torch.Tensor) -> None:
        super().__init__()
        for name, value in weights.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value)


def inventory(module: nn.Module, excluded=()):
    return {weight.name: weight
            for weight in take_inventory(module, set(excluded))}


def put_back(weight, module=None):
    """The weight from copies of its stored bytes."""
    copies = []
    for part in weight.parts:
        tensor = part.stored.tensor
        flat = torch.empty(0, dtype=torch.uint8).set_(
            tensor.untyped_storage(),
            tensor.storage_offset() * tensor.element_size(),
            (part.stored.nbytes,), (1,)).clone()
        copies.append(part.view(torch.empty(0, dtype=tensor.dtype).set_(
            flat.untyped_storage(), 0, tensor.shape, tensor.stride())))
    return weight.put_together(copies)


def parameter(tensor: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def test_weights_come_in_the_order_of_the_tree_parameters_first():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    assert list(inventory(model)) == [
        "0.weight", "0.bias", "0.running_mean", "0.running_var",
        "0.num_batches_tracked", "1.weight", "1.bias"]
    assert [weight.kind for weight in inventory(model).values()] == (
        ["parameter"] * 2 + ["buffer"] * 3 + ["parameter"] * 2)


def test_one_object_in_two_places_is_one_weight():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    found = inventory(model)
    assert list(found) == ["0.weight"]
    assert [place.module for place in found["0.weight"].places] == [
        model[0], model[1]]


def test_a_shared_module_is_counted_once():
    one = nn.Linear(2, 2)
    assert list(inventory(nn.ModuleList([one, one]))) == ["0.weight", "0.bias"]


def test_excluded_modules_weights_are_not_taken():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert list(inventory(model, [model[0]])) == ["1.weight", "1.bias"]


def test_none_is_no_weight():
    assert list(inventory(nn.Linear(2, 2, bias=False))) == ["weight"]


def test_views_that_overlap_share_one_stored_tensor():
    whole = torch.arange(24.).reshape(4, 6)
    model = Holder(whole=parameter(whole), top=parameter(whole[:2]),
                   column=parameter(whole[:, 1]), turned=whole.t())
    found = inventory(model)
    stored = {id(part.stored) for weight in found.values()
              for part in weight.parts}
    assert len(stored) == 1
    assert found["whole"].parts[0].stored.name == "whole"
    assert found["whole"].parts[0].stored.nbytes == 96
    for name, value in model.state_dict().items():
        again = put_back(found[name])
        assert torch.equal(again, value) and again.stride() == value.stride()
    assert found["column"].parts[0].offset_bytes == 4


def test_views_that_do_not_overlap_are_stored_apart():
    whole = torch.arange(10.)
    found = inventory(Holder(a=whole[:4], b=whole[4:7], c=whole[8:]))
    assert [weight.parts[0].stored.nbytes for weight in found.values()] == [
        16, 12, 8]
    assert len({id(one.parts[0].stored) for one in found.values()}) == 3


def test_a_chain_of_overlaps_that_nothing_spans_is_stored_as_bytes():
    whole = torch.arange(40.)
    model = Holder(a=whole[5:15], b=whole[10:20], c=whole[19:30],
                   apart=whole[30:])
    found = inventory(model)
    stored = found["a"].parts[0].stored
    assert stored is found["b"].parts[0].stored is found["c"].parts[0].stored
    assert stored.meta.dtype == torch.uint8
    assert stored is not found["apart"].parts[0].stored
    # Begins where every type may.
    assert stored.nbytes == 30 * 4 - 16
    for name, value in model.state_dict().items():
        assert torch.equal(put_back(found[name]), value)


def test_views_of_other_types_find_their_bytes():
    whole = torch.arange(16, dtype=torch.int64)
    model = Holder(longs=whole[3:9], halves=whole.view(torch.float16)[20:40],
                   bytes=whole.view(torch.uint8)[65:70])
    found = inventory(model)
    assert len({id(one.parts[0].stored) for one in found.values()}) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(put_back(found[name]).view(torch.uint8),
                           value.view(torch.uint8)), name


def test_a_zero_size_weight_has_stored_bytes_of_its_own():
    whole = torch.arange(6.)
    found = inventory(Holder(none=whole[2:2], empty=torch.empty(0, 4),
                             all=whole))
    assert [one.parts[0].stored.nbytes for one in found.values()] == [0, 0, 24]
    assert len({id(one.parts[0].stored) for one in found.values()}) == 3
    assert found["empty"].parts[0].shape == (0, 4)


def test_meta_weights_are_known_without_bytes():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    found = inventory(model)
    stored = found["weight"].parts[0].stored
    assert stored.meta_at_first and stored.nbytes == 24
    assert stored.meta.shape == (2, 3)
    assert stored is not found["bias"].parts[0].stored


def test_expanded_and_odd_strides_span_what_they_touch():
    assert span_bytes(torch.zeros(3).expand(5, 3)) == 12
    assert span_bytes(torch.zeros(4, 4)[::2, ::3]) == (2 * 4 + 3 + 1) * 4
    assert span_bytes(torch.zeros(0, 7)) == 0
    assert span_bytes(torch.tensor(1.0)) == 4


def test_what_is_shown_goes_to_every_place_and_alias():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    weight = inventory(model)["0.weight"]
    other = parameter(torch.ones(2, 2))
    weight.put(other)
    assert model[0].weight is other and model[1].weight is other
    assert weight.value is other


def test_state_beside_a_quantised_parameter_is_a_weight():
    class Quantised(nn.Parameter):
        pass

    class State:
        def __init__(self) -> None:
            self.scale = torch.ones(3)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.Tensor._make_subclass(Quantised,
                                                      torch.zeros(2))
            self.weight.state = State()
            self.state = self.weight.state
            self.other = State()
            self.note = "text"

    found = inventory(Layer())
    # `state` is the parameter's attribute, too: it is noted, not stored again.
    assert {name: one.kind for name, one in found.items()} == {
        "weight": "parameter", "other": "state"}
    assert [alias.attribute for alias in found["weight"].aliases] == ["state"]
    assert [part.stored.name for part in found["weight"].parts] == [
        "weight", "weight.state.scale"]
    assert [part.stored.name for part in found["other"].parts] == [
        "other.scale"]


def test_attributes_beside_plain_parameters_are_the_modules_own():
    class Layer(nn.Linear):
        pass

    layer = Layer(2, 2)
    layer.note = [torch.ones(2)]
    assert list(inventory(layer)) == ["weight", "bias"]
