"""Saved tensors, and functions that save them, that are not as most are."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)


def and_more(y, layer, count=3):
    """Layers after it, so that what it has saved is on the host alone."""
    for _ in range(count):
        with layer():
            y = y * 1.5
    return y


class WritesToWhatItSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        x.mul_(gradient)
        return x * 2


@pytest.mark.parametrize("kept", [0, 9])
def test_who_saved_what_a_backward_has_written_to_raises(hoistd, device, kept):
    def run(layer):
        x = torch.ones(64, device=device, requires_grad=True) * 3
        with layer():
            squared, doubled = x * x, WritesToWhatItSaved.apply(x)
        with pytest.raises(RuntimeError) as error:
            (and_more(squared, layer) + and_more(doubled, layer)).sum(
                ).backward()
        return str(error.value)

    plain = run(contextlib.nullcontext)
    assert "modified by an inplace operation" in plain
    with hoist.offload_activations(min_bytes=0, keep_last=kept) as offload:
        assert run(offload.layer) == plain
