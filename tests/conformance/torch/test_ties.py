"""Ties and views: one object stays one object, and its bytes are kept once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from torch import nn  # noqa: E402

MIB = 1 << 20
WIDTH = 64


class Tied(nn.Module):
    """The head and the embedding are one parameter; two blocks share one."""

    def __init__(self, rows: int = 50, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(5))
        self.layers[3].weight = self.layers[1].weight
        self.head = nn.Linear(width, rows, bias=False)
        self.head.weight = self.embed.weight
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def ids(device: torch.device) -> torch.Tensor:
    return torch.arange(12, device=device).reshape(3, 4)


def bytes_of(module: nn.Module) -> int:
    return sum(one.nbytes for one in module.parameters())


@pytest.mark.parametrize("idle", ["cpu", "slot", "meta"])
@pytest.mark.parametrize("groups", ["block", "leaf", ("block", 2)])
def test_tied_weights_stay_one_object_idle_staged_and_detached(
        hoistd, device, groups, idle):
    module = Tied().to(device)
    expected = module(ids(device))
    hoist.attach(module, 0.8, groups=groups, idle=idle)
    seen = []

    def look(one: nn.Module, args: object) -> None:
        seen.append((one.weight, one.weight.data_ptr()))

    for one in (module.embed, module.head, module.layers[1],
                module.layers[3]):
        one.register_forward_pre_hook(look)
    for _ in range(3):
        seen.clear()
        assert_equal_outputs(module(ids(device)), expected)
        embed, first, second, head = seen
        assert embed[1] == head[1]
        assert second[1] == first[1] or groups == "block"
        assert module.head.weight is module.embed.weight
        assert module.layers[3].weight is module.layers[1].weight
    hoist.detach(module)
    assert module.head.weight is module.embed.weight
    assert module.layers[3].weight is module.layers[1].weight
    assert len({id(one) for one in module.parameters()}) == 10
    assert_equal_outputs(module(ids(device)), expected)


def test_tied_weights_are_one_object_while_they_are_staged(hoistd, device):
    module = Tied().to(device)
    hoist.attach(module, 0.8, groups="leaf")
    staged = {}

    def look(one: nn.Module, args: object) -> None:
        staged[one] = (module.head.weight is module.embed.weight,
                       type(one.weight) is nn.Parameter)

    for one in (module.embed, module.head):
        one.register_forward_pre_hook(look)
    module(ids(device))
    assert list(staged.values()) == [(True, True)] * 2


def test_every_tier_holds_a_tied_weight_once(hoistd, device):
    module = Tied(rows=40000).to(device)  # 10 MB tied, and 64 KiB.
    own = bytes_of(module)
    hoist.attach(module, 1.0)
    module(ids(device))
    stats = hoist.stats(module)
    slack = 2 * MIB + stats.groups * 4096  # hoistd's slab, and pages.
    assert own <= stats.model_bytes <= own + stats.groups * 4096
    assert hoistd.tier("HOST")["used_bytes"] <= own + slack
    assert hoistd.tier("DEVICE")["used_bytes"] <= own + 2 * slack


@pytest.mark.hoistd(pool=150 * 10**6 // (2 * MIB) * 2 * MIB,
                    host=150 * 10**6 // (2 * MIB) * 2 * MIB, slab=2 * MIB)
def test_a_tied_set_of_100_mb_fits_in_tiers_of_150_mb(hoistd, device):
    rows = 100 * 10**6 // (4 * 128)
    module = Tied(rows=rows, width=128).to(device)
    assert bytes_of(module) >= 100 * 10**6 - 512
    assert 2 * module.embed.weight.nbytes > 190 * 10**6
    expected = module(ids(device))
    hoist.attach(module, 1.0)
    assert_equal_outputs(module(ids(device)), expected)
    assert hoistd.tier("HOST")["used_bytes"] < 150 * 10**6
    assert hoistd.tier("DEVICE")["used_bytes"] < 150 * 10**6


class Viewed(nn.Module):
    """Weights that are views of one another: halves of one, its transpose, a
    window of it, and two windows that overlap but have no common owner."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(2 * WIDTH, WIDTH)
        ring = torch.randn(3 * WIDTH)
        self.whole = nn.Parameter(whole, requires_grad=False)
        self.upper = nn.Parameter(whole[:WIDTH], requires_grad=False)
        self.lower = nn.Parameter(whole[WIDTH:], requires_grad=False)
        self.turned = nn.Parameter(whole.t(), requires_grad=False)
        self.every = nn.Parameter(whole[::2, ::4], requires_grad=False)
        self.first = nn.Parameter(ring[:2 * WIDTH], requires_grad=False)
        self.second = nn.Parameter(ring[WIDTH:], requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.turned + (x @ self.upper).repeat(1, 2)
        y = y @ self.whole + x @ self.lower
        return y + self.every.sum() + self.first.sum() * self.second.mean()


@pytest.mark.parametrize("idle", ["cpu", "slot"])
def test_views_of_one_another_share_their_bytes(hoistd, device, idle):
    module = Viewed()
    if device.type != "cpu":
        pytest.skip("moving a module to a device unties views")
    x = torch.randn(3, WIDTH)
    expected = module(x)
    before = {name: (one.shape, one.stride(), one.clone())
              for name, one in module.named_parameters()}
    own = module.whole.nbytes + 3 * WIDTH * 4
    hoist.attach(module, 1.0, idle=idle)
    assert own <= hoist.stats(module).model_bytes <= own + 4096
    for _ in range(3):
        assert_equal_outputs(module(x), expected)
    check_views(module, before)
    hoist.detach(module)
    check_views(module, before)
    assert_equal_outputs(module(x), expected)


def check_views(module: Viewed, before: dict) -> None:
    for name, (shape, stride, value) in before.items():
        one = getattr(module, name)
        assert one.shape == shape and one.stride() == stride, name
        assert same_bytes(one, value), name
    at = module.whole.data_ptr()
    assert module.upper.data_ptr() == at and module.turned.data_ptr() == at
    assert module.lower.data_ptr() == at + WIDTH * WIDTH * 4
    assert module.second.data_ptr() == module.first.data_ptr() + WIDTH * 4


def test_two_names_of_one_buffer_stay_one(hoistd, device):
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)
            self.b = nn.Linear(WIDTH, WIDTH)
            mask = torch.randn(WIDTH)
            self.a.register_buffer("mask", mask)
            self.b.register_buffer("mask", mask, persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x) * self.a.mask) * self.b.mask

    module = Masks().to(device).requires_grad_(False)
    if module.a.mask is not module.b.mask:  # .to() makes two.
        module.b.mask = module.a.mask
    x = torch.randn(2, WIDTH, device=device)
    expected = module(x)
    hoist.attach(module, 1.0, groups="leaf")
    for _ in range(3):
        assert_equal_outputs(module(x), expected)
        assert module.a.mask is module.b.mask
    hoist.detach(module)
    assert module.a.mask is module.b.mask
    assert list(module.state_dict()) == [
        "a.weight", "a.bias", "a.mask", "b.weight", "b.bias"]


def save(module: nn.Module, path: object) -> None:
    from safetensors.torch import save_model
    save_model(module, str(path))  # Each tie once, under one of its names.


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_ties_are_kept_from_disk_too(hoistd, device, tmp_path, groups):
    pytest.importorskip("safetensors")
    module = Tied(rows=40000).to(device)
    own, expected = bytes_of(module), module(ids(device))
    save(module, tmp_path / "model.safetensors")
    del module
    loaded = hoist.load(lambda: Tied(rows=40000), tmp_path, 1.0,
                        groups=groups)
    for _ in range(3):
        assert_equal_outputs(loaded(ids(device)), expected)
        assert loaded.head.weight is loaded.embed.weight
        assert loaded.layers[3].weight is loaded.layers[1].weight
    stats = hoist.stats(loaded)
    slack = 2 * MIB + stats.groups * 4096
    assert own <= stats.model_bytes <= own + stats.groups * 4096
    assert hoistd.tier("HOST")["used_bytes"] <= own + slack
    assert hoistd.tier("DEVICE")["used_bytes"] <= own + 2 * slack
    assert own <= hoistd.counters()["file_read_bytes"] <= own + slack
    hoist.detach(loaded)
    assert loaded.head.weight is loaded.embed.weight
    assert_equal_outputs(loaded.to(device)(ids(device)), expected)
