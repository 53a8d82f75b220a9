"""Modules that are built, attached, called and detached in inference mode: in
each forward weights need gradients as the plain module's do, as torch chooses
kernels by that."""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import WIDTH, Block, Stack, numbers  # noqa: E402
from real_daemon import write_safetensors  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")
Mode = Callable[[], contextlib.AbstractContextManager[Any]]
MODES: list[Mode] = [contextlib.nullcontext, torch.inference_mode]


class Folds(Block):
    """matmul of more than two dimensions folds for a weight that needs
    gradients, and is another kernel's for one that does not."""

    seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append([(name, one.requires_grad)
                          for name, one in self.named_parameters()])
        return torch.matmul(super().forward(x), self.up.weight.t()[:, :WIDTH])


class Model(Stack):
    def __init__(self) -> None:
        super().__init__(0)
        torch.manual_seed(0)
        self.layers.extend(Folds() for _ in range(4))
        self.layers[2].up.requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale + self.shift


def run(model: nn.Module, x: torch.Tensor, mode: Mode) -> Any:
    """What it gives, and which weights needed gradients."""
    Folds.seen.clear()
    with torch.no_grad(), mode():
        output = model(x)
    return output, list(Folds.seen)


@pytest.mark.parametrize("budget", [0.6, 1.0])
@pytest.mark.parametrize("called", MODES)
@pytest.mark.parametrize("attached", MODES)
@pytest.mark.parametrize("built", MODES)
@pytest.mark.parametrize("how", ["attach", "load"])
def test_weights_need_gradients_as_in_the_plain_module(
        device, tmp_path, how, built, attached, called, budget):
    def make() -> nn.Module:
        with built():
            return Model().eval()

    x = numbers(2, 5, WIDTH).to(device)
    with built():
        plain = make().to(device)
    expected, flags = run(plain, x, called)
    own = {name: one.requires_grad for name, one in plain.named_parameters()}
    assert len(set(own.values())) == 2
    with attached():
        if how == "attach":
            model = hoist.attach(make(), budget)
        else:
            path = tmp_path / "model.safetensors"
            write_safetensors(path, {
                name: ("F32", list(one.shape), one.cpu().numpy().tobytes())
                for name, one in plain.state_dict().items()})
            model = hoist.load(make, str(path), budget)
    for _ in range(3):
        output, found = run(model, x, called)
        assert found == flags
        assert_equal_outputs(output, expected)
    with attached():
        hoist.detach(model)
    for name, one in model.named_parameters():
        assert type(one) is nn.Parameter and not one.is_inference(), name
        assert one.requires_grad == own[name], name
    assert not model.shift.is_inference()
    with torch.no_grad():
        model.scale.add_(0)  # Ordinary tensors: they can be written to.
        model.to(device)
    output, found = run(model, x, called)
    assert found == flags
    assert_equal_outputs(output, expected)
