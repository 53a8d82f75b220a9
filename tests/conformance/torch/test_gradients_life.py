"""What happens between a forward and its backward; what is refused; who else
has a say in what is saved."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from deaths import start_again  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402
from torch import nn  # noqa: E402
from training import (adapt, assert_same_gradients,  # noqa: E402
                      assert_same_steps, both, loss_of, take_gradients,
                      train, trained)

Change = Callable[[nn.Module], Any]


def x_of(device: torch.device, at: int = 0) -> torch.Tensor:
    return numbers(3, WIDTH, seed=at).to(device)


def top_pair() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def compare_after(device: torch.device, change: Change, budget: Any = 0.4,
                  warm: int = 1, **options: Any) -> nn.Module:
    """Forward, the change, backward: as the resident model's. warm: passes
    before."""
    plain, model = both(Stack(6), device, budget, **options)
    for one in (plain, model):
        for at in range(warm):
            loss_of(one(x_of(device, at))).backward()
            take_gradients(one)
    losses = [loss_of(one(x_of(device, 5))) for one in (plain, model)]
    hoist.check(model)
    change(model)
    for loss in losses:
        loss.backward()
    assert_same_gradients(take_gradients(model), take_gradients(plain))
    return model


# Between a forward and its backward.


@pytest.mark.parametrize("warm", [0, 1, 3])
@pytest.mark.parametrize("budgets", [(0.4, 1.0), (1.0, 0.4), (0.7, 0.5)])
def test_another_budget(hoistd, device, budgets, warm):
    first, then = budgets
    model = compare_after(
        device, lambda model: hoist.set_budget(model, then), first, warm)
    hoist.check(model)


@pytest.mark.parametrize("warm", [0, 1, 3])
@pytest.mark.parametrize("budget", [0.4, 0.7, 1.0])
def test_detach(hoistd, device, budget, warm):
    compare_after(device, hoist.detach, budget, warm)


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float8_e4m3fn])
def test_detach_of_what_is_cast(hoistd, device, storage):
    """The module has its weights as they were before; a graph those that it
    was computed with, which are rounded."""
    model = Stack(5).requires_grad_(False)
    plain = copy.deepcopy(model)
    with torch.no_grad():
        for value in plain.parameters():
            value.copy_(value.to(storage).to(value.dtype))
    x = x_of(device).requires_grad_()
    expected, = torch.autograd.grad(loss_of(plain.to(device)(x)), x)
    hoist.attach(model, 0.5, storage_dtype=storage, skip=())
    loss = loss_of(model(x))
    hoist.detach(model)
    assert same_bytes(torch.autograd.grad(loss, x)[0], expected)


def test_detach_and_attach_again(hoistd, device):
    def change(model: nn.Module) -> None:
        hoist.detach(model)
        hoist.attach(model, 0.5, exclude=[r"up\.down", r"up\.up"])

    compare_after(device, change)


def test_a_weight_that_was_changed_after_detach(hoistd, device):
    def change(model: nn.Module) -> None:
        hoist.detach(model)
        with torch.no_grad():
            model.layers[2].down.weight.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace"):
        compare_after(device, change)


def test_inputs_that_were_changed_meanwhile(hoistd, device):
    """As over the resident model: torch looks at versions."""
    plain, model = both(Stack(4), device, 0.5)
    for one in (plain, model):
        kept = []
        one.layers[1].up.down.register_forward_pre_hook(
            lambda module, args, kept=kept: kept.append(args[0]))
        loss = loss_of(one(x_of(device)))
        with torch.no_grad():
            kept[0].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            loss.backward()
        kept.clear()  # Of a graph, which has the module, which has the hook.


@pytest.mark.parametrize("when", ["before", "within"])
def test_hoistd_dies_and_comes_back(make_hoistd, device, when):
    """The weights were attached; another worker has handed them over again, so
    they are found by what they are."""
    daemon = make_hoistd()
    plain, model = both(Stack(6), device, 0.4)
    again = copy.deepcopy(plain)
    losses = []
    for one in (plain, model):
        loss_of(one(x_of(device, 1))).backward()
        take_gradients(one)
        losses.append(loss_of(one(x_of(device))))

    def die(*_: Any) -> None:
        daemon.kill()
        start_again(daemon)
        bare = Stack(6)
        bare.load_state_dict({
            name.replace("up.base", "up"): value
            for name, value in again.state_dict().items()
            if ".up.down" not in name and ".up.up" not in name})
        hoist.attach(bare.requires_grad_(False), 0.4)

    losses[0].backward()
    expected = take_gradients(plain)
    if when == "before":
        hoist.check(model)  # Or a GPU may have computed with what had gone.
        die()
        losses[1].backward()
    else:
        handle = model.layers[3].up.up.register_full_backward_hook(die)
        try:
            losses[1].backward()
        except hoist.Unavailable:
            # What a GPU has computed by then may be void, and it is said.
            assert device.type == "cuda"
            for one in trained(model).values():
                one.grad = None
            handle.remove()
            loss_of(model(x_of(device))).backward()
        handle.remove()
    assert_same_gradients(take_gradients(model), expected)


def test_hoistd_ends_for_good(make_hoistd, device):
    """Not waited for without end, and said."""
    daemon = make_hoistd()
    _, model = both(Stack(6), device, 0.4, stage_deadline=2)
    loss = loss_of(model(x_of(device)))
    daemon.kill()
    with pytest.raises(hoist.Unavailable):
        loss.backward()


def test_a_graph_keeps_a_module_that_is_dropped(hoistd, device):
    plain, model = both(Stack(6), device, 0.4)
    losses = [loss_of(one(x_of(device))) for one in (plain, model)]
    mine = list(trained(model).values())
    theirs = list(trained(plain).values())
    dropped = weakref.ref(model)
    del model
    gc.collect()
    for found, expected in zip(torch.autograd.grad(losses[1], mine),
                               torch.autograd.grad(losses[0], theirs)):
        assert same_bytes(found, expected)
    del losses
    gc.collect()
    assert dropped() is None


@pytest.mark.parametrize("what", ["detach", "set_budget"])
def test_a_backward_is_no_time_for_it(hoistd, device, what):
    _, model = both(Stack(4), device, 0.5)
    work = {"detach": lambda: hoist.detach(model),
            "set_budget": lambda: hoist.set_budget(model, 1.0)}[what]
    handle = model.layers[1].up.up.register_full_backward_hook(
        lambda *_: work())
    loss = loss_of(model(x_of(device)))
    with pytest.raises(hoist.FailedPrecondition, match="a backward"):
        loss.backward()
    handle.remove()
    work()


# What is refused.


def test_weights_that_are_not_frozen(hoistd, device):
    model = Stack(4)
    with attached(model, least_budget(model)):
        x = x_of(device).requires_grad_()
        with pytest.raises(hoist.FailedPrecondition,
                           match=r"requires_grad_\(False\)"):
            model(x)  # Before anything is computed.
        output = model(x.detach())
        with pytest.raises(hoist.FailedPrecondition,
                           match=r"requires_grad_\(False\)"):
            output.sum().backward()
        with torch.inference_mode():
            assert_equal_outputs(model(x), output.detach())


@pytest.mark.parametrize("budget", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("how", ["module", "flags"])
def test_freezing_after_attach_is_freezing(hoistd, device, budget, how):
    """As peft does it, whose adapters come after."""
    def freeze(model: nn.Module) -> None:
        if how == "module":
            model.requires_grad_(False)
        for one in model.parameters():
            one.requires_grad = False

    torch.manual_seed(0)
    model = Stack(6)
    plain = copy.deepcopy(model).to(device)
    hoist.attach(model, budget)
    with torch.no_grad():
        model(x_of(device))
        model(x_of(device))
    for one in (plain, model):
        freeze(one)
        adapt(one, device)
    assert_same_steps(train(model, lambda at: x_of(device, at), 4),
                      train(plain, lambda at: x_of(device, at), 4))
    hoist.set_budget(model, 0.5)
    assert_same_steps(train(model, lambda at: x_of(device, at), 4),
                      train(plain, lambda at: x_of(device, at), 4))
    hoist.detach(model)
    assert {name: one.requires_grad for name, one in
            model.named_parameters()} == {
        name: one.requires_grad for name, one in plain.named_parameters()}


def test_a_weight_that_is_thawed_is_refused(hoistd, device):
    model = Stack(4).requires_grad_(False)
    with attached(model, 0.5):
        model.layers[0].down.weight.requires_grad_(True)
        with pytest.raises(hoist.FailedPrecondition, match="layers.0.down"):
            model(x_of(device).requires_grad_())
        model.requires_grad_(False)
        model(x_of(device).requires_grad_()).sum().backward()


class Keeps(torch.autograd.Function):
    """A gradient that is a view of the weight."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(weight)
        return (x * weight).sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.saved_tensors[0].view(-1), None


class Row(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Keeps.apply(x, self.weight)


def test_a_gradient_that_is_a_view_of_a_weight(hoistd, device):
    """It would show other weights' bytes. Where all stays, it is right."""
    model = nn.Sequential(*[Row() for _ in range(3)]).requires_grad_(False)
    outside = [torch.ones(WIDTH, device=device, requires_grad=True)
               for _ in range(3)]

    def backward() -> None:
        torch.autograd.backward([row(x) for row, x in zip(model, outside)])

    weights = [row.weight.clone().to(device) for row in model]
    hoist.attach(model, least_budget(model))
    with pytest.raises(hoist.FailedPrecondition, match=r"clone\(\)"):
        backward()
    for one in outside:
        one.grad = None
    hoist.set_budget(model, 1.0)
    backward()
    for one, weight in zip(outside, weights):
        assert same_bytes(one.grad, weight)
    hoist.detach(model)
    for one, weight in zip(outside, weights):
        assert same_bytes(one.grad, weight)


class PastHooks(torch.autograd.Function):
    """Keeps a weight where no hook sees it, as bitsandbytes does."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.weight = weight
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.weight, None


class Past(nn.Module):
    def __init__(self, view: bool) -> None:
        super().__init__()
        self.view = view
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return PastHooks.apply(x, self.weight.view(-1) if self.view else
                               self.weight)


@pytest.mark.parametrize("view", [False, True])
def test_a_weight_that_a_node_keeps_past_hooks(hoistd, device, view):
    """It has memory of its own; a view is refused, in the forward."""
    model = nn.Sequential(*[Past(view) for _ in range(4)]).requires_grad_(
        False)
    x = x_of(device).requires_grad_()
    expected, = torch.autograd.grad(
        loss_of(copy.deepcopy(model).to(device)(x)), x)
    hoist.attach(model, least_budget(model))
    if view:
        with pytest.raises(hoist.FailedPrecondition, match="view"):
            model(x)
    else:
        for _ in range(3):
            assert same_bytes(
                torch.autograd.grad(loss_of(model(x)), x)[0], expected)
    hoist.detach(model)


# Who else has a say in what is saved.


class SeesAll(torch.autograd.graph.saved_tensors_hooks):
    """Keeps copies, and how many bytes it was given."""

    def __init__(self) -> None:
        self.nbytes = 0
        super().__init__(self._pack, lambda one: one)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.nbytes += tensor.nbytes
        return tensor.detach().clone()


@pytest.mark.parametrize("budget", [0.4, 1.0])
def test_save_on_cpu_around_it(hoistd, device, budget):
    def call(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(x)

    plain, model = both(Stack(5), device, budget)
    assert_same_steps(train(model, lambda at: x_of(device, at), 5, call),
                      train(plain, lambda at: x_of(device, at), 5, call))
    assert not top_pair()


def test_no_weight_that_comes_and_goes_is_given_to_pairs_around_it(hoistd,
                                                                   device):
    plain, model = both(Stack(5), device, 0.4)
    seen = {}
    for name, one in (("plain", plain), ("hoist", model)):
        pair = SeesAll()
        with pair:
            loss = loss_of(one(x_of(device)))
        loss.backward()
        seen[name] = pair.nbytes
    # Of each block two linears, but for what the first has before its adapter.
    weights = 9 * plain.layers[0].down.weight.nbytes
    assert seen["hoist"] <= seen["plain"] - weights
    assert_same_gradients(take_gradients(model), take_gradients(plain))


def test_a_pair_within_a_block_has_the_weights_bytes(hoistd, device):
    class Within(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with SeesAll():
                return torch.relu(self.inner(x))

    model = nn.ModuleList(Within() for _ in range(4))
    model = nn.Sequential(*model).requires_grad_(False)
    x = x_of(device).requires_grad_()
    expected, = torch.autograd.grad(
        loss_of(copy.deepcopy(model).to(device)(x)), x)
    with attached(model, least_budget(model)):
        for _ in range(3):
            assert same_bytes(torch.autograd.grad(loss_of(model(x)), x)[0],
                              expected)


def test_where_hooks_are_forbidden_a_backward_raises(hoistd, device):
    model = Stack(4).requires_grad_(False)
    x = x_of(device).requires_grad_()
    with attached(model, 0.5):
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            with pytest.raises((hoist.FailedPrecondition, RuntimeError)):
                loss_of(model(x)).backward()
        loss_of(model(x)).backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_pushes_nothing(hoistd, device, mode):
    model = Stack(4).requires_grad_(False)
    seen = []
    with attached(model, 0.5):
        for block in model.layers:
            block.up.register_forward_pre_hook(
                lambda *_: seen.append(top_pair()))
        with mode():
            model(x_of(device))
        assert seen == [None] * 4
        model(x_of(device))
        assert all(seen[4:]) and len(seen) == 8
    assert not top_pair()


def test_where_all_stays_nothing_is_pushed(hoistd, device):
    model = Stack(4).requires_grad_(False)
    seen = []
    with attached(model, 1.0):
        model(x_of(device))
        for block in model.layers:
            block.up.register_forward_pre_hook(
                lambda *_: seen.append(top_pair()))
        model(x_of(device).requires_grad_()).sum().backward()
    assert seen == [None] * 4


def test_a_weight_that_is_looked_at_in_a_graph(hoistd, device):
    """Outside of a backward it is a copy."""
    model = Stack(3).requires_grad_(False)
    weight = model.layers[1].down.weight.clone()
    with attached(model, least_budget(model)):
        loss = loss_of(model(x_of(device).requires_grad_()))
        nodes, found = [loss.grad_fn], []
        while nodes:
            node = nodes.pop()
            nodes += [one for one, _ in node.next_functions if one is not None]
            if hasattr(node, "_saved_mat2"):
                found.append(node._saved_mat2)
        assert any(same_bytes(one.t(), weight) for one in found)
        loss.backward()


def test_outside_of_forward(hoistd, device):
    """What hoist.stage brings."""
    model = Stack(4).requires_grad_(False)
    x = x_of(device).requires_grad_()
    expected, = torch.autograd.grad(
        loss_of(x @ copy.deepcopy(model).to(device).layers[1].up.weight.t()),
        x)
    with attached(model, least_budget(model)):
        for _ in range(2):
            with hoist.stage(model.layers[1]):
                loss = loss_of(x @ model.layers[1].up.weight.t())
            model(x)
            assert same_bytes(torch.autograd.grad(loss, x)[0], expected)


@pytest.mark.hoistd(pool=10 << 20, host=64 << 20)
def test_the_pool_need_not_have_room_for_two_plans(hoistd, device):
    """What stays is other groups once a backward is planned for."""
    plain, model = both(Stack(12, 256), device, 1 / 3)
    x = lambda at: numbers(3, 256, seed=at).to(device)  # noqa: E731
    assert_same_steps(train(model, x, 4), train(plain, x, 4))
    assert hoist.stats(model).unplanned == 0
