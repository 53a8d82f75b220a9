"""A thread's failure is its own: passes of other threads go on."""

from __future__ import annotations

import concurrent.futures
import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"), pytest.mark.real_time]


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


class InThreads(Stack):
    """Blocks that its forward has others run, and waits for."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs: list[torch.Tensor] = []

        def run(layer: nn.Module) -> None:
            with torch.no_grad():
                outs.append(layer(x))

        if self.how == "executor":
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(run, self.layers))
        else:
            threads = [threading.Thread(target=run, args=(layer,))
                       for layer in self.layers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return torch.stack(outs) if outs else x


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("how", ["executor", "join"])
def test_a_forward_that_waits_for_threads_of_its_own_is_refused(device, how):
    """Rather than waiting for ever; where all stays there is nothing to wait
    for."""
    torch.manual_seed(0)
    model = InThreads(how).eval()
    x = numbers(2, WIDTH).to(device)
    with attached(model, least_budget(model)):
        if how == "executor":
            with pytest.raises(hoist.FailedPrecondition, match="this thread"):
                model(x)
        else:
            model(x)  # What threads raise ends there.
        block = model.layers[2]
        with torch.no_grad():
            found = block(x)
        hoist.set_budget(model, 1.0)
        assert len(model(x)) == 6
    with torch.no_grad():
        assert_equal_outputs(found, block.to(device)(x))
