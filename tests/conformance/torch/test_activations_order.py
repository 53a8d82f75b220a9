"""Whose backward comes when; what is around layers and within them."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist._copy_permit import CopyPermit  # noqa: E402
from hoist.activations._runs import Pass  # noqa: E402
from torch import nn  # noqa: E402
from torch.autograd.graph import save_on_cpu  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from activations import Blocks, batch, gradients, same, train  # noqa: E402

pytestmark = pytest.mark.hoistd(pool=32 << 20, host=32 << 20,
                                in_place=96 << 20)


@pytest.fixture
def model(device):
    torch.manual_seed(3)
    return Blocks(8).to(device)


def loss_of(module, device, seed):
    torch.manual_seed(seed)
    return module(batch(device, seed)).square().mean()


def of_each(module, device, seeds):
    """Gradients of each seed's pass, alone."""
    found = {}
    for seed in seeds:
        loss_of(module, device, seed).backward()
        found[seed] = gradients(module)
        module.zero_grad()
    return found


# Passes in any order.


@pytest.mark.parametrize("order", ["0a 0b 1a 1b 2a 2b", "0a 1a 2a 2b 1b 0b",
                                   "0a 1a 2a 0b 1b 2b", "0a 1a 0b 2a 1b 2b",
                                   "0a 1a 2a 1b 0b 2b"])
def test_microbatches_come_back_in_any_order(hoistd, device, model, order):
    wanted = of_each(model, device, range(3))
    with hoist.offload_activations(model, min_bytes=0) as offload:
        for _ in range(2):
            losses = {}
            for seed, step in order.split() and [
                    (int(one[0]), one[1]) for one in order.split()]:
                if step == "a":
                    losses[seed] = loss_of(model, device, seed)
                    continue
                losses.pop(seed).backward()
                assert same(gradients(model), wanted[seed])
                model.zero_grad()
        stats = offload.stats()
        assert stats.offloaded_layers == 2 * 3 * 6
        assert stats.moved_in_bytes == stats.moved_out_bytes
        assert stats.live_bytes == 0


def test_two_chunks_of_layers_interleave(hoistd, device, model):
    """As a pipeline stage that has layers 0 to 3 and 4 to 7 runs them."""
    model.eval()
    wanted = of_each(model, device, range(2))
    chunks = model.layers[:4], model.layers[4:]

    def run(chunk, x):
        for layer in chunks[chunk]:
            x = layer(x)
        return x

    with hoist.offload_activations(list(model.layers), min_bytes=0,
                                   keep_last=0) as offload:
        for _ in range(2):
            inner, outer, losses = {}, {}, {}
            for seed in range(2):
                inner[seed] = run(0, model.embed(batch(device, seed)))
                outer[seed] = inner[seed].detach().requires_grad_()
                losses[seed] = model.head(run(1, outer[seed])).square().mean()
            for seed in (1, 0):
                losses[seed].backward()
            for seed in (0, 1):
                inner[seed].backward(outer[seed].grad)
            total = gradients(model)
            model.zero_grad()
        assert offload.stats().moved_out_bytes > 0
    assert all(torch.allclose(one, a + b, atol=1e-6) for one, a, b in
               zip(total, wanted[0], wanted[1]))


def test_a_layer_that_runs_many_times_is_as_many_layers(hoistd, device, model):
    model.layers = nn.ModuleList([model.layers[0]] * 6 + [model.layers[1]])
    wanted = of_each(model, device, range(3))
    with hoist.offload_activations(model, min_bytes=0) as offload:
        for seed in range(3):
            loss_of(model, device, seed).backward()
            assert same(gradients(model), wanted[seed])
            model.zero_grad()
        assert offload.stats().layers == 7
        # Of the first pass what the two that are given are, is kept.
        assert offload.stats().offloaded_layers == 2 * 5


# Graphs that stay, and those that go.


def test_a_retained_graph_comes_back_twice(hoistd, device, model):
    loss_of(model, device, 0).backward()
    wanted = gradients(model)
    model.zero_grad()
    with hoist.offload_activations(model, min_bytes=0) as offload:
        loss = loss_of(model, device, 0)
        peak = offload.stats().peak_bytes
        for retain in (True, True, False):
            loss.backward(retain_graph=retain)
            assert same(gradients(model), wanted)
            model.zero_grad()
            # The last two, which stay, and the two that came last.
            assert offload.stats().live_bytes <= 2 * peak
        assert offload.stats().peak_bytes <= 2.6 * peak
        assert offload.stats().live_bytes == 0


def test_gradients_of_gradients(hoistd, device):
    layers = [nn.Linear(16, 16).to(device) for _ in range(4)]

    def second(offloads):
        x = torch.linspace(-1, 1, 16, device=device).requires_grad_()
        y = x
        for layer in layers:
            with offloads():
                y = layer(y).tanh()
        first, = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        first.square().sum().backward()
        return [x.grad, *(one.weight.grad for one in layers)]

    wanted = [one.clone() for one in second(torch.enable_grad)]
    for layer in layers:
        layer.weight.grad = layer.bias.grad = None
    with hoist.offload_activations(min_bytes=0, keep_last=0) as offload:
        assert same(second(offload.layer), wanted)
        assert offload.stats().moved_in_bytes > 0


def test_a_forward_that_fails_leaves_nothing(hoistd, device, model):
    class Fails(Exception):
        pass

    wanted = of_each(model, device, [0])
    with hoist.offload_activations(model, min_bytes=0) as offload:
        for kind in (Fails, KeyboardInterrupt):
            def fail(module, args, kind=kind):
                raise kind
            hook = model.layers[5].qkv.register_forward_pre_hook(fail)
            with pytest.raises(kind):
                model(batch(device))
            hook.remove()
        loss_of(model, device, 0).backward()
        assert same(gradients(model), wanted[0])
        stats = offload.stats()
        assert stats.live_bytes == 0 and stats.layers == 8
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is (
            None)


class Fails(Exception):
    pass


def fail_at(monkeypatch, verb, calls):
    """The copier's call of that number raises."""
    whole = getattr(CopyPermit, verb)
    left = [calls]

    def copy(self, *arguments):
        left[0] -= 1
        if left[0] == 0:
            raise Fails
        whole(self, *arguments)

    monkeypatch.setattr(CopyPermit, verb, copy)


# 8 layers save 14 tensors or so each: in the midst of a layer's.
@pytest.mark.parametrize("calls", [1, 5, 20, 40])
def test_a_copy_back_that_fails_is_made_again(hoistd, device, model, calls,
                                              monkeypatch):
    wanted = of_each(model, device, [0])
    with hoist.offload_activations(model, min_bytes=0) as offload:
        loss = loss_of(model, device, 0)
        fail_at(monkeypatch, "to_device", calls)
        with pytest.raises(Fails):
            loss.backward(retain_graph=True)
        model.zero_grad()
        loss.backward()
        assert same(gradients(model), wanted[0])
        assert offload.stats().live_bytes == 0


@pytest.mark.parametrize("calls", [1, 5, 20, 40])
def test_what_could_not_be_copied_out_stays(hoistd, device, model, calls,
                                            monkeypatch):
    wanted = of_each(model, device, [0])
    with hoist.offload_activations(model, min_bytes=0) as offload:
        fail_at(monkeypatch, "to_host", calls)
        with pytest.raises(Fails):
            loss_of(model, device, 0)
        assert offload.stats().live_bytes == 0
        loss_of(model, device, 0).backward()
        assert same(gradients(model), wanted[0])
        assert offload.stats().live_bytes == 0


def test_evaluation_costs_nothing(hoistd, device, model):
    with hoist.offload_activations(model, min_bytes=0) as offload:
        with torch.no_grad():
            model(batch(device))
        with torch.inference_mode():
            model(batch(device))
        assert offload.stats().passes == 0
        assert offload.stats().arena_bytes == 0


# Threads.


def test_threads_have_passes_of_their_own(hoistd, device, model):
    model.eval()                             # Dropout's generator is shared.
    found, errors = {}, []
    barrier = threading.Barrier(4)

    def work(seed):
        try:
            for _ in range(3):
                x = batch(device, seed).requires_grad_()
                barrier.wait()
                loss = model(x).square().mean()
                barrier.wait()
                found[seed] = torch.autograd.grad(
                    loss, list(model.parameters()))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    with hoist.offload_activations(model, min_bytes=0) as offload:
        threads = [threading.Thread(target=work, args=(seed,))
                   for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        stats = offload.stats()
        assert stats.passes == 12 and stats.offloaded_layers == 12 * 6
        assert stats.live_bytes == 0
    for seed in range(4):
        loss = model(batch(device, seed)).square().mean()
        assert same(found[seed], torch.autograd.grad(
            loss, list(model.parameters())))


def test_passes_begin_while_another_thread_plans_its_own(hoistd, device, model,
                                                         monkeypatch):
    """A budget is shared by all passes that are under way."""
    model.eval()
    looks = Pass.is_live.fget
    others, found = [], []

    def looked_at(self):
        if not others:
            others.append(threading.Thread(target=lambda: found.append(
                loss_of(model, device, 1))))
            others[0].start()
            others[0].join()
        return looks(self)

    with hoist.offload_activations(model, "8MiB", min_bytes=0) as offload:
        losses = [loss_of(model, device, 0) for _ in range(2)]
        monkeypatch.setattr(Pass, "is_live", property(looked_at))
        losses.append(loss_of(model, device, 0))
        sum((*losses, *found)).backward()
        assert offload.stats().passes == 4 and len(found) == 1
        assert offload.stats().live_bytes == 0


# Checkpoints.


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("where", ["around", "within"])
def test_what_a_checkpoint_saves_is_offloaded(hoistd, device, model, where,
                                              reentrant):
    def checkpointed(module):
        class Checkpointed(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return checkpoint(self.inner, x, use_reentrant=reentrant)
        return Checkpointed(module)

    def run(x):
        x = model.embed(x)
        for layer in model.layers:
            x = (checkpoint(layer, x, use_reentrant=reentrant)
                 if where == "around" else layer(x))
        return model.head(x)

    if where == "within":
        model.layers = nn.ModuleList(map(checkpointed, model.layers))
    else:
        model.forward = run
    torch.manual_seed(3)
    plain = Blocks(8).to(device)
    wanted = train(plain, device, 3)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        assert same(train(model, device, 3), wanted)
        stats = offload.stats()
        x = batch(device)
        # Inputs of layers, and nothing else.
        assert 0 < stats.moved_out_bytes <= 3 * 7 * (x.nbytes + 512)
        assert stats.live_bytes == 0


# Others' hooks.


def test_pairs_nest_in_any_order(hoistd, device, model):
    wanted = train(model, device, 1)
    plain = save_on_cpu()
    with hoist.offload_activations(model, min_bytes=0) as offload:
        def around(x):
            with save_on_cpu():
                return model(x)

        torch.manual_seed(3)
        model.load_state_dict(Blocks(8).to(device).state_dict())
        assert same(train(model, device, 1, around), wanted)
        moved = offload.stats().moved_out_bytes
        assert moved > 0
        for layer in model.layers:           # Innermost: all of it is theirs.
            def within(x, forward=layer.forward):
                with plain:
                    return forward(x)
            layer.forward = within
        torch.manual_seed(3)
        model.load_state_dict(Blocks(8).to(device).state_dict())
        assert same(train(model, device, 1), wanted)
        assert offload.stats().moved_out_bytes - moved < 8192
