"""An attach that fails leaves its caller's weights as they were, whatever hoistd
does meanwhile: the objects, their memory, and what they compute."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from deaths import start_again  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from failing import (Belongings, Calls, drain, end_sessions,  # noqa: E402
                     fail, forget_all, interrupt, is_given_back, models_in,
                     watched)
from models import Stack, Transformer, WIDTH, numbers  # noqa: E402
from real_daemon import MIB, RealDaemon, until  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402


class Recurrent(nn.Module):
    """torch's recurrent modules keep lists of their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleList(nn.GRU(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.BatchNorm1d(WIDTH)  # With buffers.

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for row in self.rows:
            x = row(x)[0]
        return self.norm(x[:, :, 0] if x.dim() > 3 else x.reshape(-1, WIDTH))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.experts = nn.ModuleList(
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return sum(expert(x) for expert in self.experts)


class Mixture(nn.Module):
    """transformers' experts, of which a guess may name all."""

    def __init__(self) -> None:
        super().__init__()
        moe = pytest.importorskip(
            "transformers.models.qwen3_moe.modeling_qwen3_moe")
        config = moe.Qwen3MoeConfig(
            hidden_size=WIDTH, num_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=WIDTH)
        config._experts_implementation = "batched_mm"
        self.layers = nn.ModuleList([moe.Qwen3MoeSparseMoeBlock(config)])
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[0](x)


@dataclasses.dataclass(frozen=True)
class Kind:
    make: Callable[[], nn.Module]
    options: dict[str, Any]
    x: Callable[[], torch.Tensor] = lambda: numbers(2, 3, WIDTH)
    exact: bool = True  # What it computes once it is attached.
    there_already: bool = False  # hoistd has the same weights.


KINDS = {
    "streamed": Kind(lambda: Stack(4), {"budget": 300_000}),
    "pinned": Kind(lambda: Transformer(3), {"budget": 0.7},
                   lambda: torch.arange(6).reshape(2, 3)),
    "resident": Kind(lambda: Stack(3), {"budget": 1.0}),
    "there already": Kind(lambda: Stack(4), {"budget": 300_000},
                          there_already=True),
    "cast": Kind(lambda: Stack(3), {"budget": 200_000, "skip": (),
                                    "storage_dtype": torch.float16},
                 exact=False),
    "recurrent": Kind(Recurrent, {"budget": 1.0}),
    "in place": Kind(Experts, {"budget": 1.0, "in_place": "experts"}),
    "ahead": Kind(Mixture, {"budget": "8MiB", "in_place": "experts",
                            "ahead": lambda *_: torch.arange(8)},
                  lambda: numbers(1, 1, WIDTH)),
}


def made(kind: Kind) -> nn.Module:
    torch.manual_seed(1)
    model = kind.make().eval()
    first = next(model.parameters())
    first.requires_grad_(False)  # The others need gradients.
    model.register_forward_hook(_count)
    model.calls = 0
    return model


def _count(module: nn.Module, args: Any, output: Any) -> None:
    module.calls += 1


@torch.no_grad()
def run(kind: Kind, model: nn.Module) -> torch.Tensor:
    before = model.calls
    found = model(kind.x())
    assert model.calls == before + 1
    return found


@dataclasses.dataclass(frozen=True)
class Act:
    """What comes in the middle of an attach, and what has hoistd serve again."""

    do: Callable[[RealDaemon], None]
    after: Callable[[RealDaemon], None] = lambda daemon: None


ACTS = {
    "error": Act(lambda daemon: fail()),
    "interrupt": Act(lambda daemon: interrupt()),
    "drain": Act(drain, lambda daemon: daemon.ctl("drain", "--resume")),
    "end": Act(end_sessions),
    "forget": Act(forget_all),
    "kill": Act(lambda daemon: daemon.kill(), start_again),
}


def attach_with(calls: Calls, number: int, act: Callable[[], None],
                attach: Callable[[], Any]) -> BaseException | None:
    """What it raises; the act comes before the call of that number."""
    calls.act_at(number, act)
    try:
        attach()
    except (hoist.HoistError, KeyboardInterrupt) as error:
        return error.with_traceback(None)
    finally:
        calls.act_no_more()
    return None


@pytest.mark.only_emulated("where a module lies is the host's")
@pytest.mark.parametrize("what", sampled(ACTS, "error", "drain", "end", "kill"))
@pytest.mark.parametrize("name", sampled(
    KINDS, "streamed", "pinned", "there already", "cast", "in place", "ahead"))
def test_whatever_comes_before_whichever_call(make_hoistd, monkeypatch, name,
                                              what):
    kind, act = KINDS[name], ACTS[what]
    daemon = make_hoistd(pool=8 * MIB, host=32 * MIB)
    model = made(kind)
    expected = run(kind, model)
    own = Belongings(model)
    failed = number = 0
    with watched(monkeypatch) as calls:
        while True:
            if kind.there_already:
                hoist.detach(hoist.attach(copy.deepcopy(model)))
            there = models_in(daemon)
            error = attach_with(calls, number, lambda: act.do(daemon),
                                lambda: hoist.attach(model, deadline=1,
                                                     stage_deadline=1,
                                                     **kind.options))
            if error is not None:
                failed += 1
                own.assert_all_there()
                assert_equal_outputs(run(kind, model), expected,
                                     f"call {number}")
            reached = calls.count > number
            act.after(daemon)
            until(lambda: error is None or is_given_back(daemon))
            # An ended session says no more.
            until(lambda: error is None or what == "end"
                  or models_in(daemon) <= there)
            if error is not None:
                hoist.attach(model, **kind.options)
                if kind.exact:
                    assert_equal_outputs(run(kind, model), expected,
                                         f"again after {number}")
            with contextlib.suppress(hoist.DataLoss):  # It was killed late.
                hoist.detach(model)
            del model
            forget_all(daemon)
            model = made(kind)
            own = Belongings(model)
            if not reached:
                break
            number += 1
    assert failed and number > 5


def test_what_is_not_there_is_told_where_the_model_is(make_hoistd,
                                                      monkeypatch):
    """A forgotten model is another error; see test_in_place_disk.py."""
    make_hoistd(pool=8 * MIB, host=32 * MIB)

    def plan(*_: Any) -> None:
        raise hoist.NotFound("hoistd no longer has device 7")

    monkeypatch.setattr("hoist.nn._api.assemble._plan", plan)
    model = made(KINDS["streamed"])
    own = Belongings(model)
    with pytest.raises(hoist.NotFound, match="no longer has device 7"):
        hoist.attach(model, **KINDS["streamed"].options)
    own.assert_all_there()
