"""Stacks for tests of models that share a device: 12.7 MiB each."""

from __future__ import annotations

import copy

import torch
from equal import assert_equal_outputs
from models import Stack

WIDTH = 256


def stack(seed: int = 0) -> Stack:
    torch.manual_seed(seed)
    return Stack(width=WIDTH).eval()


def wanted(model: Stack, x: torch.Tensor) -> torch.Tensor:
    """What it computes without hoistd."""
    with torch.no_grad():
        made: torch.Tensor = copy.deepcopy(model).to(x.device)(x)
        return made


def assert_right(model: Stack, x: torch.Tensor, want: torch.Tensor) -> None:
    with torch.no_grad():
        assert_equal_outputs(model(x), want)
