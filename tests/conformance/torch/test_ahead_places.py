"""The GPU's places for copies ahead do as the CPU's. Triton's kernels run on a GPU;
where there is none, under Triton's interpreter, which TRITON_INTERPRET=1 chooses."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hoist.nn._plan.places import AT_FIRST, Places, Shared  # noqa: E402

UNITS, FIRST, HOT, CHOSEN = 32, 33, 10, 4
RIGHT, WRONG, AGAIN = 100, 300, 60  # Passes.


@pytest.fixture
def kind(device):
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU, or TRITON_INTERPRET=1")
    from hoist.nn._plan.places_cuda import CudaPlaces
    return CudaPlaces


class Layer:
    """With places of one kind; its experts are known by their bytes."""

    def __init__(self, kind: type[Places], device: torch.device) -> None:
        torch.manual_seed(0)
        experts = [torch.randn(UNITS, 64, width) for width in (64, 32)]
        self.weights = []
        for one in experts:
            wide = torch.zeros(FIRST + 6, *one.shape[1:], device=device)
            wide[:UNITS] = one.to(device)
            self.weights.append(wide)
        cold = torch.ones(UNITS, dtype=torch.uint8,
                          pin_memory=device.type == "cuda")
        cold[:HOT] = 0
        self.shared = Shared.on(device)
        self.touched = torch.zeros(UNITS + 1, dtype=torch.int32, device=device)
        self._places = kind(self.weights, UNITS, FIRST, cold, self.touched,
                            self.shared)
        # Kernels are compiled by a fetch that counts.
        self.shared.counts.zero_()
        self.shared.lately.fill_(AT_FIRST)
        self.touched.zero_()
        self._device = device

    def pass_(self, guess: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The numbers by which the chosen are read."""
        on = chosen.to(self._device)
        self._places.fetch(guess.to(self._device))
        self._places.answer(on)
        renamed = self._places.rename(on)
        for weight in self.weights:
            assert torch.equal(weight[renamed.reshape(-1)],
                               weight[on.reshape(-1)])
        return renamed.cpu()


def test_they_do_as_the_cpus_whether_guesses_are_right(device, kind):
    cpu = Layer(Places, torch.device("cpu"))
    gpu = Layer(kind, device)
    random = torch.Generator().manual_seed(1)
    came: list[bool] = []
    for number in range(RIGHT + WRONG + AGAIN):
        order = torch.randperm(UNITS, generator=random)
        chosen = order[:CHOSEN].reshape(1, CHOSEN)
        wrong = RIGHT <= number < RIGHT + WRONG
        guess = order[CHOSEN:2 * CHOSEN] if wrong else order[:CHOSEN]
        renamed: Any = cpu.pass_(guess, chosen)
        assert torch.equal(gpu.pass_(guess, chosen), renamed), number
        came.append(bool((renamed >= FIRST).any()))
    assert torch.allclose(gpu.shared.lately.cpu(), cpu.shared.lately)
    assert torch.equal(gpu.touched.cpu(), cpu.touched)
    assert all(came[5:RIGHT][::10]) and not any(came[RIGHT:RIGHT + WRONG])
    again = came[RIGHT + WRONG:]
    assert not any(again[:10]) and all(again[40::10])  # Right ones bring it back.
