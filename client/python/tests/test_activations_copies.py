"""Copies that are made as late as they may be: everybody waits for what it
needs, and memory stays until its copy is made."""

from __future__ import annotations

import gc
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from hoist import InvalidArgument  # noqa: E402
from hoist.activations import _finding  # noqa: E402
from hoist.activations._engine import Engine  # noqa: E402
from hoist.activations._memory import HostMemory  # noqa: E402
from hoist.activations._offload import Offload  # noqa: E402
from hoist.activations._parking import Parking  # noqa: E402
from hoist.activations._pieces import Piece  # noqa: E402

from late import Arena, LateCopier  # noqa: E402


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).tanh() * x.sin()


class Model(nn.Module):
    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class World:
    """An Offload over late copies, and what it leases."""

    def __init__(self, model, keep_last=2, fixed=None):
        self.copier = LateCopier()
        self.arenas = []

        def lease(nbytes):
            self.arenas.append(Arena(nbytes))
            return self.arenas[-1]

        # Nothing is parked here, and so nothing asked of a session.
        self.engine = Engine(self.copier, HostMemory(lease, self.copier, fixed),
                             Parking(self), 0)
        self.offload = Offload(self.engine, model, list(model.layers), (),
                               None, keep_last)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def x(seed=0):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))


def gradients_of(model, *losses):
    for loss in losses:
        loss.backward()
    found = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    return found


def same(found, wanted):
    return all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("kept", [0, 1, 2, 5, 8])
def test_gradients_are_right(model, kept):
    wanted = gradients_of(model, model(x()))
    world = World(model, kept)
    for _ in range(3):
        assert same(gradients_of(model, model(x())), wanted)
    assert world.offload.stats().offloaded_layers == 3 * (8 - kept)
    assert world.offload.stats().live_bytes == 0
    world.offload.close()
    assert all(arena.is_closed for arena in world.arenas)


def test_passes_in_any_order(model, chance):
    wanted = {seed: gradients_of(model, model(x(seed))) for seed in range(4)}
    world = World(model)
    losses = {}
    for _ in range(40):
        seed = chance.randrange(4)
        if seed in losses:
            loss = losses.pop(seed)
            if chance.random() < 0.3:
                loss.backward(retain_graph=True)
                model.zero_grad()
            assert same(gradients_of(model, loss), wanted[seed])
        else:
            losses[seed] = model(x(seed))
            if chance.random() < 0.2:
                del losses[seed]             # No backward comes.
    losses.clear()
    assert world.offload.stats().live_bytes == 0


@pytest.mark.parametrize("when", ["leaving", "coming"])
def test_what_is_dropped_on_its_way_is_waited_for(model, when):
    world = World(model, 0)
    loss = model(x())
    if when == "coming":
        torch.autograd.grad(loss, list(model.layers[-1].parameters()),
                            retain_graph=True)
    del loss
    gc.collect()
    # Each copy finds its memory yet: those that were let go of were waited
    # for, and there are no others.
    world.copier.synchronize()
    assert world.offload.stats().live_bytes == 0
    assert not any(arena.taken for arena in world.arenas)


def test_what_is_set_aside_on_its_way_is_waited_for(model):
    hidden = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *call: hidden.append(call[2]))
    world = World(model, 0)
    loss = model(x())
    for at in (7, 3, 7):                     # From 7 on 6 is on its way.
        torch.autograd.grad(hidden[at].sum(),
                            list(model.layers[at].parameters()),
                            retain_graph=True)
    hidden.clear()
    wanted = gradients_of(model, loss)
    world.copier.synchronize()
    world.offload.close()
    assert same(gradients_of(model, model(x())), wanted)


@pytest.mark.parametrize("verb", ["left", "came"])
def test_an_interrupt_between_a_copy_and_its_note_leaves_no_half(
        model, monkeypatch, verb):
    """KeyboardInterrupt comes between any two lines of Python."""
    wanted = gradients_of(model, model(x()))
    world = World(model, 0)
    whole, left = getattr(Piece, verb), [7]

    def note(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        whole(self, *arguments)

    monkeypatch.setattr(Piece, verb, note)
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    loss = None if verb == "left" else model(x())
    with pytest.raises(KeyboardInterrupt):
        model(x()) if loss is None else loss.backward(retain_graph=True)
    model.zero_grad()
    assert same(gradients_of(model, model(x()) if loss is None else loss),
                wanted)
    del loss
    gc.collect()
    assert not ignored and world.offload.stats().live_bytes == 0
    assert not any(arena.taken for arena in world.arenas)


def test_a_block_is_given_back_after_its_last_copy(model):
    world = World(model)
    gradients_of(model, model(x()))
    arena, = world.arenas
    # Six layers were read back; they are free for who comes after that.
    assert arena.given_on == [world.copier.in_stream()] * 6
    world.offload.close()
    world = World(model)
    model(x())                               # No backward comes.
    arena, = world.arenas
    assert arena.given_on == [world.copier.out_stream()] * 6


def test_memory_is_leased_for_all_layers_at_once(model):
    world = World(model)
    gradients_of(model, model(x()))
    assert len(world.arenas) == 1
    stats = world.offload.stats()
    assert stats.arena_bytes == world.arenas[0].bytes
    assert stats.arena_bytes >= stats.moved_out_bytes


def test_an_arena_of_fixed_size_is_no_larger(model):
    world = World(model, fixed=4 * 2048)
    wanted = gradients_of(model, model(x()))
    assert same(gradients_of(model, model(x())), wanted)
    assert len(world.arenas) == 1
    stats = world.offload.stats()
    assert stats.kept_bytes["arena"] > 0 and "are left" in stats.why_no_room


def test_an_arena_is_closed_once_its_last_block_is_back(model):
    world = World(model)
    loss = model(x())
    world.offload.close()
    arena, = world.arenas
    assert not arena.is_closed
    gradients_of(model, loss)
    assert arena.is_closed


# Which modules, and whose memory.


def test_layers_are_the_blocks_of_the_tree(model):
    assert _finding.layers_of(model) == list(model.layers)
    with pytest.raises(InvalidArgument, match="list of blocks"):
        _finding.layers_of(nn.Linear(2, 2))


def test_skipped_modules_are_the_outermost(model):
    found = _finding.skipped([model], ["layers.1", "linear"])
    assert found == {model.layers[1], *(
        layer.linear for layer in model.layers if layer is not
        model.layers[1])}
    with pytest.raises(InvalidArgument, match="skip.*nowhere"):
        _finding.skipped([model], "nowhere")


def test_storages_of_weights_are_known(model):
    model.register_buffer("table", torch.zeros(3))
    known = _finding.weights_of([model])
    assert len(known) == 17
    weight = model.layers[0].linear.weight
    for view in (weight, weight.t(), weight.detach()[1:], model.table[:1]):
        assert view.untyped_storage()._cdata in known
    assert torch.zeros(3).untyped_storage()._cdata not in known
