"""accelerate's prepare, over modules whose weights are hoist's."""

from __future__ import annotations

import copy
import pathlib
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import hoist  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from equal import same_bytes  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import attached  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("hoistd")


@pytest.fixture
def accelerator(device: torch.device) -> Iterator[Any]:
    """Makes one, as each process has: by its options."""
    def make(**options: Any) -> Accelerator:
        AcceleratorState._reset_state(reset_partial_state=True)
        return Accelerator(cpu=device.type == "cpu", **options)

    yield make
    AcceleratorState._reset_state(reset_partial_state=True)


class Headed(nn.Module):
    """A frozen base, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Stack(6).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.base(x))


@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_a_prepared_module_computes_as_the_resident_one(
        device, accelerator, mixed):
    model = Stack(6).eval().requires_grad_(False)
    resident = copy.deepcopy(model).to(device)
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = accelerator(mixed_precision=mixed).prepare(resident)(x)
        with attached(model, 0.5):
            one = accelerator(mixed_precision=mixed)
            prepared = one.prepare(model)
            for _ in range(3):
                assert same_bytes(prepared(x), expected)
            assert one.unwrap_model(prepared) is model
            for name, value in one.get_state_dict(prepared).items():
                assert same_bytes(value.cpu(),
                                  resident.state_dict()[name].cpu()), name


def test_what_is_not_hoists_is_trained_saved_and_loaded(
        device, accelerator, tmp_path: pathlib.Path):
    def train(model: Headed, prepare: Any) -> list[torch.Tensor]:
        one = accelerator()
        optimizer = torch.optim.SGD(model.head.parameters(), 0.1)
        model, optimizer = prepare(one, model, optimizer)
        losses = []
        for turn in range(3):
            loss = model(numbers(2, WIDTH).to(device) + turn).square().mean()
            one.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses

    torch.manual_seed(3)
    resident = Headed()
    model = copy.deepcopy(resident)
    expected = train(resident.to(device),
                     lambda one, *both: one.prepare(*both))
    model.head.to(device)
    with attached(model.base, 0.5):
        def prepare(one: Accelerator, *both: Any) -> Any:
            prepared = one.prepare(*both)
            one.save_state(str(tmp_path / "first"))
            return prepared

        losses = train(model, prepare)
        for ours, theirs in zip(losses, expected):
            assert same_bytes(ours, theirs)
        # It would write to the base, too.
        one = accelerator()
        one.prepare(model)
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            one.load_state(str(tmp_path / "first"))
    for name, value in model.state_dict().items():
        assert same_bytes(value.cpu(), resident.state_dict()[name].cpu()), name
