"""One pattern or name is itself, not its letters or its children."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist._registration import Registration  # noqa: E402
from hoist.compat import _diffusers  # noqa: E402
from hoist.nn._tree.casting import DEFAULT_SKIP, as_patterns, matching_modules  # noqa: E402
from hoist.nn._api.options import as_names  # noqa: E402
from torch import nn  # noqa: E402


def test_a_pattern_alone_is_one_pattern():
    rows = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for one in ("head", nn.Linear, rows, rows[0]):
        assert as_patterns("exclude", one) == (one,)
        assert as_patterns("exclude", [one]) == (one,)
    assert as_patterns("skip", DEFAULT_SKIP) == DEFAULT_SKIP
    assert as_patterns("exclude", ()) == ()
    assert as_patterns("exclude", (one for one in "ab")) == ("a", "b")


def test_a_name_excludes_that_module_and_no_letter_of_it():
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "deep": nn.Linear(2, 2)})
    assert matching_modules(model, as_patterns("exclude", "head")) == {
        model["head"]}


@pytest.mark.parametrize("given, said", [
    (None, "exclude=None"), (1, "exclude=1"), ([1], "exclude holds 1"),
    (["a", None], "exclude holds None"), ("(", "no regular expression")],
    ids=repr)
def test_what_is_no_pattern_is_refused_by_name(given, said):
    with pytest.raises(hoist.InvalidArgument, match=said):
        as_patterns("exclude", given)


def test_a_name_alone_is_one_name():
    assert as_names("mask") == as_names(["mask"]) == {"mask"}
    assert as_names(()) == frozenset()
    model = nn.ModuleDict({"down": nn.Linear(2, 2)})
    assert _diffusers._block_groups(model, "down", 1) == {"down": ["down"]}


def test_a_tensor_alone_is_a_group_and_a_part():
    registration = Registration("/a", "a", {"head": "weight"}, {
        "joined": hoist.Joined((2,), "weight")}, None)
    options = registration.options
    assert options.group_count == options.joined_count == 1
    group, joined = options.groups[0], options.joined[0]
    assert (group.tensor_count, group.tensors[0]) == (1, b"weight")
    assert (joined.part_count, joined.parts[0].tensor) == (1, b"weight")
