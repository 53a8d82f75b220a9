"""Inputs and outputs on their way between devices; meta stands for a GPU."""

from __future__ import annotations

import collections
import dataclasses

import pytest

torch = pytest.importorskip("torch")

from hoist.nn._run.move import device_of, to_device  # noqa: E402

META, CPU = torch.device("meta"), torch.device("cpu")


class Output(collections.OrderedDict):
    """As transformers': a dictionary whose items are fields."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for key, value in self.items():
            setattr(self, key, value)


class Cache:
    """What models write to in place."""

    def __init__(self):
        self.keys = [torch.ones(1)]


def test_tensors_in_containers_are_moved():
    value = ([torch.ones(1), "a"], {"x": (torch.ones(2), 3)}, None)
    moved = to_device(value, META)
    assert moved[0][0].device == META and moved[0][1] == "a"
    assert moved[1]["x"][0].device == META and moved[1]["x"][1] == 3
    assert value[0][0].device == CPU
    assert (type(moved), type(moved[0]), type(moved[1])) == (tuple, list, dict)


def test_what_does_not_move_stays_the_same_object():
    value = ([torch.ones(1)], {"x": torch.ones(2), "y": [3]}, "text",
             collections.OrderedDict(a=(1,)))
    moved = to_device(value, CPU)
    assert moved is value
    for one in value:
        assert to_device(one, CPU) is one


def test_of_a_container_in_which_one_thing_moves_the_rest_is_kept():
    inner = [torch.ones(1, device="meta")]
    value = [inner, torch.ones(1)]
    moved = to_device(value, META)
    assert moved is not value and moved[0] is inner


def test_caches_are_never_looked_into():
    @dataclasses.dataclass
    class Record:
        tensor: torch.Tensor

    for kept in (Cache(), Record(torch.ones(1)), {1, 2}):
        assert to_device(kept, META) is kept
        moved = to_device([torch.ones(1), kept], META)
        assert moved[1] is kept
    cache = Cache()
    to_device({"past": cache, "x": torch.ones(1)}, META)
    assert cache.keys[0].device == CPU


def test_a_named_tuple_stays_one():
    Pair = collections.namedtuple("Pair", "a b")
    moved = to_device(Pair(torch.ones(1), 2), META)
    assert type(moved) is Pair and moved.a.device == META and moved.b == 2


def test_an_output_with_fields_has_them_moved_too():
    moved = to_device(Output(logits=torch.ones(1), note="n"), META)
    assert type(moved) is Output
    assert moved.logits is moved["logits"] and moved.logits.device == META


def test_dictionaries_of_other_kinds_and_keys_keep_their_kind():
    value = collections.OrderedDict([(1, torch.ones(1)), ("b", 2)])
    moved = to_device(value, META)
    assert type(moved) is collections.OrderedDict
    assert list(moved) == [1, "b"] and moved[1].device == META
    default = collections.defaultdict(list, a=torch.ones(1))
    moved = to_device(default, META)
    assert moved["a"].device == META
    assert isinstance(moved, collections.defaultdict)


def test_what_torch_returns_as_named_sequences_is_moved():
    value = torch.max(torch.ones(2, 2), 0)
    moved = to_device(value, META)
    assert moved.values.device == META and moved.indices.device == META
    assert type(moved) is type(value)


def test_ones_place_is_that_of_the_first_tensor():
    assert device_of(([3, {"a": torch.ones(1, device="meta")}],
                      torch.ones(1))) == META
    assert device_of((1, "a", None, Cache())) is None
    assert device_of({}) is None
