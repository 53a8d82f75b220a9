"""Which modules are staged together, on trees made by hand and by chance."""

from __future__ import annotations

import pathlib
import random

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist.nn._tree.grouping import ModuleGroup, group_modules, is_called  # noqa: E402


CASES = (pathlib.Path(__file__).resolve().parents[3] / "tests" / "cases"
         / "block_groups.txt")


class Own(nn.Module):
    """One parameter, a forward, and children by name."""

    def __init__(self, weight: bool = True, **children: nn.Module) -> None:
        super().__init__()
        if weight:
            self.weight = nn.Parameter(torch.zeros(2))
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def grouped(root: nn.Module, rule, excluded=()) -> dict[str, list[str]]:
    """{group: owners' names}; every group's invariants hold."""
    groups = group_modules(root, rule, set(excluded))
    names = dict((module, name) for name, module in root.named_modules())
    assert_sound(root, groups, set(excluded))
    return {group.name: [names[one] for one in group.owners]
            for group in groups}


def triggers(root: nn.Module, rule, group: str) -> list[str]:
    names = dict((module, name) for name, module in root.named_modules())
    found = next(one for one in group_modules(root, rule, set())
                 if one.name == group)
    return [names[one] for one in found.triggers]


def assert_sound(root: nn.Module, groups: list[ModuleGroup],
                 excluded: set[nn.Module]) -> None:
    owners = [owner for group in groups for owner in group.owners]
    assert len(owners) == len(set(owners)), "a module is in two groups"
    with_weights = {
        module for module in root.modules() if module not in excluded
        and any(value is not None for value in
                [*module._parameters.values(), *module._buffers.values()])}
    assert set(owners) == with_weights
    names = [group.name for group in groups]
    assert len(names) == len(set(names)), "two groups have one name"
    for group in groups:
        assert group.owners and group.triggers
        assert len(group.triggers) == len(set(group.triggers))
        below = {one for trigger in group.triggers
                 for one in trigger.modules()}
        assert below >= set(group.owners), f"{group.name} is never brought"
        for trigger in group.triggers:
            assert is_called(trigger) or trigger is root
            assert trigger not in excluded


def cases() -> dict[str, list[list[str]]]:
    """Lines' words, by case; the file says what they are."""
    found: dict[str, list[list[str]]] = {}
    for line in CASES.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["case"]:
            lines = found[words[1]] = []
        elif words:
            lines.append(words)
    return found


def module_of(lines: list[list[str]]) -> nn.Module:
    """A module with these tensors: lists where all names are numbers, or what
    the lines say."""
    kinds = {path: kind for kind, path in
             (words[:2] for words in lines if words[0].endswith(":"))}
    tree: dict[str, dict] = {}
    for words in lines:
        if not words[0].endswith(":"):
            at = tree
            for part in words[0].split("."):
                at = at.setdefault(part, {})

    def make(path: str, below: dict[str, dict]) -> nn.Module:
        kind = kinds.get(path)
        if kind is None:
            kind = "list:" if path != "(root)" and any(below.values()) and all(
                name.isdigit() for name in below) else "module:"
        made: nn.Module = {
            "list:": nn.ModuleList, "sequence:": nn.Sequential,
            "dictionary:": nn.ModuleDict,
            "module:": lambda: Own(weight=False)}[kind]()
        for name, rest in below.items():
            if rest:
                made.add_module(name, make(
                    name if path == "(root)" else f"{path}.{name}", rest))
            else:
                made.register_parameter(name, nn.Parameter(torch.zeros(1)))
        return made

    return make("(root)", tree)


@pytest.mark.parametrize("case", cases())
def test_modules_give_the_blocks_that_their_tensors_names_give(case):
    """As hoistd's Grouping.BlocksAreThoseOfTheSharedCases."""
    lines = cases()[case]
    model = module_of(lines)
    assert {name for name, _ in model.named_parameters()} == {
        words[0] for words in lines if not words[0].endswith(":")}
    names = dict((module, name) for name, module in model.named_modules())
    groups = group_modules(model, "block", set())
    assert_sound(model, groups, set())
    assert {f"{names[owner]}.{key}".lstrip("."): group.name
            for group in groups for owner in group.owners
            for key in owner._parameters} == {
        words[0]: words[-1] for words in lines if not words[0].endswith(":")}


def test_the_cases_say_where_the_rules_differ():
    """And are read as they are meant: some do, most do not."""
    differ = {name for name, lines in cases().items()
              if any(len(words) == 3 for words in lines)}
    assert differ and len(cases()) > 2 * len(differ)


def test_each_element_of_a_row_is_a_block_and_so_is_what_is_beside():
    model = Own(False, embed=nn.Embedding(3, 2),
                layers=nn.ModuleList(Own(inner=nn.Linear(2, 2))
                                     for _ in range(3)),
                head=Own(False, norm=nn.LayerNorm(2), out=nn.Linear(2, 2)))
    assert grouped(model, "block") == {
        "embed": ["embed"],
        "layers.0": ["layers.0", "layers.0.inner"],
        "layers.1": ["layers.1", "layers.1.inner"],
        "layers.2": ["layers.2", "layers.2.inner"],
        "head": ["head.norm", "head.out"]}


def test_a_list_within_an_element_is_part_of_the_element():
    model = Own(False, stages=nn.ModuleList(
        Own(blocks=nn.ModuleList(nn.Linear(2, 2) for _ in range(2)))
        for _ in range(2)))
    assert list(grouped(model, "block")) == ["stages.0", "stages.1"]


def test_a_list_of_one_is_no_row():
    model = Own(False, stages=nn.ModuleList([
        Own(False, blocks=nn.ModuleList(nn.Linear(2, 2) for _ in range(2)))]))
    assert list(grouped(model, "block")) == ["stages.0.blocks.0",
                                             "stages.0.blocks.1"]


def test_elements_without_weights_are_in_no_group():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    assert grouped(model, "block") == {"0": ["0"], "2": ["2"]}


def test_modules_above_rows_have_their_own_weights_to_themselves():
    model = Own(layers=nn.ModuleList(nn.Linear(2, 2) for _ in range(2)))
    assert grouped(model, "block") == {
        "model": [""], "layers.0": ["layers.0"], "layers.1": ["layers.1"]}


def test_a_lone_module_is_one_group_that_is_called_model():
    assert grouped(nn.Linear(2, 2), "block") == {"model": [""]}
    assert grouped(nn.Linear(2, 2), "leaf") == {"model": [""]}


def test_n_blocks_are_one_group_and_the_rest_its_own():
    model = Own(False, layers=nn.ModuleList(nn.Linear(2, 2)
                                            for _ in range(5)))
    assert grouped(model, ("block", 2)) == {
        "layers.0+2": ["layers.0", "layers.1"],
        "layers.2+2": ["layers.2", "layers.3"], "layers.4": ["layers.4"]}
    assert triggers(model, ("block", 2), "layers.0+2") == ["layers.0",
                                                          "layers.1"]
    assert len(grouped(model, ("block", 99))) == 1


def test_what_is_not_called_is_brought_by_those_below_it_that_are():
    model = Own(False, stages=nn.ModuleList([
        nn.ModuleDict({"a": nn.Linear(2, 2),
                       "b": nn.ModuleList([nn.Linear(2, 2)])}),
        nn.ModuleDict({"a": nn.Linear(2, 2)})]))
    assert triggers(model, "block", "stages.0") == ["stages.0.a",
                                                    "stages.0.b.0"]


def test_a_list_of_parameters_is_brought_by_what_holds_it():
    model = Own(False, inner=Own(False, scales=nn.ParameterList(
        [torch.zeros(2), torch.zeros(2)])))
    assert grouped(model, "leaf") == {"inner.scales": ["inner.scales"]}
    assert triggers(model, "leaf", "inner.scales") == ["inner"]
    lists = nn.ModuleList([nn.Linear(2, 2), nn.ParameterList(
        [torch.zeros(2)])])
    assert triggers(Own(False, row=lists), "block", "row.1") == [""]


def test_weights_right_in_a_root_without_forward_are_brought_by_the_root():
    root = nn.ParameterList([torch.zeros(2)])
    assert grouped(root, "block") == {"model": [""]}


def test_leaves_are_modules_that_own_weights():
    model = Own(False, a=nn.Sequential(nn.Linear(2, 2), nn.ReLU(),
                                       nn.LayerNorm(2)),
                b=Own(c=nn.Linear(2, 2)))
    assert grouped(model, "leaf") == {
        "a.0": ["a.0"], "a.2": ["a.2"], "b": ["b", "b.c"]}


def test_attention_and_the_child_that_it_never_calls_stay_together():
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 4))
    assert grouped(model, "leaf") == {"0": ["0", "0.out_proj"], "1": ["1"]}
    assert triggers(model, "leaf", "0") == ["0"]


def test_a_shared_module_is_in_the_first_group_that_has_it():
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    model = Own(False, layers=nn.ModuleList([one, other, one]), again=one)
    for rule in ("block", "leaf", ("block", 2)):
        assert sum(map(len, grouped(model, rule).values())) == 2
    assert grouped(model, "block") == {"layers.0": ["layers.0"],
                                       "layers.1": ["layers.1"]}


def test_a_module_that_several_blocks_hold_is_a_group_by_itself():
    """Block 1 runs without block 0: whoever calls the module brings it."""
    shared = nn.Linear(2, 2)
    model = Own(False, layers=nn.ModuleList(
        [Own(inner=shared), Own(inner=shared)]))
    for rule in ("block", ("block", 1), {"all": ["layers.0"]}):
        found = grouped(model, rule)
        assert len(found) == 3
        assert found["layers.0.inner"] == ["layers.0.inner"]
        assert triggers(model, rule, "layers.0.inner") == ["layers.0.inner"]


def test_what_a_shared_module_never_calls_comes_with_it():
    shared = nn.MultiheadAttention(2, 1)
    model = Own(False, layers=nn.ModuleList(
        [Own(inner=shared), Own(inner=shared)]))
    assert grouped(model, "block")["layers.0.inner"] == [
        "layers.0.inner", "layers.0.inner.out_proj"]
    assert triggers(model, "block", "layers.0.inner") == ["layers.0.inner"]


def paths_to(root: nn.Module, wanted: nn.Module,
             path: tuple[nn.Module, ...] = ()) -> list[tuple[nn.Module, ...]]:
    path = (*path, root)
    found = [path] if root is wanted else []
    for child in root._modules.values():
        if child is not None:
            found += paths_to(child, wanted, path)
    return found


def test_excluded_modules_and_what_is_below_them_are_in_no_group():
    model = Own(False, layers=nn.ModuleList(Own(inner=nn.Linear(2, 2))
                                            for _ in range(3)))
    out = set(model.layers[1].modules())
    for rule in ("block", "leaf", {"all": [""]}, lambda name, module: "all"):
        owners = [one for several in grouped(model, rule, out).values()
                  for one in several]
        assert owners == ["layers.0", "layers.0.inner", "layers.2",
                          "layers.2.inner"]


def test_a_mapping_names_groups_and_the_innermost_name_wins():
    model = Own(False, layers=nn.ModuleList(Own(inner=nn.Linear(2, 2))
                                            for _ in range(3)))
    assert grouped(model, {"a": ["layers.0", "layers.2"],
                           "b": "layers.2.inner"}) == {
        "a": ["layers.0", "layers.0.inner", "layers.2"],
        "b": ["layers.2.inner"],
        "layers.1": ["layers.1"], "layers.1.inner": ["layers.1.inner"]}


def _seven(name, module):
    return 7


@pytest.mark.parametrize("rule, said", [
    ({"a": ["nowhere"]}, "not there"),
    ({"a": ["0"], "b": ["0"]}, 'in "b" and in "a"'),
    (_seven, "gave 7"),
    ("blocks", "none of"), (("block", 0), "none of"),
    (("block", 1.5), "none of"), (("leaf", 2), "none of"), (3, "none of"),
    (None, "none of")], ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_bad_rule_says_what_would_do(rule, said):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(hoist.InvalidArgument, match=said):
        group_modules(model, rule, set())


def test_a_function_names_groups_and_none_leaves_it_to_the_parent():
    model = Own(False, layers=nn.ModuleList(Own(inner=nn.Linear(2, 2))
                                            for _ in range(2)))
    assert grouped(model, lambda name, module: "odd" if name.endswith("1")
                   else "in" if name.endswith("0.inner") else None) == {
        "layers.0": ["layers.0"], "in": ["layers.0.inner"],
        "odd": ["layers.1", "layers.1.inner"]}


def test_groups_of_one_name_by_different_ways_get_names_of_their_own():
    model = Own(layers=nn.ModuleDict({"own": nn.Linear(2, 2)}),
                model=nn.ModuleDict({"own": nn.Sequential(
                    nn.Linear(2, 2), nn.Linear(2, 2))}))
    names = [group.name for group in group_modules(model, "block", set())]
    assert len(names) == len(set(names)) == 4


def random_tree(chance: random.Random, depth: int,
                seen: list[nn.Module]) -> nn.Module:
    """Lists, dictionaries, sequences, parameter lists and modules with and
    without weights; now and then one that is elsewhere, too."""
    kinds = ["own", "none", "leaf", "parameters", "attention"]
    if depth:
        kinds += ["own", "none", "list", "dict", "sequence"] * 2
    if seen and chance.random() < 0.1:
        return chance.choice(seen)
    kind = chance.choice(kinds)
    several = [random_tree(chance, depth - 1, seen)
               for _ in range(chance.randrange(4) if depth else 0)]
    by_name = {f"c{at}": one for at, one in enumerate(several)}
    made: nn.Module
    if kind == "list":
        made = nn.ModuleList(several)
    elif kind == "dict":
        made = nn.ModuleDict(by_name)
    elif kind == "sequence":
        made = nn.Sequential(*several)
    elif kind == "parameters":
        made = nn.ParameterList([torch.zeros(1)] * chance.randrange(1, 3))
    elif kind == "attention":
        made = nn.MultiheadAttention(2, 1)
    elif kind == "leaf":
        made = nn.Linear(1, 1)
    else:
        made = Own(kind == "own", **by_name)
    seen.append(made)
    return made


def test_every_weight_of_random_trees_is_in_one_group_that_comes(chance):
    for _ in range(40):
        seen: list[nn.Module] = []
        root = random_tree(chance, 4, seen)
        names = [name for name, _ in root.named_modules()]
        excluded: set[nn.Module] = set()
        if chance.random() < 0.5:
            victim = chance.choice(seen)
            if victim is not root:
                excluded.update(victim.modules())
        excluded.discard(root)
        kept = [name for name, one in root.named_modules()
                if one not in excluded]
        some = chance.sample(kept, min(3, len(kept)))
        for rule in ("block", "leaf", ("block", 2), ("block", 3),
                     {f"g{at}": [name] for at, name in enumerate(some)},
                     lambda name, _: f"g{len(name) % 3}" if name in some
                     else None):
            groups = group_modules(root, rule, excluded)
            assert_sound(root, groups, excluded)
            assert names == [name for name, _ in root.named_modules()]


def test_every_way_to_a_weight_of_random_trees_has_a_trigger(chance):
    """A module that is in two places is brought wherever it is called."""
    for _ in range(40):
        root = random_tree(chance, 3, [])
        for rule in ("block", "leaf", ("block", 2)):
            for group in group_modules(root, rule, set()):
                for owner in group.owners:
                    for path in paths_to(root, owner):
                        assert any(one in group.triggers for one in path), (
                            f"{rule}: {group.name} is not brought on the way "
                            f"{[type(one).__name__ for one in path]}")
