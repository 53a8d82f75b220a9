"""Gradients through each kind of weight and module that hoist takes."""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from families import FAMILIES  # noqa: E402
from models import CASES, WIDTH, Stack, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    checkpoint, create_selective_checkpoint_contexts)
from training import (assert_same_gradients, frozen,  # noqa: E402
                      gradients_of)

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.filterwarnings("ignore::FutureWarning")]

Run = Callable[[nn.Module], Any]


def compare(model: nn.Module, device: torch.device, run: Run, budget: Any,
            expected: list[dict[str, torch.Tensor]] | None = None,
            **options: Any) -> None:
    """Three turns, equal to the resident model's, and after detach too."""
    if expected is None:
        plain = frozen(copy.deepcopy(model), device)
        expected = gradients_of(plain, device, run)
        for mine, other in zip(gradients_of(plain, device, run), expected):
            if not all(map(same_bytes, mine.values(), other.values())):
                pytest.skip("the resident model's gradients differ from run to "
                            "run here")
    if budget == "least":
        budget = least_budget(model, **options)
    with attached(model.requires_grad_(False), budget, **options):
        found = gradients_of(model, device, run)
        hoist.check(model)
    for turn, (mine, other) in enumerate(zip(found, expected)):
        assert_same_gradients(mine, other, f"turn {turn}")


@pytest.mark.parametrize("budget", ["least", 0.6, 1.0])
@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("name", CASES)
def test_modules(device, name, groups, budget):
    case = CASES[name]
    compare(case.make().eval(), device, lambda model: case.run(
        model, device, 0), budget, groups=groups)


@pytest.mark.parametrize("name", FAMILIES)
def test_families(device, name):
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    family = FAMILIES[name]
    compare(family.make(), device, lambda model: family.ways["forward"](
        model, device), "least")


@pytest.mark.parametrize("storage", [torch.float8_e4m3fn, torch.bfloat16])
@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("budget", ["least", 0.6])
def test_weights_that_are_cast(device, budget, groups, storage):
    """One place takes the casts of all groups, one after another."""
    model = Stack(6).eval()
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in plain.named_parameters():
            if "norm" not in name:
                value.copy_(value.to(storage).to(value.dtype))
    expected = gradients_of(frozen(plain, device), device, lambda model: model(
        numbers(3, WIDTH).to(device)))
    compare(model, device, lambda model: model(numbers(3, WIDTH).to(device)),
            budget, expected, groups=groups, storage_dtype=storage)


@pytest.mark.parametrize("budget", ["least", 0.6, 1.0])
@pytest.mark.parametrize("name", ["llama", "clip", "unet"])
def test_under_autocast(device, name, budget):
    """A graph has a cast as it has the weight that it is of."""
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    family = FAMILIES[name]

    def run(model: nn.Module) -> Any:
        with torch.autocast(device.type, torch.bfloat16):
            return family.ways["forward"](model, device)

    compare(family.make(), device, run, budget)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            kind(WIDTH, WIDTH, batch_first=True)
            for kind in (nn.LSTM, nn.GRU, nn.RNN))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return self.out(x)


class Selective(Stack):
    """Products are kept for the backward, all else is computed again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False,
                           context_fn=functools.partial(
                               create_selective_checkpoint_contexts,
                               [torch.ops.aten.addmm.default]))
        return x


@pytest.mark.parametrize("storage", [None, torch.bfloat16])
def test_selective_checkpoints_see_the_models_operators_alone(device, storage):
    """They count them, to know again which is which."""
    model = Selective(6).eval()
    if storage is not None:
        model.to(storage).float()
    x = numbers(3, WIDTH).to(device)
    # A backward of the first comes to groups that lie elsewhere by then.
    compare(model, device, lambda model: sum(
        model((x * at).requires_grad_()) for at in (1, 2, 3)), "least",
        storage_dtype=storage)


def test_recurrent_modules(device):
    def run(model: nn.Module) -> Any:
        x = numbers(2, 3, WIDTH).to(device).requires_grad_()
        return model(x)

    compare(Recurrent().eval(), device, run, "least")


def test_attention_convolutions_norms_and_bilinears(device):
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.PReLU(8),
                nn.ConvTranspose2d(8, 3, 3, padding=1),
                nn.GroupNorm(1, 3), nn.InstanceNorm2d(3, affine=True))
                for _ in range(4))
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = x + layer(x)
            x = x.flatten(1, 2)
            return self.attention(x, x, x)[0]

    for training in (False, True):
        compare(Many().train(training), device, lambda model: model(
            numbers(2, 3, 16, 16).to(device)), "least")


def test_weights_beside_one_another_in_one_node(device):
    """One node of the graph reads weights of several groups, which take turns
    in one place."""
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, *weights: Any) -> Any:
            ctx.save_for_backward(*weights)
            for weight in weights:
                x = x @ weight
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            for weight in reversed(ctx.saved_tensors):
                grad = grad @ weight.t()
            return grad, *[None] * len(ctx.saved_tensors)

    class Matrix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Matrix() for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            here = (hoist.stage(self) if "_hoist" in vars(self) else
                    contextlib.nullcontext())
            with here:
                return Fused.apply(x, *(one.weight for one in self.layers))

    def run(model: nn.Module) -> Any:
        return model(numbers(3, WIDTH).to(device).requires_grad_())

    model = Model()
    compare(model, device, run, "least", groups="leaf")


def test_in_place_experts_and_embeddings(device):
    from test_in_place import AUTO, EXPERTS, Mixture

    class Chosen(Mixture):
        def forward(self, turn: int) -> torch.Tensor:  # type: ignore[override]
            ids = torch.arange(0, 2048, 256, device=device)
            experts = [turn % EXPERTS, (turn + 3) % EXPERTS]
            chosen = torch.tensor([experts], device=device).expand(
                len(ids), -1)
            return super().forward(ids, chosen)

    torch.manual_seed(0)
    model = Chosen().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    for budget in ("2MiB", "30MiB"):
        compare(model, device, lambda model: [model(at) for at in range(4)],
                budget, in_place=AUTO)
