"""What tests of passes have in common: references, budgets, groups."""

from __future__ import annotations

import contextlib
import copy
import re
from typing import Any, Callable, Iterator

import pytest
import torch
from torch import nn

import hoist
from equal import assert_equal_outputs
from models import CASES, Case

# Of groups=...; "dict" and "callable" are made for the module at hand.
GROUPS = ["block", ("block", 2), "leaf", "dict", "callable"]


def groups_of(kind: Any, model: nn.Module) -> Any:
    """groups= for the module: mixed sizes, the rest left to hoist."""
    names = [name for name, _ in model.named_modules() if name]
    if kind == "dict":
        # Blocks in twos, if it has a list of them; what is beside, by leaf.
        rows = [name for name, one in model.named_modules()
                if isinstance(one, nn.ModuleList) and name]
        if not rows:
            return {"all": [""]}
        blocks = [name for name in names
                  if re.fullmatch(re.escape(rows[0]) + r"\.\d+", name)]
        return {f"pair {at // 2}": blocks[at:at + 2]
                for at in range(0, len(blocks), 2)}
    if kind == "callable":
        # Of the linears in blocks, those that end in "down" are by themselves.
        return lambda name, module: (
            name if name.endswith("down") else
            name if re.fullmatch(r"\w+\.\d+", name) else None)
    return kind


def group_names(model: nn.Module) -> list[str]:
    """An attached module's groups, in the order of its tree."""
    # hoistd has them in the order in which they were handed over: several at
    # once.
    return [group.spec.name for group in vars(model)["_hoist"].groups]


def least_budget(model: nn.Module, **options: Any) -> int:
    """What hoist says would be enough, when it is given one byte."""
    with pytest.raises(hoist.ResourceExhausted) as refused:
        hoist.attach(model, 1, **options)
    found = re.findall(r"least that would be enough is (\d+) bytes",
                       str(refused.value))
    assert found, refused.value
    return int(found[-1])


@contextlib.contextmanager
def attached(model: nn.Module, *args: Any, **options: Any
             ) -> Iterator[nn.Module]:
    hoist.attach(model, *args, **options)
    try:
        yield model
    finally:
        hoist.detach(model)


def make(name: str) -> tuple[Case, nn.Module]:
    case = CASES[name]
    return case, case.make().eval()


@torch.no_grad()
def references(case: Case, model: nn.Module, device: torch.device,
               turns: int = 3) -> list[Any]:
    """What the module gives wholly on the device, a turn each."""
    whole = copy.deepcopy(model).to(device)
    return [case.run(whole, device, turn) for turn in range(turns)]


@torch.no_grad()
def assert_passes(case: Case, model: nn.Module, device: torch.device,
                  expected: list[Any], what: str = "", first: int = 0) -> None:
    """A pass for each; `first`: its turn."""
    for turn, wanted in enumerate(expected, first):
        assert_equal_outputs(case.run(model, device, turn), wanted,
                             f"{what} turn {turn}")
    hoist.check(model)


def moved(hoistd: Any, work: Callable[[], Any]) -> dict[str, int]:
    """What hoistd's counters grew by, meanwhile."""
    before = hoistd.counters()
    work()
    after = hoistd.counters()
    return {name: after[name] - before[name] for name in before}


def settled(hoistd: Any) -> dict[str, int]:
    """hoistd's counters, once it has copied ahead what it may; but for its
    longest event, which is a time."""
    before: list[dict[str, int]] = []
    while len(before) < 3 or any(one != before[-1] for one in before[-3:]):
        before.append(hoistd.counters())
        before[-1].pop("longest_event_us")
    return before[-1]


def hooks_of(model: nn.Module) -> int:
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks)
               for one in model.modules())
