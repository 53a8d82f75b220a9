"""hoist.keep() and hoist.mark_keep: what is to stay does."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch.autograd.function import FunctionCtx  # noqa: E402
from torch.autograd.graph import save_on_cpu  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from activations import Blocks, batch, gradients, same, train  # noqa: E402
from subclasses import Packed  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)


class Square(torch.autograd.Function):
    """Saves its input, and twice of it, under `around` alone."""

    around = staticmethod(torch.enable_grad)

    @staticmethod
    def forward(ctx, x):
        with Square.around():
            ctx.save_for_backward(x, 2 * x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        x, twice = ctx.saved_tensors
        return gradient * twice


@pytest.fixture
def offload(hoistd, device):
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        yield offload


@pytest.fixture
def x(device):
    return torch.randn(32, 32, device=device, requires_grad=True)


def moved(offload):
    stats = offload.stats()
    return stats.moved_out_bytes + stats.moved_in_bytes


def keep_within(x, offload):
    with offload.layer():
        with hoist.keep():
            return x.sin().exp()


def keep_around(x, offload):
    with hoist.keep():
        with offload.layer():
            return x.sin().exp()


def keep_deep_down(x, offload):
    with save_on_cpu(), offload.layer(), hoist.keep(), offload.layer():
        with hoist.keep():
            y = x.sin()
        return y.exp()


@hoist.keep()
def kept_function(x):
    return x.sin().exp()


def keep_as_a_decorator(x, offload):
    with offload.layer():
        return kept_function(x)


def keep_of_an_apply(x, offload):
    with offload.layer(), hoist.keep():
        return Square.apply(x.sin())


def keep_in_a_custom_function(x, offload):
    Square.around = hoist.keep
    try:
        with offload.layer():
            return Square.apply(x)
    finally:
        Square.around = torch.enable_grad


KEEPS = [keep_within, keep_around, keep_deep_down, keep_as_a_decorator,
         keep_of_an_apply, keep_in_a_custom_function]


@pytest.mark.parametrize("run", KEEPS, ids=lambda run: run.__name__)
def test_nothing_moves(offload, x, run):
    run(x, offload).sum().backward()
    assert moved(offload) == 0
    assert FunctionCtx.save_for_backward.__module__ == (
        "torch.autograd.function")
    x = x.detach().clone().requires_grad_()  # It may be marked by now.
    with offload.layer():
        y = Square.apply(x.sin())
    assert offload.stats().moved_out_bytes == 3 * 32 * 32 * 4
    y.sum().backward()


@pytest.mark.only_cuda("there are no copies to see on the emulated device")
@pytest.mark.parametrize("run", KEEPS, ids=lambda run: run.__name__)
def test_the_profiler_sees_no_copy(offload, x, run):
    def copies(run):
        run(x, offload).sum().backward()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            run(x, offload).sum().backward()
            torch.cuda.synchronize()
        return [event.name for event in seen.events()
                if "DtoH" in event.name or "HtoD" in event.name]

    def offloaded(x, offload):
        with offload.layer():
            y = x.sin().exp()
        for _ in range(3):
            with offload.layer():
                y = y.sin()
        return y

    assert copies(run) == []
    assert len(copies(offloaded)) >= 4


def test_what_is_kept_is_counted(offload, x):
    with offload.layer():
        with hoist.keep():
            y = x.sin().exp()
        z = y * y
    assert offload.stats().kept_bytes["keep"] == 2 * 32 * 32 * 4
    assert offload.stats().moved_out_bytes == 32 * 32 * 4
    z.sum().backward()


def test_a_part_of_a_model_stays(hoistd, device):
    found = {}
    for kept in (False, True):
        torch.manual_seed(3)
        model = Blocks(8).to(device)
        if kept:
            for layer in model.layers[::2]:
                layer.forward = hoist.keep()(layer.forward)
        with hoist.offload_activations(model, min_bytes=0) as offload:
            found[kept] = (train(model, device, 2),
                           offload.stats().moved_out_bytes)
    assert same(found[True][0], found[False][0])
    assert 0.4 < found[True][1] / found[False][1] < 0.6


def test_changes_of_what_is_kept_are_seen(offload, x):
    with offload.layer(), hoist.keep():
        y = x.exp()
        z = y * 2
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


# Marks.


def test_marked_memory_stays(offload, x):
    y = x.sin()
    hoist.mark_keep(y, None)
    with offload.layer():
        z = (y * y).sum() + (y.t() * y[:, :1]).sum()
    assert moved(offload) == 0
    assert offload.stats().kept_bytes["mark"] > 0
    z.backward()
    with offload.layer():
        z = x.sin() * x
    assert moved(offload) == 2 * 32 * 32 * 4
    z.sum().backward()


def test_marks_end_with_their_memory(offload, x):
    for _ in range(300):
        hoist.mark_keep(torch.empty(32, 32, device=x.device))
    gc.collect()
    from hoist.activations import _keep
    assert len(_keep._marks._refs) < 200
    with offload.layer():
        z = x.sin() * x
    assert moved(offload) > 0
    z.sum().backward()


def test_a_wrapper_is_marked_in_all_its_parts(offload, x):
    packed = Packed(torch.zeros(32, 32, dtype=torch.uint8, device=x.device))
    hoist.mark_keep(packed)

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, other):
            ctx.save_for_backward(other)
            return x * other.dequantize()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0].dequantize(), None

    with offload.layer():
        y = Multiply.apply(x, packed)
    assert moved(offload) == 0
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, -128))


# hoist.keep() where there is nothing to keep from.


def test_without_an_offload_it_changes_nothing(x):
    with hoist.keep():
        y = x.sin().exp()
    y.sum().backward()
    found, x.grad = x.grad, None
    x.sin().exp().sum().backward()
    assert torch.equal(found, x.grad)


def test_gradients_with_skip(hoistd, device):
    torch.manual_seed(3)
    model = Blocks(6).to(device)
    with hoist.offload_activations(model, min_bytes=0,
                                   skip=[model.layers[0], "down"]) as offload:
        model(batch(device)).sum().backward()
        assert offload.stats().kept_bytes["keep"] > 0
    assert gradients(model)
