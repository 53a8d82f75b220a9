"""Wrappers taken apart for compiled code, and what makes them again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hoist.nn._tensors.rebuilt import take_plain  # noqa: E402
from test_nn_take_apart import Wrapper  # noqa: E402
from torch import nn  # noqa: E402


class Kind(nn.Parameter):
    pass


def a_wrapper(note="note", shape=(2, 3)):
    return Wrapper(torch.ones(shape), torch.zeros(shape), note)


def test_it_is_made_again_of_the_tensors_that_are_given():
    value = Wrapper(a_wrapper("inner"), torch.rand(2, 3), "outer")
    taken = take_plain(value, Kind)
    assert [type(one) for one in taken.plain] == [Kind] * 3
    assert [one.data_ptr() for one in taken.plain] == [
        one.data_ptr() for one in (value.one.one, value.one.other, value.other)]
    others = [torch.full((2, 3), float(at)) for at in range(3)]
    made = taken.build(*others)
    assert type(made) is Wrapper and made.note == "outer"
    assert made.one.note == "inner"
    assert [made.one.one, made.one.other, made.other] == others


def test_those_that_are_alike_share_what_makes_them():
    build = take_plain(a_wrapper(), Kind).build
    assert take_plain(a_wrapper(), Kind).build is build
    for other in (a_wrapper("other"), a_wrapper(shape=(3, 2)),
                  Wrapper(a_wrapper(), torch.zeros(2, 3), "note")):
        assert take_plain(other, Kind).build is not build


def test_what_cannot_be_compared_shares_nothing():
    # Of tensors == is no truth.
    builds = [take_plain(a_wrapper(torch.zeros(2)), Kind).build
              for _ in range(2)]
    assert builds[0] is not builds[1]


@pytest.mark.parametrize("value", [
    a_wrapper(shape=(0, 3)),
    Wrapper(nn.Parameter(torch.ones(2)), torch.zeros(2), ""),
    nn.Parameter(torch.ones(2)),
], ids=["empty", "a parameter in it", "no wrapper"])
def test_what_is_not_made_of_plain_tensors_alone_is_not_taken(value):
    assert take_plain(value, Kind) is None


def test_nor_is_one_whose_tensors_have_attributes():
    value = a_wrapper()
    value.one.mark = 1
    assert take_plain(value, Kind) is None
    del value.one.mark
    value.one._dynamo_dynamic_indices = set()  # torch.compile's own.
    assert take_plain(value, Kind) is not None
