"""Checks of a module that hoist.load made, beside its library's own."""

from __future__ import annotations

import contextlib
from typing import Callable

import hoist
import pytest
import torch
from compiling import CountingBackend, fresh_compiler, plenty_of_code
from deaths import start_again
from equal import assert_equal_outputs
from real_daemon import RealDaemon
from torch import nn

Run = Callable[[nn.Module], torch.Tensor]


def check_outlives(daemon: RealDaemon, run: Callable[[], torch.Tensor],
                   expected: torch.Tensor) -> None:
    """hoistd dies, and starts again."""
    assert_equal_outputs(run(), expected)
    daemon.kill()
    start_again(daemon)
    with contextlib.suppress(hoist.Unavailable):  # Of the pass that it hits.
        run()
    for turn in range(2):
        assert_equal_outputs(run(), expected, f"pass {turn}")


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
