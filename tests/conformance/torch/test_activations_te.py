"""hoist.compat.te in the place of TransformerEngine's."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.compat import te  # noqa: E402

from activations import Blocks, batch, gradients, same  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)
LAYERS = 8


@pytest.fixture
def model(device):
    torch.manual_seed(3)
    return Blocks(LAYERS).to(device).eval()


@pytest.fixture
def wanted(model, device):
    model(batch(device)).square().mean().backward()
    found = gradients(model)
    model.zero_grad()
    return found


def forward(model, device, context, sync, each=lambda layer: None):
    x = model.embed(batch(device))
    for index, layer in enumerate(model.layers):
        with context:
            x = layer(x)
        x = sync(x)
        each(index)
    return model.head(x).square().mean()


def came_back(model, loss):
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    return found


@pytest.mark.parametrize("offloaded", [0, 1, 4, 7])
def test_layers_are_offloaded_by_themselves(hoistd, device, model, wanted,
                                            offloaded):
    context, sync = te.get_cpu_offload_context(
        True, offloaded, LAYERS, min_bytes=0, double_buffering=True,
        retain_pinned_cpu_buffers=True)
    for _ in range(3):
        assert same(came_back(model, forward(model, device, context, sync)),
                    wanted)
    counts = context._engine.counts
    assert counts.offloaded_layers == 3 * offloaded
    counts.fold()
    assert counts._live == 0


def test_microbatches_of_a_pipeline(hoistd, device, model, wanted):
    context, sync = te.get_cpu_offload_context(True, 6, LAYERS, min_bytes=0)
    losses = [forward(model, device, context, sync) for _ in range(3)]
    for loss in losses:
        assert same(came_back(model, loss), wanted)


def test_synchronised_by_hand(hoistd, device, model, wanted):
    context, sync, controller = te.get_cpu_offload_context(
        enabled=True, model_layers=LAYERS, manual_synchronization=True,
        min_bytes=0)
    counts = context._engine.counts
    for _ in range(2):
        loss = forward(model, device, context, sync,
                       controller.start_offload_layer)
        for layer in range(LAYERS):
            controller.release_activation_forward_gpu_memory(layer)
        counts.fold()
        assert counts._live == 0             # All of it is on the host alone.
        for layer in reversed(range(LAYERS)):
            controller.start_reload_layer(layer)
        moved = counts.moved_in
        assert same(came_back(model, loss), wanted)
        assert counts.moved_in == moved      # None was asked for twice.


def test_what_is_not_reloaded_comes_when_it_is_needed(hoistd, device, model,
                                                      wanted):
    context, sync, controller = te.get_cpu_offload_context(
        True, model_layers=LAYERS, manual_synchronization=True, min_bytes=0)
    loss = forward(model, device, context, sync,
                   controller.start_offload_layer)
    for layer in range(0, LAYERS, 2):
        controller.release_activation_forward_gpu_memory(layer)
    assert same(came_back(model, loss), wanted)
    loss = forward(model, device, context, sync)  # Nothing is said of any.
    moved = context._engine.counts.moved_out
    assert same(came_back(model, loss), wanted)
    assert context._engine.counts.moved_out == moved


def test_calls_out_of_order_are_refused(hoistd, device, model):
    context, sync, controller = te.get_cpu_offload_context(
        True, model_layers=LAYERS, manual_synchronization=True)
    with pytest.raises(RuntimeError, match="not run yet"):
        controller.start_offload_layer(0)
    forward(model, device, context, sync)
    with pytest.raises(RuntimeError, match="offload_started"):
        controller.release_activation_forward_gpu_memory(0)
    controller.start_offload_layer(0)
    with pytest.raises(RuntimeError, match="not_offloaded"):
        controller.start_offload_layer(0)
    with pytest.raises(RuntimeError, match="offload_finished"):
        controller.start_reload_layer(0)
    fresh, sync = te.get_cpu_offload_context(True, 1, 2)
    with pytest.raises(RuntimeError, match="before it was entered"):
        sync(torch.ones(1, device=device, requires_grad=True))
    with fresh:
        with pytest.raises(RuntimeError, match="within it"):
            sync(torch.ones(1, device=device, requires_grad=True))
        with pytest.raises(RuntimeError, match="entered already"):
            fresh.__enter__()
    with pytest.raises(ValueError, match="requires no gradient"):
        sync(torch.ones(1, device=device))


def test_arguments_that_are_refused(hoistd):
    for wrong in ({"num_layers": 2, "model_layers": 2}, {"num_layers": None},
                  {"num_layers": -1, "model_layers": 4},
                  {"offload_activations": False},
                  {"num_layers": 1, "model_layers": 2,
                   "offload_stream": object()}):
        with pytest.raises(ValueError):
            te.get_cpu_offload_context(True, **wrong)
    with pytest.warns(DeprecationWarning, match="hoist.attach"):
        te.get_cpu_offload_context(True, 1, 2, offload_weights=True)


def test_what_is_disabled_is_off(hoistd, device, model):
    context, sync = te.get_cpu_offload_context(True, 6, LAYERS, min_bytes=0)
    for arguments in ({"enabled": False},
                      {"enabled": True, "offload_activations": False,
                       "offload_weights": True}):
        off, passes_on = te.get_cpu_offload_context(**arguments)
        x = torch.randn(16, 32, device=device, requires_grad=True)
        with context:
            assert te.is_cpu_offload_enabled()
            with off:
                assert not te.is_cpu_offload_enabled()
                y = passes_on(x.sin().exp())
        assert not te.is_cpu_offload_enabled()
        y.sum().backward()
        assert context._engine.counts.moved_out == 0
    assert te.get_cpu_offload_context(manual_synchronization=True)[2] is None


def test_marks(hoistd, device):
    class Storage:
        """Of a quantised tensor, as TransformerEngine has them."""

        def __init__(self, *tensors):
            self.tensors = tensors

        def get_data_tensors(self):
            return self.tensors

    x = torch.randn(32, 32, device=device, requires_grad=True)
    context, _ = te.get_cpu_offload_context(True, 1, 2, min_bytes=0)
    first, second = x.sin(), x.cos()
    te.mark_not_offload(first, None, Storage(second, None))
    te.mark_activation_offload(first)
    te.start_offload(first, offload_base_tensor=True)
    third = x.tan()
    third._TE_do_not_offload = True          # By its own modules.
    with context:
        y = first * second * third.detach()
        z = third * first
    assert context._engine.counts.kept["mark"] == 4 * x.nbytes
    assert context._engine.counts.moved_out == x.nbytes  # third.detach()
    (y + z).sum().backward()


def test_transformer_engine_sees_that_something_offloads(
        hoistd, device, monkeypatch):
    theirs = types.ModuleType("transformer_engine.pytorch.cpu_offload")
    theirs.OFFLOAD_SYNCHRONIZER = None
    monkeypatch.setitem(sys.modules, theirs.__name__, theirs)
    context, _ = te.get_cpu_offload_context(True, 1, 2)
    with context:
        assert theirs.OFFLOAD_SYNCHRONIZER is not None
    assert theirs.OFFLOAD_SYNCHRONIZER is None
    assert hoist.compat.te is te
