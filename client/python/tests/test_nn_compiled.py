"""What modules show of torch.compile."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo  # noqa: E402
from hoist.nn._graph.compiled import is_there, may_be_there  # noqa: E402


def in_place(module: Any) -> Any:
    module.compile(backend="eager")
    return module


def wrapped(module: Any) -> Any:
    return torch.compile(module, backend="eager")


def forward(module: Any) -> Any:
    module.forward = torch.compile(module.forward, backend="eager")
    return module


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has compiled nothing."""
    of = torch._dynamo.eval_frame
    marked: Any = of.always_optimize_code_objects
    monkeypatch.setattr(of, "always_optimize_code_objects", type(marked)())


@pytest.mark.parametrize("way", [in_place, wrapped, forward])
def test_a_compiled_call_is_seen_before_it_runs(way: Callable[[Any], Any]
                                                ) -> None:
    module = torch.nn.Linear(2, 2)
    assert not may_be_there()
    compiled = way(module)
    assert may_be_there()
    assert is_there([torch.nn.Linear(2, 2), compiled])
    assert not is_there([torch.nn.Linear(2, 2)])


def test_what_torch_is_to_leave_alone_is_not_compiled() -> None:
    module = torch.nn.Linear(2, 2)
    module.forward = torch.compiler.disable(module.forward)
    assert not may_be_there()


def test_a_torch_without_marks_may_have_compiled(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._dynamo.eval_frame,
                        "always_optimize_code_objects")
    assert may_be_there()
