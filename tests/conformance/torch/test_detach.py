"""Detach gives a module back exactly, whatever happened in between."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import CASES, WIDTH, Block, Stack, Transformer  # noqa: E402
from passes import (assert_passes, attached, least_budget, make,  # noqa: E402
                    references)

pytestmark = pytest.mark.usefixtures("hoistd")


class Odd(torch.nn.Module):
    """Ties, views, odd strides, no gradients, buffers, hooks, empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        base = torch.randn(4, WIDTH)
        self.turned = torch.nn.Parameter(torch.randn(WIDTH, 4).t())
        self.frozen = torch.nn.Parameter(base, requires_grad=False)
        self.row = torch.nn.Parameter(base[1], requires_grad=False)
        self.tied = self.layers[0].up.weight
        self.empty = torch.nn.Parameter(torch.empty(0, 3))
        self.scalar = torch.nn.Parameter(torch.tensor(2.0))
        self.none = None
        self.register_parameter("nothing", None)
        self.register_buffer("mask", torch.ones(WIDTH).bool())
        self.register_buffer("own", torch.randn(WIDTH), persistent=False)
        self.layers[0].register_forward_hook(lambda *_: None)
        self.layers[0].up.register_forward_pre_hook(lambda *_: None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * self.scalar
        y = x * self.row + self.own * self.mask
        return (y @ self.turned.t()) @ self.frozen + self.empty.sum()


def facts(module: torch.nn.Module) -> list:
    """All that can be told of a module's tree without its bytes."""
    seen: dict[int, int] = {}
    storages: dict[int, int] = {}

    def of(value: torch.Tensor) -> tuple:
        return (type(value), value.dtype, tuple(value.shape), value.stride(),
                value.storage_offset() if value.numel() else 0,
                value.device, value.requires_grad, value.is_leaf,
                seen.setdefault(id(value), len(seen)),
                storages.setdefault(value.untyped_storage().data_ptr(),
                                    len(storages)) if value.numel() else 0)

    found = []
    for name, one in module.named_modules():
        found.append((name, type(one), one.training, list(vars(one)),
                      sorted(one._non_persistent_buffers_set),
                      list(one._forward_hooks.values()),
                      list(one._forward_pre_hooks.values()),
                      dict(one._forward_hooks_with_kwargs),
                      dict(one._forward_hooks_always_called),
                      dict(one._forward_pre_hooks_with_kwargs),
                      list(one._modules)))
        for holder in (one._parameters, one._buffers):
            found += [(name, key, None if value is None else of(value))
                      for key, value in holder.items()]
    return found


def bytes_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in
            [*module.named_parameters(remove_duplicate=False),
             *module.named_buffers(remove_duplicate=False)]}


def assert_same_module(module, before, values, forward=None) -> None:
    assert facts(module) == before
    now = bytes_of(module)
    assert list(now) == list(values)
    assert all(same_bytes(now[name], values[name]) for name in now)
    assert "forward" not in vars(module)


def x_for(device: torch.device) -> torch.Tensor:
    return torch.randn(2, WIDTH, device=device,
                       generator=torch.Generator(device).manual_seed(1))


@pytest.mark.parametrize("idle", ["cpu", "slot", "meta"])
@pytest.mark.parametrize("groups", ["block", ("block", 2), "leaf"], ids=str)
def test_detach_gives_all_back(device, groups, idle):
    """Item 8: types, strides, ties, views, gradients' flags, hooks, names."""
    model = Odd()
    before, values = facts(model), bytes_of(model)
    with attached(model, 1 << 20, groups=groups, idle=idle), torch.no_grad():
        for _ in range(2):
            model(x_for(device))
    assert_same_module(model, before, values)
    assert model.tied is model.layers[0].up.weight
    assert model.row.data_ptr() == model.frozen[1].data_ptr()
    with attached(model, 1 << 20, groups=groups, idle=idle):
        pass
    assert_same_module(model, before, values)
    model(torch.randn(2, WIDTH)).sum().backward()  # It may be trained again.
    assert model.layers[1].up.weight.grad is not None


@pytest.mark.parametrize("name", CASES)
def test_every_module_comes_back(device, name):
    """Item 8."""
    case, model = make(name)
    expected = references(case, model, device)
    before, values = facts(model), bytes_of(model)
    with attached(model, 0.99):
        assert_passes(case, model, device, expected)
    assert_same_module(model, before, values)
    with torch.no_grad():
        assert_equal_outputs(case.run(model.to(device), device, 0),
                             expected[0])


def test_detached_memory_is_the_workers_own(hoistd, device):
    """Item 8: it outlives the model in hoistd, and may be written."""
    case, model = make("stack")
    values = bytes_of(model)
    expected = references(case, model, device)
    with attached(model, 0.5):
        assert_passes(case, model, device, expected)
    hoistd.forget_models()
    assert all(same_bytes(value, values[name])
               for name, value in bytes_of(model).items())
    with torch.no_grad():
        for value in model.parameters():
            value.add_(1)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_a_detached_module_holds_nothing_of_hoist(hoistd, device):
    """Item 8: nor do hooks of torch's keep the module."""
    case, model = make("stack")
    with attached(model, 0.5):
        pass
    gone = weakref.ref(model)
    del model, case
    gc.collect()
    assert gone() is None
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


def test_an_attached_module_that_is_let_go_gives_everything_back(hoistd,
                                                                 device):
    """Item 8: without detach."""
    case, model = make("image")
    expected = references(case, model, device)
    hoist.attach(model, 0.5)
    assert_passes(case, model, device, expected)
    assert hoistd.tier("DEVICE")["leased_bytes"] > 0
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0
    hoistd.forget_models()


def test_a_failed_attach_changes_nothing(hoistd):
    """Items 8 and 21: neither before nor after weights are handed over."""
    model = Odd()
    before, values = facts(model), bytes_of(model)
    own = model.layers[2].up.weight
    for error, options in [
            (hoist.InvalidArgument, {"budget": "much"}),
            (hoist.InvalidArgument, {"groups": "none such"}),
            (hoist.InvalidArgument, {"groups": {"a": ["nowhere"]}}),
            (hoist.InvalidArgument, {"order": ["nowhere"]}),
            (hoist.InvalidArgument, {"order": "fastest"}),
            (hoist.InvalidArgument, {"idle": "disk"}),
            (hoist.InvalidArgument, {"storage_dtype": torch.int8}),
            (hoist.NotFound, {"device": 7})]:
        with pytest.raises(error):
            hoist.attach(model, **options)
        assert model.layers[2].up.weight is own  # Nothing was handed over.
        assert hoistd.tier("HOST")["used_bytes"] == 0
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(model, 1)
    assert_same_module(model, before, values)
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


def test_detach_is_refused_while_the_module_runs(device):
    """Item 8: and of a part, or of what is not attached."""
    model = Transformer().eval()
    seen = []

    def detach(*_):
        with pytest.raises(hoist.FailedPrecondition, match="running"):
            hoist.detach(model)
        seen.append(1)

    handle = model.layers[1].register_forward_hook(detach)
    ids = torch.zeros(1, 2, dtype=torch.long, device=device)
    with torch.no_grad(), attached(model, least_budget(model)):
        model(ids)
        with pytest.raises(hoist.FailedPrecondition, match="Transformer"):
            hoist.detach(model.layers[1])
    assert seen == [1]
    handle.remove()
    with pytest.raises(hoist.NotFound):
        hoist.detach(model)
    with pytest.raises(hoist.NotFound):
        hoist.stats(Stack(2))
