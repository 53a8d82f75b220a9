"""Ctrl-C while hoist waits: Python raises KeyboardInterrupt as soon as the call
that waited is over, and so before anybody knows what it has brought."""

from __future__ import annotations

import logging
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from compiling import fresh_compiler  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from hoist import _library  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from real_daemon import MIB  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.real_time
WARM = 5  # Passes, until all is planned and compiled.


def interrupted(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """The call, with Ctrl-C in the one of that number."""
    left = [at]

    def wait(*arguments: Any) -> Any:
        result = call(*arguments)
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        return result

    return wait


@pytest.mark.parametrize("way", ["as written", "one graph", "backward"])
def test_a_plan_has_its_place_back(hoistd, device, caplog, way):
    """Else what takes turns with the group is staged beside the plan for good,
    beyond the budget, and compiled code not at all."""
    torch.manual_seed(0)
    model = Stack().to(device).requires_grad_(False)
    x = numbers(2, WIDTH).to(device)

    def run() -> list[torch.Tensor]:
        if way != "backward":
            with torch.no_grad():
                return [model(x)]
        given = x.clone().requires_grad_(True)
        out = model(given)
        out.sum().backward()
        return [out, given.grad]

    expected = run()
    with fresh_compiler():
        hoist.attach(model, budget="300KiB")
        if way == "one graph":
            model.compile(backend="eager", fullgraph=True)
        for _ in range(WARM):
            run()
        plan = model._hoist.parts[0].plan
        stage = plan._stage
        for at in range(8):
            plan._stage = interrupted(stage, at)
            with pytest.raises(KeyboardInterrupt):
                for _ in range(3):
                    run()
            plan._stage = stage
            for _ in range(2):
                assert_equal_outputs(run(), expected)
        assert model._hoist.parts[0].plan is plan
        assert not [one.getMessage() for one in caplog.records
                    if one.levelno >= logging.WARNING]
        hoist.detach(model)


def test_before_libhoist_is_called_it_ends_no_other_stage(hoistd):
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    with hoist.connect() as session:
        model = session.publish("m", "a", {"w": memoryview(bytes(4096))})
        group = model.groups[0]
        with session.set_plan(model, order=[group]) as plan:
            plan.stage(group)
            stage, plan._stage = plan._stage, interrupt
            with pytest.raises(KeyboardInterrupt):
                plan.stage(group)
            plan._stage = stage
            plan.done(group)
            with pytest.raises(hoist.FailedPrecondition, match="not staged"):
                plan.done(group)


class Tied(nn.Module):
    """What is pinned, what is planned, and what is read in place."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1024, 1024)
        self.scale = nn.Parameter(torch.randn(1024))
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x) * self.scale
        return x


@pytest.mark.hoistd(pool=64 * MIB, host=96 * MIB)
@pytest.mark.parametrize("call", ["find_content", "stage", "set_plan",
                                  "in_place_create"])
def test_attach_leaves_nothing_behind(hoistd, device, monkeypatch, call):
    """In hoistd, for as long as the session lives."""
    torch.manual_seed(0)
    model = Tied().to(device).requires_grad_(False)
    ids = torch.arange(8, device=device)
    expected = model(ids)
    library = _library.load()
    name = f"hoist_{call}"
    with hoist.connect() as session:
        with monkeypatch.context() as patch:
            patch.setattr(library, name,
                          interrupted(getattr(library, name), 0))
            with pytest.raises(KeyboardInterrupt):
                hoist.attach(model, budget="9MiB", in_place="words",
                             session=session)
        assert not hasattr(model, "_hoist")
        assert_equal_outputs(model(ids), expected)
        assert hoistd.tier("DEVICE")["leased_bytes"] == 0
        hoistd.forget_models()  # Which is refused where one is in use.
