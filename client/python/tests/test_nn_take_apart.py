"""A weight as plain tensors, and the same weight again."""

from __future__ import annotations

import collections
import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist.nn._tree.take_apart import holds_tensors, take_apart  # noqa: E402


class Wrapper(torch.Tensor):
    """No memory of its own; made of two tensors, by torch's protocol."""

    @staticmethod
    def __new__(cls, one, other, note):
        return torch.Tensor._make_wrapper_subclass(
            cls, one.shape, dtype=torch.float64)

    def __init__(self, one, other, note):
        self.one, self.other, self.note = one, other, note

    def __tensor_flatten__(self):
        return ["one", "other"], self.note

    @classmethod
    def __tensor_unflatten__(cls, inner, note, size, stride):
        return cls(inner["one"], inner["other"], note)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(*(func(getattr(args[0], name), *args[1:], **(kwargs or {}))
                     for name in ("one", "other")), args[0].note)


class Opaque(torch.Tensor):
    """No memory, and nobody can say what it is made of."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2, 2))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


class WithMemory(nn.Parameter):
    """Memory of its own, and tensors in attributes; as bitsandbytes'."""

    @staticmethod
    def __new__(cls, data, **attributes):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.__dict__.update(attributes)
        return made


class State:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def again(value, change=torch.clone):
    """From copies; what it is made of is asserted to be plain."""
    parts, put_together = take_apart(value)
    for _, part in parts:
        assert type(part) is torch.Tensor
    return put_together([change(part) for _, part in parts])


def names(value) -> list[str]:
    return [name for name, _ in take_apart(value)[0]]


def test_a_plain_tensor_is_its_own_part():
    tensor = torch.arange(6.)[::2]
    assert names(tensor) == [""]
    made = again(tensor)
    assert type(made) is torch.Tensor and torch.equal(made, tensor)


def test_a_parameter_keeps_its_attributes_and_asks_for_no_gradient():
    value = nn.Parameter(torch.ones(2))
    value.tp_plan, value.note = "row", [1]
    made = again(value)
    assert type(made) is nn.Parameter and not made.requires_grad
    assert made.tp_plan == "row" and made.note is value.note


def test_a_wrapper_is_its_inner_tensors_and_is_unflattened():
    value = Wrapper(torch.ones(2, 2), torch.arange(3), note="n")
    assert names(value) == [".one", ".other"]
    made = again(value, lambda part: part + 1)
    assert type(made) is Wrapper and made.note == "n"
    assert torch.equal(made.one, torch.full((2, 2), 2.))
    assert torch.equal(made.other, torch.arange(1, 4))


def test_wrappers_in_wrappers_are_taken_apart_down_to_plain_tensors():
    inner = Wrapper(torch.ones(2), torch.zeros(3), note="in")
    value = Wrapper(torch.arange(2.), inner, note="out")
    assert names(value) == [".one", ".other.one", ".other.other"]
    made = again(value)
    assert type(made.other) is Wrapper and made.other.note == "in"
    assert torch.equal(made.other.one, torch.ones(2))


def test_a_wrapper_that_is_a_parameter_is_one_again():
    value = nn.Parameter(Wrapper(torch.ones(2), torch.ones(2), note=0),
                         requires_grad=False)
    made = again(value)
    assert isinstance(made, nn.Parameter) and type(made) is Wrapper


def test_a_subclass_with_memory_keeps_type_attributes_and_their_tensors():
    value = WithMemory(
        torch.arange(4.), blocksize=64,
        state=State(scale=torch.ones(2), inner=State(code=torch.zeros(3)),
                    dtype=torch.float16))
    assert names(value) == ["", ".state.scale", ".state.inner.code"]
    made = again(value, lambda part: part + 1)
    assert type(made) is WithMemory and made.blocksize == 64
    assert torch.equal(torch.Tensor(made), torch.arange(1., 5.))
    assert torch.equal(made.state.scale, torch.full((2,), 2.))
    assert torch.equal(made.state.inner.code, torch.ones(3))
    assert made.state.dtype is torch.float16
    # The object that was taken apart is not changed.
    assert torch.equal(value.state.scale, torch.ones(2))
    assert torch.equal(value.state.inner.code, torch.zeros(3))


def test_two_made_of_one_do_not_share_their_states():
    value = WithMemory(torch.zeros(2), state=State(scale=torch.ones(1)))
    parts, put_together = take_apart(value)
    first = put_together([part.clone() for _, part in parts])
    second = put_together([part + 5 for _, part in parts])
    assert first.state is not second.state
    assert first.state.scale.item() == 1 and second.state.scale.item() == 6


def test_what_is_taken_apart_does_not_keep_an_objects_tensors():
    kept = State(scale=torch.ones(1 << 10))
    parts, put_together = take_apart(State(inner=kept, note=1))
    import weakref
    gone = weakref.ref(kept.scale)
    del parts, kept
    assert gone() is None
    made = put_together([torch.zeros(2)])
    assert made.inner.scale.numel() == 2 and made.note == 1


def test_lists_tuples_and_dictionaries_are_looked_into():
    Pair = collections.namedtuple("Pair", "a b")
    value = State(several=[torch.ones(1), 3, (torch.zeros(2),)],
                  named={"x": torch.ones(3), "y": "text"},
                  pair=Pair(torch.ones(4), None))
    assert names(value) == [".several.0", ".several.2.0", ".named.x", ".pair.0"]
    made = again(value)
    assert made.several[1] == 3 and isinstance(made.several[2], tuple)
    assert made.named["y"] == "text" and type(made.pair) is Pair
    assert made.pair.b is None and made.pair.a.numel() == 4


def test_an_object_without_tensors_is_itself():
    value = State(note=[1, {"a": (2,)}])
    parts, put_together = take_apart(value)
    assert not parts and put_together([]) is value


@pytest.mark.parametrize("value, holds", [
    (State(a=torch.ones(1)), True), ([torch.ones(1)], True),
    ({"a": State(b=(torch.ones(1),))}, True), (State(a=1), False),
    (torch.ones(1), False), (nn.Linear(1, 1), False), ("text", False),
    (None, False), (types, False), (len, False), (torch.float16, False)],
    ids=lambda value: type(value).__name__)
def test_holders_of_tensors_are_told_from_all_else(value, holds):
    assert holds_tensors(value) is holds


def test_objects_that_refer_to_themselves_end():
    value = State(a=torch.ones(1))
    value.itself = value
    parts, put_together = take_apart(value)
    assert put_together([part for _, part in parts]).a.item() == 1


def test_a_tensor_without_memory_that_does_not_flatten_is_refused():
    with pytest.raises(hoist.Unimplemented,
                       match="__tensor_flatten__.*exclude"):
        take_apart(Opaque())


def test_an_empty_subclass_is_no_refusal():
    assert names(WithMemory(torch.empty(0, 3))) == [""]
