"""Equality, bit for bit, of whatever models return."""

from __future__ import annotations

from typing import Any, Iterator

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of outputs, caches and containers, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


def same_bytes(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """NaNs and signed zeros included; devices and strides aside."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    flat = (one.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            for one in (ours, theirs))
    return torch.equal(*flat)


def assert_equal_outputs(ours: Any, theirs: Any, what: str = "") -> None:
    """`theirs` must hold something: nothing is equal to nothing."""
    mine, expected = list(tensors_in(ours)), list(tensors_in(theirs))
    assert expected, f"{what}: no tensors to compare"
    assert len(mine) == len(expected), what
    for index, (one, other) in enumerate(zip(mine, expected)):
        assert same_bytes(one, other), (
            f"{what}: output {index} of {len(mine)} differs: "
            f"{tuple(one.shape)} {one.dtype}, {tuple(other.shape)} "
            f"{other.dtype}")


def assert_close_outputs(ours: Any, *theirs: Any) -> None:
    """No further from the first of `theirs` than any of them is from another:
    what differs in the order of a sum, and no more. Bit for bit where they are
    the same."""
    mine, *expected = (list(tensors_in(one)) for one in (ours, *theirs))
    assert expected[0] and all(len(mine) == len(one) for one in expected)
    for index, (one, first) in enumerate(zip(mine, expected[0])):
        if all(same_bytes(first, others[index]) for others in expected):
            assert same_bytes(one, first), f"output {index} differs"
        else:
            torch.testing.assert_close(one, first)
