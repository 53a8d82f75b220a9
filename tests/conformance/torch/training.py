"""Small trainings of what comes to a model whose own weights are frozen."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable

import torch
from torch import nn

import hoist
from equal import same_bytes, tensors_in
from models import Block

RANK = 4


class Adapted(nn.Module):
    """A linear that is frozen, and what is trained beside it, as peft has
    it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def frozen(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).requires_grad_(False)


def adapt(model: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """Adapters for the first linear of each block; the same each time. What
    comes and goes moves them to where it computes, what stays does not."""
    torch.manual_seed(7)
    for block in [one for one in model.modules() if isinstance(one, Block)]:
        block.up = Adapted(block.up)
        block.up.down.to(device)
        block.up.up.to(device)
    return model


@dataclasses.dataclass
class Step:
    """What a step has shown."""

    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: one for name, one in model.named_parameters()
            if one.requires_grad}


def take_gradients(model: nn.Module, keep: bool = False
                   ) -> dict[str, torch.Tensor]:
    """keep: they stay where they are, too."""
    found = {}
    for name, one in trained(model).items():
        assert one.grad is not None, name
        found[name] = one.grad.clone()
        if not keep:
            one.grad = None
    return found


def loss_of(output: Any) -> torch.Tensor:
    return (output.float() ** 2).mean()


def train(model: nn.Module, inputs: Callable[[int], Any], steps: int = 8,
          call: Callable[[nn.Module, Any], Any] = lambda model, x: model(x)
          ) -> list[Step]:
    """Steps of AdamW, each of other inputs, from the weights that it has."""
    optimizer = torch.optim.AdamW(trained(model).values(), 1e-2)
    found = []
    for at in range(steps):
        loss = loss_of(call(model, inputs(at)))
        loss.backward()
        gradients = {name: one.grad.clone() for name, one in
                     trained(model).items() if one.grad is not None}
        assert gradients
        optimizer.step()
        optimizer.zero_grad()
        found.append(Step(loss.detach(), gradients))
    return found


def assert_same_steps(ours: list[Step], theirs: list[Step]) -> None:
    assert len(ours) == len(theirs) > 0
    for at, (mine, other) in enumerate(zip(ours, theirs)):
        assert same_bytes(mine.loss, other.loss), f"step {at}: the loss"
        assert_same_gradients(mine.gradients, other.gradients, f"step {at}")


def assert_same_gradients(ours: dict[str, torch.Tensor],
                          theirs: dict[str, torch.Tensor],
                          what: str = "") -> None:
    assert list(ours) == list(theirs) and theirs, what
    for name, value in theirs.items():
        assert same_bytes(ours[name], value), f"{what}: {name}"


def both(model: nn.Module, device: torch.device, budget: Any, **options: Any
         ) -> tuple[nn.Module, nn.Module]:
    """The model on the device, and attached; with the same adapters."""
    plain = adapt(frozen(copy.deepcopy(model), device), device)
    hoist.attach(model.requires_grad_(False), budget, **options)
    return plain, adapt(model, device if budget == 1.0 else "cpu")


class Nudges:
    """Numbers that are added to what each innermost module gives, whose
    gradients therefore go through every weight. They are no module's."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.values: dict[str, torch.Tensor] = {}
        self._handles = []
        for name, module in model.named_modules():
            if not list(module.children()):
                self._nudge(name, module, device)

    def _nudge(self, name: str, module: nn.Module,
               device: torch.device) -> None:
        def add(module: nn.Module, args: Any, output: Any) -> Any:
            if not (isinstance(output, torch.Tensor)
                    and output.is_floating_point()):
                return None
            value = self.values.setdefault(name, torch.full(
                (), 0.001, device=device, requires_grad=True))
            return output + value.to(output.dtype)

        self._handles.append(module.register_forward_hook(add))

    def gradients(self, run: Callable[[], Any]) -> dict[str, torch.Tensor]:
        """Of what the run gives, and the values themselves."""
        outputs = [one for one in tensors_in(run())
                   if one.is_floating_point() and one.requires_grad]
        assert outputs
        loss = torch.stack([loss_of(one) for one in outputs]).sum()
        found = torch.autograd.grad(loss, list(self.values.values()),
                                    allow_unused=True)
        assert any(one is not None and one.any() for one in found)
        return {"loss": loss.detach(), **{
            name: one for name, one in zip(self.values, found)
            if one is not None}}

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def gradients_of(model: nn.Module, device: torch.device,
                 run: Callable[[nn.Module], Any], turns: int = 3
                 ) -> list[dict[str, torch.Tensor]]:
    nudges = Nudges(model, device)
    try:
        return [nudges.gradients(lambda: run(model)) for _ in range(turns)]
    finally:
        nudges.remove()
