"""Saved tensors, and functions that save them, that are not as most are."""

from __future__ import annotations

import contextlib
import re

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402

from activations import Blocks, batch, same  # noqa: E402
from subclasses import Packed  # noqa: E402

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
        # As torch 2.13 names nodes; older ones say Backward0, too.
        return re.sub(r"Backward[0-9]*,", ",", str(error.value))

    plain = run(contextlib.nullcontext)
    assert "modified by an inplace operation" in plain
    with hoist.offload_activations(min_bytes=0, keep_last=kept) as offload:
        assert run(offload.layer) == plain


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, saved, seen):
        ctx.save_for_backward(saved)
        ctx.seen = seen
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.extend(ctx.saved_tensors)
        return gradient * 2, None, None


def of_inference(device):
    with torch.inference_mode():
        raw = torch.full((32, 32), 200, dtype=torch.uint8, device=device)
    return Packed(raw)


@pytest.mark.parametrize("make", [
    lambda device: torch.quantize_per_tensor(
        torch.randn(32, 32, device=device), 0.1, 3, torch.quint8),
    lambda device: torch.eye(32, device=device).to_sparse(),
    lambda device: torch.eye(32, device=device).to_sparse_csr(),
    of_inference], ids=["quantised", "sparse", "compressed", "of_inference"])
@pytest.mark.parametrize("keeps", [contextlib.nullcontext, hoist.keep])
def test_what_is_not_bytes_and_strides_alone_stays(hoistd, device, make,
                                                   keeps):
    saved, seen = make(device), []
    x = torch.ones(4, device=device, requires_grad=True)
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        with offload.layer(), keeps():
            y = Saves.apply(x, saved, seen)
        y.sum().backward()
        assert offload.stats().moved_out_bytes == 0
        kept = offload.stats().kept_bytes
        assert (kept.get("opaque", 0) > 0) == (keeps is not hoist.keep)
    back, = seen
    if isinstance(saved, Packed):
        back, saved = back.dequantize(), saved.dequantize()
    elif saved.is_quantized:
        back, saved = back.dequantize(), saved.dequantize()
    assert torch.equal(back.to_dense(), saved.to_dense())


@pytest.mark.parametrize("least", [0, 4096])
def test_nested_tensors_keep_their_shape(hoistd, device, least):
    """Which torch knows by the object that has the rows' lengths."""
    def run(layer):
        torch.manual_seed(0)
        y = torch.nested.nested_tensor(
            [torch.randn(30, 16), torch.randn(50, 16)], layout=torch.jagged,
            device=device, requires_grad=True)
        weights = [torch.randn(16, 16, device=device, requires_grad=True)
                   for _ in range(4)]
        for weight in weights:
            with layer():
                y = (y @ weight).sin() * y
        y.values().sum().backward()
        return [one.grad for one in weights]

    wanted = run(contextlib.nullcontext)
    with hoist.offload_activations(min_bytes=least, keep_last=0) as offload:
        assert same(run(offload.layer), wanted)
        assert offload.stats().moved_in_bytes > 0
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        with hoist.keep():
            assert same(run(offload.layer), wanted)
        assert offload.stats().moved_out_bytes == 0


class Discarded:
    """A function whose output is dropped once it was used, and computed again
    into the same storage when the backward comes to what used it, as
    Megatron's CheckpointWithoutOutput does."""

    def __init__(self, function, x):
        self._function, self._x = function, x
        with torch.no_grad():
            output = function(x)
        self.output = output.requires_grad_()
        self._size = output.untyped_storage().nbytes()

    def discard(self, used_by):
        # Somebody else has that memory then.
        self.output.data.fill_(7)
        self.output.untyped_storage().resize_(0)
        used_by.register_hook(self._again)

    def _again(self, gradient):
        with torch.no_grad():
            output = self._function(self._x)
        self.output.untyped_storage().resize_(self._size)
        self.output.untyped_storage().copy_(output.untyped_storage())


@pytest.mark.parametrize("kept", [0, 9])
def test_outputs_that_are_discarded_are_computed_again(hoistd, device, kept):
    def run(layer):
        torch.manual_seed(0)
        x = torch.randn(32, 32, device=device)
        weights = [torch.randn(32, 32, device=device, requires_grad=True)
                   for _ in range(5)]
        y = 0
        for weight in weights:
            with layer():
                discarded = Discarded(torch.nn.functional.gelu, x)
                used = discarded.output @ weight
                discarded.discard(used)
            y = y + and_more(used.sin(), layer, 1)
        y.sum().backward()
        return [one.grad for one in weights]

    wanted = run(contextlib.nullcontext)
    with hoist.offload_activations(min_bytes=0, keep_last=kept) as offload:
        assert same(run(offload.layer), wanted)


def test_what_is_discarded_and_not_computed_again_raises(hoistd, device):
    weight = torch.randn(32, 32, device=device, requires_grad=True)
    x = torch.randn(32, 32, device=device)
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        with offload.layer():
            y = x @ weight
            x.untyped_storage().resize_(0)
        assert x.untyped_storage().nbytes() == 0
        with pytest.raises(RuntimeError, match="resized"):
            y.sum().backward()
    assert x.untyped_storage().nbytes() == 0


def test_within_transforms_nothing_is_offloaded(hoistd, device):
    """They forbid hooks; parameters are of theirs then, without memory."""
    torch.manual_seed(0)
    model = Blocks(4).to(device).eval()
    named = {name: one.detach() for name, one in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    def run():
        found = torch.func.grad(loss)(named, batch(device))
        each = torch.func.vmap(torch.func.grad(loss, 1), (None, 0))(
            named, torch.stack([batch(device, seed) for seed in range(2)]))
        return [*found.values(), each]

    wanted = run()
    with hoist.offload_activations(model, min_bytes=0) as offload:
        assert same(run(), wanted)
        assert offload.stats().moved_out_bytes == 0
        model(batch(device)).sum().backward()
        assert offload.stats().moved_out_bytes > 0
