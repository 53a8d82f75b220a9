"""Activations of grouped linears and grouped MLPs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.compat import te  # noqa: E402

from activations import gradients, same  # noqa: E402
from grouped import GroupedLinear, GroupedMlps  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)
SPLITS = [(16, 16, 16, 16), (1, 40, 3, 20), (0, 64, 0, 0), (30, 0, 34, 0)]


def mlps(device, eight=False):
    torch.manual_seed(5)
    return GroupedMlps(eight=eight).to(device)


def rows(device):
    torch.manual_seed(6)
    return torch.randn(64, 32, device=device, requires_grad=True)


def step(model, device, splits):
    x = rows(device)
    loss = model(x, splits).square().mean()
    loss.backward()
    found = [loss.detach(), x.grad, *gradients(model)]
    model.zero_grad()
    return found


@pytest.mark.parametrize("eight", [False, True], ids=["float", "eight bits"])
@pytest.mark.parametrize("splits", SPLITS, ids=str)
def test_uneven_and_empty_groups(hoistd, device, splits, eight):
    model = mlps(device, eight)
    wanted = step(model, device, splits)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        for _ in range(2):
            assert same(step(model, device, splits), wanted)
        # An MLP saves three tensors, however many groups there are, and no
        # weight; in eight bits they are the rows' bytes and a scale a row.
        saved = 64 * 128 * 4 + (64 * (32 + 64) + 2 * 64 * 4 if eight else
                                64 * (32 + 64) * 4)
        assert offload.stats().moved_out_bytes == 2 * 4 * saved
        assert offload.stats().live_bytes == 0


def test_an_input_that_several_layers_share_moves_once(hoistd, device):
    torch.manual_seed(5)
    layers = [GroupedLinear(4, 32, 32).to(device) for _ in range(3)]
    x = rows(device)
    with hoist.offload_activations(layers, min_bytes=0,
                                   keep_last=0) as offload:
        sum(layer(x, SPLITS[1]) for layer in layers).sum().backward()
        assert offload.stats().moved_out_bytes == x.nbytes
        assert offload.stats().moved_in_bytes <= x.nbytes


def test_what_is_off_within_is_off(hoistd, device):
    """TransformerEngine's issue: an inner context that is not enabled, in one
    that is."""
    model = mlps(device)
    wanted = step(model, device, SPLITS[1])
    context, sync = te.get_cpu_offload_context(
        True, num_layers=4, model_layers=6, min_bytes=0)
    off, no_sync = te.get_cpu_offload_context(enabled=False)
    engine = context._engine

    def run(inner):
        x = rows(device)
        y = x
        for layer in model.layers:
            with context:
                with inner():
                    y = layer(y, SPLITS[1])
            y = no_sync(sync(y))
        loss = y.square().mean()
        loss.backward()
        found = [loss.detach(), x.grad, *gradients(model)]
        model.zero_grad()
        return found

    assert same(run(lambda: off), wanted)
    assert engine.counts.moved_out == 0 and engine.counts.moved_in == 0
    assert same(run(torch.enable_grad), wanted)
    assert engine.counts.moved_out > 0
