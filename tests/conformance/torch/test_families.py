"""Models of many families compute under hoist what they compute without it."""

from __future__ import annotations

from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("diffusers")

import hoist  # noqa: E402
from compiling import CountingBackend, fresh_compiler  # noqa: E402
from equal import (assert_close_outputs,  # noqa: E402
                   assert_equal_outputs)
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


def smallest(make: Callable[..., torch.nn.Module], *args: Any,
             **options: Any) -> torch.nn.Module:
    """hoist.attach or load, with the smallest of some budgets that will do, so
    that groups stream wherever the model can."""
    for budget in (0.3, 0.5, 0.7, 0.9):
        try:
            return make(*args, budget, **options)
        except hoist.ResourceExhausted:
            pass
    return make(*args, 1.0, **options)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_staged_equals_resident_in_every_way(hoistd, device, family, groups):
    found = FAMILIES[family]
    module = found.make().to(device)
    with torch.no_grad():
        expected = found.run(module, device)
        smallest(hoist.attach, module, groups=GROUPS[groups])
        for turn in range(3):
            assert_equal_outputs(found.run(module, device), expected,
                                 f"pass {turn}")
        hoist.check(module)
        assert hoist.stats(module).stages > 0
        hoist.detach(module)
        assert_equal_outputs(found.run(module, device), expected, "after")


@pytest.mark.nightly
@pytest.mark.parametrize("family", FAMILIES)
def test_a_compiled_family_equals_the_compiled_resident(hoistd, device,
                                                        family):
    found = FAMILIES[family]
    module = found.make().to(device)
    way = found.ways["forward"]
    with torch.no_grad(), fresh_compiler():
        expected = way(torch.compile(module, backend=found.backend), device)
        uncompiled = way(module, device)
    with torch.no_grad(), fresh_compiler():
        smallest(hoist.attach, module, groups="block")
        counting = CountingBackend(found.backend)
        compiled = torch.compile(module, backend=counting)
        for turn in range(2):  # They may show the order, uncompiled.
            assert_close_outputs(way(compiled, device), expected, uncompiled)
        assert_equal_outputs(way(compiled, device), expected, "pass 2")
        warm = counting.compilations
        for turn in range(2):
            assert_equal_outputs(way(compiled, device), expected,
                                 f"pass {3 + turn}")
        assert counting.compilations == warm > 0
        hoist.check(module)


@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_loaded_family_equals_the_resident(hoistd, device, tmp_path, family,
                                             groups):
    found = FAMILIES[family]
    module = found.make().to(device)
    module.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = found.run(module, device)
        del module
        loaded = smallest(hoist.load, found.build, tmp_path, groups=groups)
        for turn in range(2):
            assert_equal_outputs(found.run(loaded, device), expected,
                                 f"pass {turn}")
        hoist.check(loaded)
    assert hoistd.counters()["file_read_bytes"] > 0
