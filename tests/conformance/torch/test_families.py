"""Models of many families compute under hoist what they compute without it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("diffusers")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from families import FAMILIES  # noqa: E402


def mixed(name: str, module: torch.nn.Module) -> str | None:
    """Rows' elements in pairs, attentions apart, the rest by leaf."""
    last = name.rpartition(".")[2]
    if last.isdigit():
        return f"{name.rpartition('.')[0]}.pair{int(last) // 2}"
    if "attn" in last.lower() or "attention" in last.lower():
        return f"{name}.apart"
    return None


GROUPS = {"block": "block", "leaf": "leaf", "mixed": mixed}


def attach_small(module: torch.nn.Module, groups: Any,
                 **options: Any) -> torch.nn.Module:
    """With the smallest of some budgets that will do, so that groups stream
    wherever the model can."""
    for budget in (0.3, 0.5, 0.7, 0.9):
        try:
            return hoist.attach(module, budget, groups=groups, **options)
        except hoist.ResourceExhausted:
            pass
    return hoist.attach(module, 1.0, groups=groups, **options)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_staged_equals_resident_in_every_way(hoistd, device, family, groups):
    found = FAMILIES[family]
    module = found.make().to(device)
    with torch.no_grad():
        expected = {name: way(module) for name, way in found.ways.items()}
        attach_small(module, GROUPS[groups])
        for turn in range(3):
            for name, way in found.ways.items():
                assert_equal_outputs(way(module), expected[name],
                                     f"{name}, pass {turn}")
        hoist.check(module)
        assert hoist.stats(module).stages > 0
        hoist.detach(module)
        for name, way in found.ways.items():
            assert_equal_outputs(way(module), expected[name], f"{name} after")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_family_equals_the_compiled_resident(hoistd, device,
                                                        family):
    found = FAMILIES[family]
    module = found.make().to(device)
    way = found.ways["forward"]
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            expected = way(torch.compile(module, backend=found.backend))
            torch._dynamo.reset()
            attach_small(module, "block")
            compiled = torch.compile(module, backend=found.backend)
            for turn in range(3):
                assert_equal_outputs(way(compiled), expected, f"pass {turn}")
            hoist.check(module)
    finally:
        torch._dynamo.reset()
