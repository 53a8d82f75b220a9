"""A thread's failure is its own: passes of other threads go on."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from equal import assert_equal_outputs  # noqa: E402
from models import Stack, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")


@pytest.mark.parametrize("where", ["model", "block"])
@pytest.mark.parametrize("idle", ["cpu", "slot"])
def test_a_hook_that_fails_does_not_end_anothers_pass(device, idle, where):
    """Item 21: one thread waits within a block; meanwhile another one's call
    fails before hoist's own hooks are reached."""
    model = Stack(4).eval()
    x = numbers(2, 64).to(device)
    inside, go_on = threading.Event(), threading.Event()
    fails: list[int] = []
    outputs: list[torch.Tensor] = []

    def wait(*_) -> None:
        inside.set()
        assert go_on.wait(60)

    def fail(*_) -> None:
        if threading.get_ident() in fails:
            raise ZeroDivisionError

    def run() -> None:
        with torch.no_grad():
            outputs.append(model(x))

    with torch.no_grad():
        expected = model.to(device)(x)
        model.to("cpu")
        with attached(model, least_budget(model), idle=idle):
            target = {"model": model, "block": model.layers[2]}[where]
            target.register_forward_pre_hook(fail, prepend=True)
            handle = model.layers[2].up.register_forward_pre_hook(wait)
            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            assert inside.wait(60)
            fails.append(threading.get_ident())
            with pytest.raises(ZeroDivisionError):
                target(x)
            fails.clear()
            go_on.set()
            thread.join(60)
            assert not thread.is_alive() and len(outputs) == 1
            assert_equal_outputs(outputs[0], expected)
            handle.remove()
            for _ in range(2):
                assert_equal_outputs(model(x), expected)
