"""Engines that write to weights once these are hoistd's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.serving._guard import Guard  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def weight():
    return nn.Parameter(torch.tensor([[1.0, 2.0], [float("nan"), 4.0]]),
                        requires_grad=False)


@pytest.fixture
def guard(weight):
    return Guard([(weight.data_ptr(), weight.data_ptr() + weight.nbytes)])


def test_what_is_there_already_is_not_copied(weight, guard):
    at = weight.data_ptr()
    with guard:
        assert weight.copy_(weight.t().contiguous().t()) is weight
    assert weight.data_ptr() == at and weight._version == 0


def test_other_values_are_in_memory_of_ones_own(weight, guard):
    shared = weight.data
    with guard:
        weight.copy_(torch.tensor([5.0, 6.0]))
    assert weight.tolist() == [[5.0, 6.0], [5.0, 6.0]]
    assert shared[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("write", [
    lambda tensor: tensor.fill_(0), lambda tensor: tensor[1].mul_(2),
    lambda tensor: tensor.data.__setitem__(0, 3.0),
    lambda tensor: torch.add(tensor, 1, out=tensor)])
def test_other_writes_are_refused(weight, guard, write):
    with guard, pytest.raises(hoist.FailedPrecondition, match="read-only"):
        write(weight)
    assert weight[1, 1] == 4


def test_other_memory_is_written_to(weight, guard):
    other = torch.zeros(2)
    with guard:
        other.copy_(weight[0])
        other[0] = 7.0
        torch.add(other, 1, out=other)
    assert other.tolist() == [8.0, 3.0]
