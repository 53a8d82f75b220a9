"""Which weights go into which group, what is pinned, what is cast."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist.nn._tree import inventory  # noqa: E402
from hoist.nn._tree.casting import (DEFAULT_SKIP, check_storage_type, matches,  # noqa: E402
                                    may_be_cast, matching_modules)
from hoist.nn._tree.layout import choose_storage, lay_out  # noqa: E402


class Model(nn.Module):
    """Children by name, a forward, and perhaps weights of its own."""

    def __init__(self, own: int = 0, **children: nn.Module) -> None:
        super().__init__()
        if own:
            self.own = nn.Parameter(torch.zeros(own))
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def row(count: int = 3) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(4, 4) for _ in range(count))


def laid_out(model: nn.Module, groups="block", excluded=()):
    specs = {spec.name: spec
             for spec in lay_out(model, groups, set(excluded))}
    for spec in specs.values():
        names = [one.name for one in spec.stored]
        assert names and len(names) == len(set(names))
        assert spec.nbytes == sum(one.nbytes for one in spec.stored)
    return specs


def stored(specs) -> dict[str, list[str]]:
    return {name: [one.name for one in spec.stored]
            for name, spec in specs.items()}


def pinned(specs) -> set[str]:
    return {name for name, spec in specs.items() if spec.pinned}


def test_groups_are_in_the_order_of_the_tree_and_none_is_pinned():
    specs = laid_out(Model(embed=nn.Embedding(2, 4), layers=row(2),
                           head=nn.Linear(4, 2, bias=False)))
    assert stored(specs) == {
        "embed": ["embed.weight"],
        "layers.0": ["layers.0.weight", "layers.0.bias"],
        "layers.1": ["layers.1.weight", "layers.1.bias"],
        "head": ["head.weight"]}
    assert not pinned(specs)


def test_a_weight_that_several_groups_use_is_a_group_that_all_of_them_bring():
    model = Model(embed=nn.Embedding(3, 4), layers=row(2),
                  head=nn.Linear(4, 3, bias=False))
    model.head.weight = model.embed.weight
    specs = laid_out(model)
    assert stored(specs)["tied.embed.weight"] == ["embed.weight"]
    assert set(specs) == {"tied.embed.weight", "layers.0", "layers.1"}
    assert list(specs["tied.embed.weight"].triggers) == [model.embed, model.head]
    # Nothing else is needed at the same time: it takes its turn.
    assert not pinned(specs)


def test_a_tie_that_is_needed_beside_other_weights_is_pinned():
    model = Model(embed=nn.Embedding(3, 4), layers=row(2),
                  head=nn.Linear(4, 3))
    model.head.weight = model.embed.weight
    specs = laid_out(model)
    assert pinned(specs) == {"tied.embed.weight"}
    assert stored(specs)["head"] == ["head.bias"]


def test_a_tie_within_a_group_stays_in_it():
    model = Model(layers=nn.ModuleList(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)))
    for layer in model.layers:
        layer[1].weight = layer[0].weight
    specs = laid_out(model)
    assert stored(specs)["layers.0"] == [
        "layers.0.0.weight", "layers.0.0.bias", "layers.0.1.bias"]
    assert set(specs) == {"layers.0", "layers.1"}


def test_views_of_one_storage_in_several_groups_are_one_group():
    whole = torch.arange(32.)
    model = Model(layers=row(3))
    for at, layer in enumerate(model.layers):
        # Overlapping by a row.
        layer.weight = nn.Parameter(whole[at * 8:at * 8 + 16].view(4, 4))
    specs = laid_out(model)
    tied = next(spec for spec in specs.values()
                if spec.name.startswith("tied."))
    assert len(tied.stored) == 1 and tied.nbytes == 128
    assert [weight.name for weight in tied.weights] == [
        "layers.0.weight", "layers.1.weight", "layers.2.weight"]
    assert tied.pinned  # The biases are needed beside it.
    assert list(tied.triggers) == list(model.layers)


def test_what_is_needed_while_other_groups_come_and_go_is_pinned():
    specs = laid_out(Model(own=4, layers=row(2)))
    assert pinned(specs) == {"model"}


def test_outer_weights_are_pinned_at_each_level():
    specs = laid_out(Model(own=4, encoder=Model(own=2, layers=row(2)),
                           head=nn.Linear(4, 4)))
    assert pinned(specs) == {"model", "encoder"}


def test_of_groups_that_one_module_needs_at_once_the_largest_streams():
    model = Model(layers=nn.ModuleList([
        Model(own=100, small=nn.ParameterList([torch.zeros(2)]),
              large=nn.ParameterList([torch.zeros(500)]))]))
    specs = laid_out(model, "leaf")
    assert set(specs) == {"layers.0"}
    specs = laid_out(model, {"a": ["layers.0"], "b": ["layers.0.small"],
                             "c": ["layers.0.large"]})
    assert list(specs["c"].triggers) == [model.layers[0]]
    assert pinned(specs) == {"a", "b"}


def test_the_smallest_leaves_stay_up_to_a_sixteenth_of_the_largest():
    model = Model(layers=nn.ModuleList(
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64, bias=False))
        for _ in range(3)))  # 128 bytes and 4 KiB each.
    assert pinned(laid_out(model, "leaf")) == {"layers.0.0", "layers.1.0"}
    assert not pinned(laid_out(model))  # Blocks have no small ones.


def test_a_module_that_blocks_share_is_pinned_rather_than_the_blocks():
    shared = nn.Linear(4, 4)
    model = Model(layers=nn.ModuleList(
        Model(own=100, inner=shared) for _ in range(3)))
    specs = laid_out(model)
    assert pinned(specs) == {"layers.0.inner"}
    assert list(specs["layers.0.inner"].triggers) == [shared]


def test_no_running_module_holds_two_groups_that_take_turns(chance):
    """Whatever runs at once: all but one group of it are pinned."""
    def tree(depth: int) -> nn.Module:
        if depth == 0:
            return nn.Linear(2, chance.randrange(1, 9))
        return Model(own=chance.choice([0, 0, 3, 300]), **{
            f"c{at}": tree(depth - 1) if chance.random() < 0.8 else
            nn.ModuleList(tree(depth - 1) for _ in range(2))
            for at in range(chance.randrange(1, 4))})

    for _ in range(20):
        model = tree(3)
        names = [name for name, _ in model.named_modules()]
        rule = chance.choice(["block", "leaf", ("block", 2), {
            "x": chance.sample(names, min(2, len(names)))}])
        specs = lay_out(model, rule, set())
        triggered = {}
        for spec in specs:
            for trigger in spec.triggers:
                triggered.setdefault(trigger, []).append(spec)
        for module, several in triggered.items():
            turns = [spec for spec in several if not spec.pinned]
            assert len(turns) <= 1
            below = {id(spec) for one in module.modules()
                     for spec in triggered.get(one, ())
                     if not spec.pinned and spec not in turns}
            assert not turns or not below


def test_a_block_of_many_experts_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(inventory, "span_bytes", lambda tensor: (
        measured.append(tensor), tensor.nbytes)[1])

    def counted(experts: int) -> int:
        # Each expert is called by others than its block.
        model = Model(layers=nn.ModuleList(
            nn.ModuleDict({"experts": row(experts)}) for _ in range(2)))
        measured.clear()
        lay_out(model, "block", set())
        return len(measured)

    assert 0 < counted(60) <= 3 * counted(30)


# What is cast.


def cast(model: nn.Module, skip=(), storage=torch.float16) -> set[str]:
    specs = lay_out(model, "block", set())
    choose_storage(model, specs, storage, skip)
    assert all(to == storage for spec in specs for to in spec.storage.values())
    return {name for spec in specs for name in spec.storage}


def test_larger_floating_parameters_are_cast_and_nothing_else():
    model = Model(a=nn.Linear(2, 2), b=nn.BatchNorm1d(2),
                  c=nn.Linear(2, 2).half(), d=nn.Linear(2, 2).double())
    model.a.register_parameter("count", nn.Parameter(
        torch.zeros(2, dtype=torch.int64), requires_grad=False))
    assert cast(model) == {"a.weight", "a.bias", "b.weight", "b.bias",
                           "d.weight", "d.bias"}


def test_skipped_are_modules_by_name_class_and_themselves():
    model = Model(attention=nn.Linear(2, 2), norm=nn.LayerNorm(2),
                  other=nn.Linear(2, 2))
    assert cast(model, ["^att"]) == {"norm.weight", "norm.bias",
                                     "other.weight", "other.bias"}
    assert cast(model, [nn.Linear]) == {"norm.weight", "norm.bias"}
    assert cast(model, [model.other, nn.LayerNorm]) == {"attention.weight",
                                                        "attention.bias"}
    assert cast(model, DEFAULT_SKIP) == {
        "attention.weight", "attention.bias", "other.weight", "other.bias"}


def test_what_is_below_a_skipped_module_is_skipped():
    model = Model(norm_stack=Model(inner=nn.Linear(2, 2)), b=nn.Linear(2, 2))
    assert cast(model, ["norm"]) == {"b.weight", "b.bias"}


def test_a_module_that_is_given_itself_skips_its_own_weights_alone():
    model = Model(outer=Model(own=3, inner=nn.Linear(2, 2)))
    assert cast(model, [model.outer]) == {"outer.inner.weight",
                                          "outer.inner.bias"}


def test_a_parameter_is_skipped_by_its_own_name():
    model = Model(own=4, layers=row(2))
    assert "own" in cast(model) and "own" not in cast(model, ["^own$"])


def test_a_tie_is_skipped_where_any_of_its_places_is():
    model = Model(embed=nn.Embedding(3, 2), head=nn.Linear(2, 3, bias=False),
                  other=nn.Linear(2, 2, bias=False))
    model.head.weight = model.embed.weight
    assert cast(model, [nn.Embedding]) == {"other.weight"}


def test_bytes_that_other_types_view_are_not_cast():
    whole = torch.zeros(4, 4)
    model = Model(a=nn.Linear(4, 4, bias=False))
    model.a.weight = nn.Parameter(whole)
    model.a.register_buffer("bits", whole.view(torch.int32))
    assert cast(model) == set()


def test_only_small_floating_types_store():
    for dtype in (torch.float32, torch.int8, torch.float64):
        with pytest.raises(hoist.InvalidArgument, match="float8_e4m3fn"):
            check_storage_type(dtype)
    check_storage_type(torch.bfloat16)
    check_storage_type(torch.float8_e5m2)


def test_only_larger_floating_types_are_cast():
    assert may_be_cast(torch.float32, torch.float16)
    assert may_be_cast(torch.float16, torch.float8_e4m3fn)
    assert not may_be_cast(torch.float16, torch.bfloat16)
    assert not may_be_cast(torch.int64, torch.float16)
    assert not may_be_cast(torch.bool, torch.float8_e5m2)


def test_patterns_are_searched_for_and_classes_are_asked():
    linear = nn.Linear(2, 2)
    assert matches("a.norm1.b", linear, ["norm"])
    assert not matches("a.b", linear, ["norm", nn.LayerNorm, r"^b"])
    assert matches("", linear, [nn.Module])
    assert matches("x", linear, [linear])
    assert not matches("x", linear, [nn.Linear(2, 2), 7])


def test_a_match_takes_what_is_below_and_never_the_root():
    model = Model(a=Model(b=nn.Linear(2, 2)), c=nn.Linear(2, 2))
    assert matching_modules(model, ["^a$"]) == {model.a, model.a.b}
    assert matching_modules(model, [Model]) == {model.a, model.a.b}
    assert matching_modules(model, [model, ""]) == {model.a, model.a.b,
                                                      model.c}
    assert matching_modules(model, []) == set()
