"""What a factory of hoist.load may do, and what building costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist.nn._store.building import build_on_meta  # noqa: E402
from real_daemon import write_safetensors  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 8

BUILD = """
import sys
sys.path += {path!r}
import torch
from torch import nn
from hoist.nn._store.building import build_on_meta


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2))
        self.words = nn.Embedding(9, 8, padding_idx=0)
        self.image = nn.Conv2d(3, 8, 2)
        self.norm = nn.BatchNorm2d(8)
        for one in self.parameters():
            nn.init.normal_(one, std=0.02)
            one.data.uniform_(-1, 1)
            with torch.no_grad():
                one.mul_(2).clamp_(-1, 1)
        nn.init.trunc_normal_(self.words.weight)
        nn.init.xavier_uniform_(self.words.weight)


before = set(sys.modules)
model = build_on_meta(Model)
assert all(one.is_meta for one in model.parameters())
assert torch.equal(model.norm.running_var, torch.ones(8))
print(sorted(name for name in set(sys.modules) - before))
"""


def test_building_imports_nothing():
    said = subprocess.run(
        [sys.executable, "-c", BUILD.format(path=sys.path)], check=True,
        capture_output=True, text=True).stdout
    assert "sympy" not in said and "torch._refs" not in said, said


class Filled(nn.Module):
    """Initialises weights and buffers by hand, from other tensors, too."""

    def __init__(self) -> None:
        super().__init__()
        start = torch.empty(WIDTH, WIDTH)
        nn.init.constant_(start, 3.0)
        start.mul_(2.0)
        self.start = float(start[0, 0])
        self.scale = nn.Parameter(torch.empty(WIDTH))
        with torch.no_grad():
            self.scale.copy_(start[0])
            self.scale[2:].zero_()
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("shift", torch.empty(WIDTH).fill_(1.5).add_(1))
        self.register_buffer("late", torch.zeros(WIDTH), persistent=False)
        self.late.copy_(torch.arange(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x * self.scale) + self.shift * self.late


def test_a_factory_fills_what_is_its_own_and_not_what_hoist_brings(
        hoistd, device, tmp_path):
    resident = Filled()
    assert resident.start == 6.0
    parameters = {name: torch.randn(one.shape)
                  for name, one in resident.named_parameters()}
    path = tmp_path / "filled.safetensors"
    write_safetensors(path, {
        name: ("F32", list(one.shape), one.numpy().tobytes())
        for name, one in parameters.items()})
    resident.load_state_dict(parameters, strict=False)
    x = torch.randn(3, WIDTH, device=device)
    with torch.no_grad():
        expected = resident.to(device)(x)
        model = hoist.load(Filled, path)
        assert model.start == 6.0
        assert_equal_outputs(model(x), expected)
        assert torch.equal(model.shift.cpu(), torch.full((WIDTH,), 2.5))


def test_initialising_outside_a_factory_is_as_before(hoistd):
    hoist.attach(nn.Linear(4, 4))
    assert nn.init.ones_(torch.empty(3)).sum() == 3
    meta = nn.init.normal_(torch.empty(3, device="meta"))
    assert meta.is_meta and meta.shape == (3,)


def test_a_factory_that_fails_leaves_torch_as_it_was():
    def fail() -> nn.Module:
        nn.Linear(2, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build_on_meta(fail)
    made = nn.Linear(2, 2)
    assert not made.weight.is_meta and made.weight.abs().sum() > 0


def test_a_factory_that_moves_what_is_not_there_is_refused(tmp_path):
    """Item 21: torch says "Cannot copy out of meta tensor"."""
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"weight": ("F32", [2, 2], bytes(16))})
    with pytest.raises(hoist.InvalidArgument, match="only makes the module"):
        hoist.load(lambda: nn.Linear(2, 2, bias=False).to("cpu"), path)
