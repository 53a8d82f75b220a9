"""Activations offloaded by the layer: results, bytes, memory."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import re
import sys

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402

from activations import (Block, Blocks, batch, gradients, peak_bytes,  # noqa: E402
                         same, train)
from sampled import sampled  # noqa: E402
from subclasses import Packed, Scaled  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)
STEPS = 5


def blocks(device, count=24):
    torch.manual_seed(3)
    return Blocks(count).to(device)


@pytest.fixture(scope="module")
def wanted():
    """Of steps of 24 blocks without offloading, by device."""
    found = {}

    def of(device):
        if device not in found:
            found[device] = train(blocks(device), device, STEPS)
        return found[device]

    return of


# Results.


@pytest.mark.parametrize("options", sampled([
    {}, {"keep_last": 0}, {"keep_last": 1}, {"keep_last": 6},
    {"keep_last": 24}, {"budget": 0.5}, {"budget": "400KB"},
    {"skip": "qkv"}, {"skip": nn.LayerNorm}, {"arena": "400KB"},
    {"arena": "64MB"}, {"min_bytes": 10_000}],
    {}, {"keep_last": 24}, {"budget": "400KB"}, {"skip": "qkv"},
    {"arena": "400KB"}), ids=str)
def test_training_is_bit_equal(hoistd, device, wanted, options):
    model = blocks(device)
    with hoist.offload_activations(model, **{"min_bytes": 0, **options}) as (
            offload):
        assert same(train(model, device, STEPS), wanted(device))
        stats = offload.stats()
    assert stats.passes == STEPS and stats.layers == 24
    assert (stats.moved_out_bytes > 0) == (options.get("keep_last") != 24)
    assert stats.live_bytes == 0


def test_layers_in_a_list_and_layers_that_are_marked(hoistd, device, wanted):
    model = blocks(device)
    with hoist.offload_activations(list(model.layers), min_bytes=0) as offload:
        assert same(train(model, device, STEPS), wanted(device))
        assert offload.stats().offloaded_layers == 22 * STEPS

    model = blocks(device)
    with hoist.offload_activations(min_bytes=0) as offload:
        def run(x):
            x = model.embed(x)
            for layer in model.layers:
                with offload.layer():
                    x = layer(x)
            return model.head(x)

        assert same(train(model, device, STEPS, run), wanted(device))
        # The first pass shows how many there are.
        assert offload.stats().offloaded_layers == 24 + 22 * (STEPS - 1)


def test_a_backward_may_come_after_close(hoistd, device):
    model = blocks(device, 6)
    model(batch(device)).sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    with hoist.offload_activations(model, min_bytes=0) as offload:
        torch.manual_seed(0)
        loss = model(batch(device)).sum()
    torch.manual_seed(0)
    plain = model(batch(device)).sum()
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    plain.backward()
    assert same(found, gradients(model)) and len(found) == len(wanted)
    assert offload.stats().moved_in_bytes > 0


# What moves, and what does not.


def test_what_is_saved_twice_moves_once(hoistd, device):
    x = torch.randn(64, 64, device=device, requires_grad=True)
    y = torch.randn(64, 64, device=device, requires_grad=True)

    def saves_one(offload):
        with offload.layer():
            hidden = x * y
            flat = y.view(-1)[:2048]         # A view of half of it.
            more = (hidden.t() * y.t()).sum() + (x.flatten()[:2048]
                                                 * flat).sum()
        with offload.layer():
            more = more + (x * y).sum()      # The first layer's, by now.
        return more

    x.grad = None
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        total = saves_one(offload)
        moved = offload.stats().moved_out_bytes
        total.backward()
        assert moved == 3 * 64 * 64 * 4      # x, y and hidden.
        assert offload.stats().moved_in_bytes <= moved
    found = x.grad.clone()
    x.grad = None
    with hoist.offload_activations(keep_last=0) as offload:
        saves_one(offload).backward()        # All of it is small.
        assert offload.stats().moved_out_bytes == 0
        assert offload.stats().kept_bytes["small"] > 0
    assert torch.equal(found, x.grad)


@pytest.mark.parametrize("make", [
    lambda x: x.t(), lambda x: x[::2, 1::3], lambda x: x[3:7],
    lambda x: x[:, :1].expand(64, 64), lambda x: x[:0],
    lambda x: x.as_strided((8, 8), (3, 5), 11), lambda x: x[5, 7],
    lambda x: x.to(torch.float16), lambda x: x > 0,
    lambda x: torch.view_as_complex(x.view(64, 32, 2)).conj(),
    lambda x: torch.view_as_complex(x.view(64, 32, 2)).conj().imag,
    lambda x: x.to(memory_format=torch.contiguous_format).view(
        1, 4, 32, 32).to(memory_format=torch.channels_last)],
    ids=["transposed", "steps", "rows", "expanded", "empty", "strided",
         "scalar", "half", "bool", "conjugate", "negated", "channels_last"])
def test_tensors_come_back_as_they_were(hoistd, device, make):
    given = make(torch.randn(64, 64, device=device))
    found = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, saved):
            ctx.save_for_backward(saved)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            found.extend(ctx.saved_tensors)
            return gradient, None

    x = torch.randn(4, device=device, requires_grad=True)
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        with offload.layer():
            y = Keeps.apply(x, given)
        moved = offload.stats().moved_out_bytes
        for _ in range(2):                   # The first is let go of by then.
            with offload.layer():
                y = y * x
        y.sum().backward()
    back, = found
    assert torch.equal(back, given)
    for said in ("shape", "dtype", "device"):
        assert getattr(back, said) == getattr(given, said)
    assert back.stride() == given.stride()
    assert (back.is_conj(), back.is_neg()) == (given.is_conj(),
                                               given.is_neg())
    assert (moved > 0) == (given.numel() > 0)
    assert back.data_ptr() != given.data_ptr() or given.numel() == 0


def test_an_expanded_tensor_moves_what_it_is_made_of(hoistd, device):
    x = torch.randn(1, 1000, device=device, requires_grad=True)
    row = torch.randn(1, 1000, device=device)
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        with offload.layer():
            y = x * row.expand(512, 1000)
        assert offload.stats().moved_out_bytes == 4000
        y.sum().backward()
    assert torch.allclose(x.grad, 512 * row)


def test_weights_and_views_of_them_stay(hoistd, device):
    model = blocks(device, 4)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        loss = model(batch(device)).sum()
        stats = offload.stats()
        moved = stats.moved_out_bytes
        assert stats.kept_bytes["weight"] > 0
        loss.backward()
    # As much with weights of twice the size that are read in part.
    for layer in model.layers:
        wide = torch.cat([layer.up.weight.detach()] * 2)
        layer.up.weight = nn.Parameter(wide)
        layer.up.forward = lambda x, up=layer.up: nn.functional.linear(
            x, up.weight[:len(up.weight) // 2], up.bias)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        loss = model(batch(device)).sum()
        assert offload.stats().moved_out_bytes == moved
        loss.backward()


def test_wrappers_are_taken_apart(hoistd, device):
    raw = torch.randint(0, 256, (32, 32), dtype=torch.uint8, device=device)
    scale = torch.rand(32, device=device)
    seen = []

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, other):
            ctx.save_for_backward(other)
            return x * other.dequantize()

        @staticmethod
        def backward(ctx, gradient):
            other, = ctx.saved_tensors
            seen.append(other)
            return gradient * other.dequantize(), None

    x = torch.randn(32, 32, device=device, requires_grad=True)
    with hoist.offload_activations(min_bytes=512, keep_last=0) as offload:
        with offload.layer():
            y = Multiply.apply(x, Scaled(Packed(raw), scale, 0.25))
        stats = offload.stats()
        # The scale is below min_bytes.
        assert stats.moved_out_bytes == 32 * 32
        assert stats.kept_bytes["small"] == 32 * 4
        for _ in range(2):
            with offload.layer():
                y = y + 1
        y.sum().backward()
        assert offload.stats().moved_in_bytes == 32 * 32
    back, = seen
    assert type(back) is Scaled and type(back.inner) is Packed
    assert torch.equal(back.inner.raw, raw) and back.shift == 0.25
    assert torch.equal(x.grad, Scaled(Packed(raw), scale, 0.25).dequantize())


def test_what_is_elsewhere_or_opaque_stays(hoistd, device):
    x = torch.randn(8, 8, device=device, requires_grad=True)
    class Odd(torch.Tensor):
        pass

    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        with offload.layer():
            y = x * torch.ones(8, 8, device=device).as_subclass(Odd)
        assert offload.stats().kept_bytes["opaque"] > 0
        y.sum().as_subclass(torch.Tensor).backward()
    assert torch.equal(x.grad, torch.ones_like(x))


# Memory.


def test_the_peak_is_what_stays_and_two_layers(hoistd, device):
    many, few, two = (peak_bytes(blocks(device, count), device)
                      for count in (24, 12, 2))
    layer = (many - few) / 12
    assert many > 10 * layer
    for kept in (2, 6):
        model = blocks(device)
        with hoist.offload_activations(model, min_bytes=0, keep_last=kept):
            peak_bytes(model, device)
            peak = peak_bytes(model, device)
        assert peak <= two + kept * layer, (peak, two, layer, kept)
        assert peak >= kept * layer


def test_a_budget_keeps_what_fits(hoistd, device):
    model = blocks(device)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        train(model, device, 1)
        layer = offload.stats().moved_out_bytes // 24
    for budget, kept in ((0.5, 12), (layer * 7 + 100, 7), (1.0, 24)):
        with hoist.offload_activations(model, budget, min_bytes=0) as offload:
            train(model, device, 1)
            before = offload.stats()
            assert before.offloaded_layers == 22  # Nothing was known then.
            train(model, device, 1)
            after = offload.stats()
            assert after.offloaded_layers - 22 == 24 - kept
    with hoist.offload_activations(model, layer, min_bytes=0):
        train(model, device, 1)
        with pytest.raises(hoist.ResourceExhausted) as refused:
            train(model, device, 1)
    least = int(re.search(r"give (\d+) at least", str(refused.value))[1])
    assert layer < least < 3 * layer
    for budget in (least - 1, least):
        with hoist.offload_activations(model, budget, min_bytes=0):
            train(model, device, 1)
            with pytest.raises(hoist.ResourceExhausted) if budget < least else (
                    contextlib.nullcontext()):
                train(model, device, 1)


def test_passes_that_are_under_way_share_the_budget(hoistd, device):
    model = blocks(device, 8)
    with hoist.offload_activations(model, 1.0, min_bytes=0) as offload:
        for _ in range(2):
            losses = [model(batch(device, i)).sum() for i in range(2)]
            for loss in losses:
                loss.backward()
        before = offload.stats().offloaded_layers
        losses = [model(batch(device, i)).sum() for i in range(2)]
        # All of one pass's bytes, for two.
        assert offload.stats().offloaded_layers - before == 2 * 4
        del losses, loss


def test_an_arena_that_is_too_small_keeps_the_last(hoistd, device):
    model = blocks(device, 8)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        train(model, device, 1)
        layer = offload.stats().moved_out_bytes // 8
    with hoist.offload_activations(model, min_bytes=0,
                                   arena=2 << 20) as offload:
        many = [model(batch(device, i)).sum() for i in range(12)]
        stats = offload.stats()
        assert stats.kept_bytes["arena"] > 0 and stats.why_no_room
        assert 0 < stats.moved_out_bytes <= 2 << 20
        for loss in many:
            loss.backward()
        assert offload.stats().live_bytes == 0
    with hoist.offload_activations(model, 26 * layer, min_bytes=0,
                                   arena=2 << 20) as offload:
        with pytest.raises(hoist.ResourceExhausted, match="arena="):
            many = [model(batch(device, i)).sum() for i in range(12)]
    many.clear()


def test_what_is_dropped_gives_its_memory_back(hoistd, device):
    model = blocks(device, 8)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        for _ in range(50):                  # With gradients, and no backward.
            model(batch(device))
        stats = offload.stats()
        assert stats.live_bytes == 0
        assert stats.arena_bytes <= stats.moved_out_bytes // 10
        gc.collect()
        assert offload.stats().live_bytes == 0


@pytest.mark.only_emulated("a child of a fork has no CUDA")
def test_the_child_of_a_fork_drops_its_parents_graph_in_silence(
        hoistd, device, monkeypatch):
    model = blocks(device, 8)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        loss = model(batch(device)).square().mean()
        child = os.fork()
        if child == 0:
            said = []
            try:
                monkeypatch.setattr(sys, "unraisablehook", said.append)
                del loss
                gc.collect()
                model(batch(device)).square().mean().backward()
            except BaseException as error:
                said.append(error)
            os._exit(min(len(said), 1))
        assert os.waitpid(child, 0)[1] == 0
        loss.backward()
        assert offload.stats().live_bytes == 0


def test_copies_are_offloaded_and_pickles_refused(hoistd, device):
    model = blocks(device, 4)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        with pytest.raises(hoist.FailedPrecondition, match="state_dict"):
            pickle.dumps(model)
        twin = copy.deepcopy(model)
        wanted = train(model, device, 1)
        before = offload.stats().moved_out_bytes
        assert same(train(twin, device, 1), wanted)
        assert offload.stats().moved_out_bytes == 2 * before
    pickle.dumps(model)


# Errors.


def test_changes_in_place_are_refused_as_torch_refuses_them(hoistd, device):
    def changed(offload):
        x = torch.randn(16, 16, device=device, requires_grad=True)
        y = x * 1
        with offload.layer() if offload else torch.enable_grad():
            z = y.exp()
            w = z * 2
        z.add_(1)
        with pytest.raises(RuntimeError) as error:
            w.sum().backward()
        # Some versions of torch name the node by its number, too.
        return str(error.value).replace("Backward0", "")

    plain = changed(None)
    assert "modified by an inplace operation" in plain
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        assert changed(offload) == plain


def test_what_is_refused(hoistd, device):
    with pytest.raises(hoist.InvalidArgument, match="list of blocks"):
        hoist.offload_activations(nn.Linear(2, 2))
    with pytest.raises(hoist.InvalidArgument, match="no module"):
        hoist.offload_activations([1])
    with pytest.raises(hoist.InvalidArgument, match="no layers"):
        hoist.offload_activations([])
    model = blocks(device, 2)
    for wrong in ({"budget": 1.5}, {"budget": -1}, {"keep_last": -1},
                  {"min_bytes": "1MB"}, {"arena": 0.5}, {"arena": "much"},
                  {"arena": -1}, {"skip": "nothere"}):
        with pytest.raises(hoist.InvalidArgument,
                           match=next(iter(wrong))):
            hoist.offload_activations(model, **wrong)
    with pytest.raises(hoist.ResourceExhausted):
        hoist.offload_activations(model, arena=1 << 40, deadline=0)
    offload = hoist.offload_activations(model)
    for until in ("3", 3.0, True):
        with pytest.raises(hoist.InvalidArgument, match="until"):
            offload.park(until=until)
    offload.close()
    offload.close()
    with pytest.raises(hoist.FailedPrecondition, match="closed"):
        offload.__enter__()
    assert not model.layers[0]._forward_hooks


def test_without_hoistd_it_says_so(device):
    with pytest.raises(hoist.Unavailable):
        hoist.offload_activations(Blocks(2))


def test_a_hoistd_that_ends_in_mid_step_is_no_event(make_hoistd, device):
    daemon = make_hoistd(pool=32 << 20, host=32 << 20,
                         in_place=64 << 20)
    model = blocks(device, 8)
    wanted = train(blocks(device, 8), device, 3)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        steps = iter(range(3))

        def run(x):
            y = model(x)
            if next(steps) == 0:
                daemon.kill()
            return y

        assert same(train(model, device, 3, run), wanted)
        stats = offload.stats()
        assert stats.offloaded_layers == 3 * 6
    # More memory is hoistd's to give: what has no room stays.
    with pytest.raises(hoist.Unavailable):
        hoist.offload_activations(Block(), session=hoist.connect())
