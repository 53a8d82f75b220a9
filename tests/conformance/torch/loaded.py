"""Checks of a module that hoist.load made, beside its library's own."""

from __future__ import annotations

import contextlib
from typing import Callable

import hoist
import pytest
import torch
from compiling import CountingBackend, fresh_compiler, plenty_of_code
from deaths import start_again
from equal import assert_equal_outputs, same_bytes
from real_daemon import RealDaemon
from torch import nn

Run = Callable[[nn.Module], torch.Tensor]


def assert_same_state(ours: nn.Module, theirs: nn.Module) -> None:
    mine, expected = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(expected)
    for name, value in expected.items():
        assert same_bytes(mine[name], value), name


def check_budgets(loaded: nn.Module, run: Run, expected: torch.Tensor) -> None:
    for budget in (0.6, 0.8, 1.0):
        hoist.set_budget(loaded, budget)
        for turn in range(2):
            assert_equal_outputs(run(loaded), expected,
                                 f"budget {budget}, pass {turn}")
    hoist.check(loaded)


def check_equals(theirs: nn.Module, loaded: nn.Module, run: Run,
                 same_state: Callable[[nn.Module, nn.Module], None]
                 = assert_same_state) -> None:
    """In kind, outputs and state; detached, too."""
    kinds = [type(one) for one in theirs.modules()]
    device = next(theirs.parameters()).device
    expected = run(theirs)
    assert [type(one) for one in loaded.modules()] == kinds
    check_budgets(loaded, run, expected)
    same_state(loaded, theirs)
    hoist.detach(loaded)
    same_state(loaded, theirs)
    assert [type(one) for one in loaded.parameters()] == [
        type(one) for one in theirs.parameters()]
    assert_equal_outputs(run(loaded.to(device)), expected, "detached")


def check_shared(hoistd: RealDaemon, loaded: nn.Module,
                 load: Callable[..., nn.Module], run: Run) -> None:
    """Another worker's module is of the same model: nothing is read for it."""
    def used() -> tuple[int, int]:
        return (hoistd.tier("HOST")["used_bytes"],
                hoistd.counters()["file_read_bytes"])

    expected = run(loaded)
    before = used()
    with hoist.connect(hoistd.socket) as session:
        other = load(session=session)
        assert_equal_outputs(run(other), expected)
        assert hoist.stats(other).model == hoist.stats(loaded).model
        assert used() == before
        hoist.check(other)
        hoist.detach(other)


def check_outlives(daemon: RealDaemon, loaded: nn.Module, run: Run,
                   expected: torch.Tensor) -> None:
    """hoistd dies, and starts again; without one, it is detached."""
    assert_equal_outputs(run(loaded), expected)
    daemon.kill()
    start_again(daemon)
    with contextlib.suppress(hoist.Unavailable):  # Of the pass that it hits.
        run(loaded)
    for turn in range(2):
        assert_equal_outputs(run(loaded), expected, f"pass {turn}")
    daemon.kill()
    hoist.detach(loaded)  # From the files.


def check_adapters(theirs: nn.Module, loaded: nn.Module, run: Run,
                   targets: list[str]) -> None:
    """LoRA goes on top of both, and off again."""
    peft = pytest.importorskip("peft")

    def adapted(model: nn.Module) -> nn.Module:
        torch.manual_seed(7)
        made: nn.Module = peft.get_peft_model(model, peft.LoraConfig(
            r=4, target_modules=targets, init_lora_weights=False)).eval()
        return made

    expected = run(adapted(theirs))
    plain = run(loaded)
    over = adapted(loaded)
    assert not torch.equal(expected, plain)
    for turn in range(2):
        assert_equal_outputs(run(over), expected, f"pass {turn}")
    assert over.unload() is loaded
    assert_equal_outputs(run(loaded), plain, "unloaded")
    hoist.check(loaded)
    hoist.detach(loaded)  # peft keeps the module of some kinds.


def check_compiled(theirs: nn.Module, loaded: nn.Module, run: Run) -> None:
    run(theirs)  # Libraries fill states and remove hooks in the first pass.
    with fresh_compiler(), plenty_of_code():
        expected = run(torch.compile(theirs, backend="aot_eager"))
    with fresh_compiler(), plenty_of_code():
        backend = CountingBackend()
        compiled = torch.compile(loaded, backend=backend)
        for turn in range(3):
            assert_equal_outputs(run(compiled), expected, f"pass {turn}")
        assert backend.compilations
    hoist.check(loaded)
