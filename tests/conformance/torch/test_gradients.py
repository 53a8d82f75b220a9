"""Gradients through modules whose weights come and go: what is trained is the
caller's own, and gets what it gets over the resident module, bit for bit."""

from __future__ import annotations

import copy
import threading
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Block, Stack, Transformer, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from real_daemon import until  # noqa: E402
from training import (assert_same_gradients,  # noqa: E402
                      assert_same_steps, both, loss_of, take_gradients, train,
                      trained)

pytestmark = pytest.mark.usefixtures("hoistd")
BUDGETS = ["least", 0.4, 0.7, 1.0]


def of(device: torch.device) -> Callable[[int], torch.Tensor]:
    return lambda at: numbers(3, WIDTH, seed=at).to(device)


def budget_of(model: nn.Module, budget: Any, **options: Any) -> Any:
    return least_budget(model, **options) if budget == "least" else budget


@pytest.mark.parametrize("idle", ["cpu", "slot", "meta"])
@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_adapters_train_as_over_the_resident_model(device, budget, groups,
                                                   idle):
    model = Stack(8)
    plain, model = both(model, device, budget_of(model, budget, groups=groups),
                        groups=groups, idle=idle)
    assert_same_steps(train(model, of(device)), train(plain, of(device)))
    hoist.check(model)
    stats = hoist.stats(model)
    assert (stats.bound_groups == stats.groups) == (budget == 1.0)
    hoist.detach(model).to(device)
    for mine, other in zip(model.parameters(), plain.parameters()):
        assert same_bytes(mine, other)
    assert_same_steps(train(model, of(device), 2), train(plain, of(device), 2))


def test_inputs_have_gradients_too(device):
    model = Stack(6).requires_grad_(False)
    x = numbers(3, WIDTH).to(device).requires_grad_()
    expected, = torch.autograd.grad(
        loss_of(copy.deepcopy(model).to(device)(x)), x)
    with attached(model, 0.4):
        for _ in range(3):
            found, = torch.autograd.grad(loss_of(model(x)), x)
            assert same_bytes(found, expected)


def test_an_embedding_that_is_tied_to_the_head(device):
    model = Transformer()
    plain, model = both(model, device, least_budget(model))

    def ids(at: int) -> torch.Tensor:
        return (torch.arange(14).reshape(2, 7) * (at + 3) % 50).to(device)

    assert_same_steps(train(model, ids, 5), train(plain, ids, 5))


# What is copied.


def streamed_in(hoistd: Any, work: Callable[[], nn.Module]) -> int:
    """Bytes over the link, for what the work does with the module that it
    gives."""
    before = hoistd.counters()["host_to_device_bytes"]
    hoist.check(work())
    return hoistd.counters()["host_to_device_bytes"] - before


def test_a_step_copies_what_its_order_needs(hoistd, device):
    """Forward and backward are one order, in which what lies in its place yet
    is not copied: less than two forwards' bytes."""
    model = Stack(8)
    _, model = both(model, device, 0.4)
    train(model, of(device), 3)
    hoist.check(model)
    attachment = vars(model)["_hoist"]
    made, before = attachment.planning.made, hoist.stats(model)
    group = before.model_bytes // before.groups
    streamed = sum(not one.bound for one in attachment.groups)
    assert before.streamed_bytes < 2 * streamed * group
    copied = streamed_in(
        hoistd, lambda: train(model, of(device), 5) and model)
    after = hoist.stats(model)
    assert attachment.planning.made == made
    assert after.skipped == before.skipped
    assert after.unplanned == before.unplanned == 0
    assert after.stages - before.stages == 5 * 2 * streamed
    # Two on their way when counting begins, and two when it ends.
    assert abs(copied - 5 * after.streamed_bytes) <= 2 * group


def test_the_device_budget_holds(hoistd, device):
    model = Stack(8)
    _, model = both(model, device, 0.4)
    stats, most = hoist.stats(model), 0

    def look(*_: Any) -> None:
        nonlocal most
        most = max(most, hoistd.tier("DEVICE")["leased_bytes"]
                   + hoistd.tier("DEVICE")["pinned_bytes"])

    for block in model.layers:
        block.register_forward_hook(look)
        block.up.register_full_backward_hook(look)
    train(model, of(device), 3)
    assert 0 < most <= stats.budget_bytes


def test_forwards_between_steps_keep_the_order(device):
    """Planned anew once for backwards, and once when none come any more."""
    model = Stack(8)
    plain, model = both(model, device, 0.4)
    planning = vars(model)["_hoist"].planning
    train(model, of(device), 2)
    train(plain, of(device), 2)
    made = planning.made
    for at in range(6):
        with torch.no_grad():
            for _ in range(3):
                assert_equal_outputs(model(of(device)(at)),
                                     plain(of(device)(at)))
        assert_same_steps(train(model, of(device), 1),
                          train(plain, of(device), 1))
    assert planning.made == made
    whole = hoist.stats(model).streamed_bytes
    with torch.no_grad():
        for _ in range(40):
            model(of(device)(0))
    assert planning.made == made + 1
    assert hoist.stats(model).streamed_bytes < whole
    assert_same_steps(train(model, of(device), 3), train(plain, of(device), 3))
    assert planning.made == made + 2


# Graphs, in any order.


@pytest.fixture
def two(device: torch.device) -> Any:
    """The resident model and an attached one, and a way to compare them."""
    model = Stack(6)
    plain, model = both(model, device, 0.4)
    return plain, model


def compare(two: Any, work: Callable[[nn.Module], Any]) -> None:
    """What the work gives, and the gradients that it leaves, twice."""
    plain, model = two
    for turn in range(3):
        expected, found = work(plain), work(model)
        if expected is not None:
            assert_equal_outputs(found, expected)
        assert_same_gradients(take_gradients(model), take_gradients(plain),
                              f"turn {turn}")
    hoist.check(model)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_graphs_at_once(two, device, order):
    def work(model: nn.Module) -> None:
        losses = [loss_of(model(of(device)(at))) for at in range(2)]
        for at in order:
            losses[at].backward()

    compare(two, work)


def test_a_backward_of_two_graphs_together(two, device):
    compare(two, lambda model: (
        loss_of(model(of(device)(0))) + loss_of(model(of(device)(1)))
    ).backward())


def test_a_graph_that_is_retained(two, device):
    def work(model: nn.Module) -> None:
        loss = loss_of(model(of(device)(0)))
        loss.backward(retain_graph=True)
        with torch.no_grad():
            model(of(device)(1))
        loss.backward()

    compare(two, work)


def test_a_part_of_the_gradients(two, device):
    def work(model: nn.Module) -> Any:
        loss = loss_of(model(of(device)(0)))
        last = model.layers[-1].up.up.weight
        found = torch.autograd.grad(loss, [last], retain_graph=True)
        loss.backward()
        return found

    compare(two, work)


def test_a_second_derivative(two, device):
    def work(model: nn.Module) -> Any:
        x = of(device)(0).requires_grad_()
        first, = torch.autograd.grad(loss_of(model(x)), x, create_graph=True)
        loss_of(first).backward()
        assert not top_pair()
        return first.detach()

    compare(two, work)


def test_a_backward_that_never_comes(two, device):
    def work(model: nn.Module) -> None:
        dropped = loss_of(model(of(device)(1)))
        del dropped
        loss_of(model(of(device)(0))).backward()

    compare(two, work)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_backward_that_fails(two, device, error):
    """What it had staged is ended, the turn is given back, and the next one is
    right, in other threads too."""
    def fail(*_: Any) -> None:
        raise error

    def work(model: nn.Module) -> None:
        handle = model.layers[3].register_full_backward_hook(fail)
        with pytest.raises(error):
            loss_of(model(of(device)(0))).backward()
        handle.remove()
        for one in trained(model).values():
            one.grad = None
        attachment = vars(model).get("_hoist")
        if attachment is not None:
            # A GPU's thread lets go of it in its own time.
            until(lambda: not attachment.passes.backwards.are_running)
            assert not any(one.state.holds for one in attachment.groups)
        in_thread(lambda: loss_of(model(of(device)(1))).backward())

    compare(two, work)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_forward_that_fails(two, device, error):
    def fail(*_: Any) -> None:
        raise error

    def work(model: nn.Module) -> None:
        before = loss_of(model(of(device)(2)))
        handle = model.layers[3].up.register_forward_pre_hook(fail)
        with pytest.raises(error):
            model(of(device)(0))
        handle.remove()
        before.backward()
        loss_of(model(of(device)(1))).backward()

    compare(two, work)
    assert not top_pair()


def top_pair() -> Any:
    """Of saved-tensor hooks, in this thread."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def in_thread(work: Callable[[], Any]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def test_a_backward_in_another_thread(two, device):
    def work(model: nn.Module) -> None:
        loss = loss_of(model(of(device)(0)))
        in_thread(loss.backward)
        with torch.no_grad():
            model(of(device)(1))

    compare(two, work)


def test_threads_train_at_once(two, device):
    """Each with a graph of its own, over the same model: their turns come one
    after another, and nobody waits for ever."""
    plain, model = two
    names = list(trained(plain))

    def grads(model: nn.Module, at: int) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss_of(model(of(device)(at))),
                                        list(trained(model).values())))

    expected = {at: grads(plain, at) for at in range(4)}
    found: dict[int, list[list[torch.Tensor]]] = {at: [] for at in range(4)}
    barrier = threading.Barrier(4)

    def run(at: int) -> None:
        barrier.wait(60)
        for _ in range(8):
            found[at].append(grads(model, at))

    threads = [threading.Thread(target=run, args=(at,), daemon=True)
               for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    for at, several in found.items():
        assert len(several) == 8
        for one in several:
            assert_same_gradients(dict(zip(names, one)),
                                  dict(zip(names, expected[at])))
    hoist.check(model)


class Forces(nn.Module):
    """A forward that goes backward within itself, as force fields do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            force, = torch.autograd.grad(loss_of(self.inner(x)), x,
                                         create_graph=True)
        return force


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_backward_within_a_forward(device, budget):
    model = Forces(Stack(5)).requires_grad_(False)
    with torch.no_grad():
        expected = copy.deepcopy(model).to(device)(of(device)(0)).detach()
        with attached(model, budget_of(model, budget)):
            for _ in range(3):
                assert_equal_outputs(model(of(device)(0)), expected)


# Checkpoints.


class Checkpointed(Stack):
    """As transformers calls its layers; or the forward's own parts."""

    def __init__(self, blocks: int, reentrant: bool, within: bool) -> None:
        super().__init__(0)
        self.reentrant = reentrant
        kind = WithinBlock if within else Block
        self.layers.extend(kind() for _ in range(blocks))
        for layer in self.layers:
            layer.reentrant = reentrant
        self.within = within

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        for layer in self.layers:
            x = layer(x) if self.within else checkpoint(
                layer, x, use_reentrant=self.reentrant)
        return x


class WithinBlock(Block):
    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=self.reentrant)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_checkpointed_layers(device, budget, reentrant, groups):
    model = Checkpointed(6, reentrant, within=False)
    plain, model = both(model, device, budget_of(model, budget, groups=groups),
                        groups=groups)
    assert_same_steps(train(model, of(device), 6), train(plain, of(device), 6))
    hoist.check(model)


def test_a_checkpointed_layer_is_staged_once_in_a_backward(device):
    """For what is computed again and for its gradients."""
    model = Checkpointed(6, reentrant=False, within=False)
    _, model = both(model, device, 0.4)
    train(model, of(device), 3)
    before = hoist.stats(model)
    train(model, of(device), 2)
    after = hoist.stats(model)
    streamed = after.groups - after.bound_groups
    assert after.stages - before.stages == 2 * 2 * streamed
    assert after.skipped == before.skipped


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_checkpoint_around_the_whole_model(device, budget, reentrant):
    model = Stack(5)
    plain, model = both(model, device, budget_of(model, budget))

    def call(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)

    assert_same_steps(train(model, of(device), 4, call),
                      train(plain, of(device), 4, call))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_checkpoint_of_a_part_of_a_group(device, budget, reentrant):
    """What is computed again calls modules of the group, and not the block that
    brings it."""
    if device.type == "cuda" and not reentrant:
        pytest.skip("a GPU does not compute with weights that lie on the host; "
                    "torch refuses it (client/python/hoist/nn/README.md)")
    model = Checkpointed(5, reentrant, within=True)
    plain, model = both(model, device, budget_of(model, budget))
    assert_same_steps(train(model, of(device), 5), train(plain, of(device), 5))
