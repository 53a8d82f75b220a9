"""Both tiers in one worker: a frozen base whose weights come and go, adapters
that are trained over it, and activations that are offloaded."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402

from activations import Blocks, batch, same  # noqa: E402
from passes import least_budget  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)


class Adapter(nn.Module):
    """A low-rank addition to a linear that stays as it is."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) / 8)

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


def tuned(base, device):
    """Adapters of a base's blocks, on its device; their parameters."""
    torch.manual_seed(11)
    made = []
    for layer in base.layers:
        adapter = Adapter(layer.up).to(device)
        layer.up = adapter
        made += [adapter.a, adapter.b]
    return made


def train(base, adapters, device, steps=4):
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(adapters, lr=0.05)
    found = []
    for step in range(steps):
        loss = base(batch(device, step)).square().mean()
        loss.backward()
        found += [loss.detach().clone(), *(one.grad.clone()
                                           for one in adapters)]
        optimizer.step()
        optimizer.zero_grad()
    return found


def frozen(device):
    torch.manual_seed(3)
    return Blocks(12).to(device).requires_grad_(False)


@pytest.mark.parametrize("kept", [2, 6])
def test_adapters_are_trained_over_a_streamed_base(hoistd, device, kept):
    base = frozen(device)
    wanted = train(base, tuned(base, device), device)
    base = frozen(device)
    with hoist.offload_activations(base, min_bytes=0, keep_last=kept) as (
            offload):
        train(base, tuned(base, device), device)
        resident = offload.stats()
    base = frozen(device)
    hoist.attach(base, least_budget(base))
    adapters = tuned(base, device)
    with hoist.offload_activations(base, min_bytes=0, keep_last=kept) as (
            offload):
        assert same(train(base, adapters, device), wanted)
        stats = offload.stats()
        assert stats.offloaded_layers == 4 * (12 - kept)
        assert stats.moved_in_bytes == stats.moved_out_bytes
        # No weight of the base is taken for an activation.
        assert stats.moved_out_bytes == resident.moved_out_bytes > 0
    assert hoist.stats(base).streamed_bytes > 0
