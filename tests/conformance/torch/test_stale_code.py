"""Compiled code that outlived a change, as guards are skipped: it reads true
bytes or raises. (Where inductor's own kernels read an idle weight on the CPU, it
faults; these layers' weights are read by operators.)"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import fresh_compiler  # noqa: E402
from models import WIDTH, numbers  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.skipif(not hoist.nn._graph.compiled.can_wait(),
                                reason="needs torch 2.7")
NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("c++") is None and shutil.which("g++") is None,
    reason="inductor needs a C++ compiler for CPU code")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def without_guards(module: nn.Module, way: str, backend: str) -> Any:
    options: Any = dict(
        backend=backend, fullgraph=True,
        options={"guard_filter_fn": lambda entries: [False for _ in entries]})
    if way == "whole":
        return torch.compile(module, **options)
    for one in [module] if way == "in place" else module.layers:
        one.compile(**options)
    return module


def is_right_or_raises(code: Any, x: torch.Tensor, expected: Any) -> None:
    try:
        found = code(x)
    except RuntimeError:  # On a GPU: the idle weight is on the CPU.
        assert x.device.type != "cpu"
        return
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way, backend", [
    ("whole", "eager"), ("in place", "eager"), ("blocks", "eager"),
    pytest.param("in place", "inductor", marks=NEEDS_COMPILER)])
def test_code_of_before_attach_reads_no_other_groups_bytes(hoistd, device, way,
                                                           backend):
    with torch.no_grad(), fresh_compiler():
        module = Stack(6).to(device).eval()
        x = numbers(2, WIDTH).to(device)
        code = without_guards(module, way, backend)
        expected = code(x)
        hoist.attach(module, 0.5)
        assert hoist.stats(module).streamed_bytes > 0
        for _ in range(5):
            is_right_or_raises(code, x, expected)
        hoist.detach(module)


@pytest.mark.parametrize("way", ["in place", "blocks"])
def test_code_of_another_budget_reads_no_other_groups_bytes(hoistd, device,
                                                            way):
    """It stages less than it would have to by now, or what stays by now."""
    with torch.no_grad(), fresh_compiler():
        module = Stack(8).to(device).eval()
        x = numbers(2, WIDTH).to(device)
        expected = module(x)
        hoist.attach(module, 0.9)
        code = without_guards(module, way, "eager")
        for budget in (0.9, 0.4, 0.9, 0.4):
            hoist.set_budget(module, budget)
            for _ in range(4):
                is_right_or_raises(code, x, expected)
        hoist.detach(module)
