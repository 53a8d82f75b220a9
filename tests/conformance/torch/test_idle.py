"""Weights outside forward: true bytes, or an error that says what to do."""

from __future__ import annotations

import copy
import ctypes
import io
import pathlib
import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Stack, Transformer, numbers  # noqa: E402
from passes import (assert_passes, attached, least_budget, make,  # noqa: E402
                    references)

pytestmark = pytest.mark.usefixtures("hoistd")
DETACH = r"hoist\.detach\(module\)"


@pytest.fixture(params=["cpu", "slot"])
def idle(request):
    return request.param


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_weight_looks_as_it_did(device, idle):
    """Item 15: shape, type, strides, CPU; a parameter, and tied."""
    model = Transformer().eval()
    model.layers[0].up.weight = nn.Parameter(
        torch.randn(WIDTH, 4 * WIDTH).t())
    known = {name: (value.shape, value.dtype, value.stride())
             for name, value in model.named_parameters()}
    with attached(model, least_budget(model), idle=idle):
        for _ in range(2):
            found = dict(model.named_parameters())
            assert list(found) == list(known)
            for name, value in found.items():
                assert (value.shape, value.dtype, value.stride()) == known[name]
                assert value.device == torch.device("cpu")
                assert not value.is_meta
                assert isinstance(value, nn.Parameter)
            assert model.head.weight is model.embed.weight
            with torch.no_grad():
                model(torch.zeros(1, 3, dtype=torch.long, device=device))


def test_reading_gives_the_true_value(device, idle):
    """Item 14: with operators, after passes that put other bytes into the
    slots."""
    case, model = make("stack")
    own = state_of(model)
    expected = references(case, model, device)
    x = numbers(3, WIDTH)
    with attached(model, least_budget(model), idle=idle), torch.no_grad():
        for _ in range(2):
            for at, layer in enumerate(model.layers):
                weight = own[f"layers.{at}.up.weight"]
                bias = own[f"layers.{at}.up.bias"]
                up = layer.up
                assert torch.equal(up.weight.sum(), weight.sum())
                assert torch.equal(nn.functional.linear(x, up.weight, up.bias),
                                   nn.functional.linear(x, weight, bias))
                assert torch.equal(up.weight[3:7, ::2], weight[3:7, ::2])
                assert torch.equal(up.weight.t() @ up.weight,
                                   weight.t() @ weight)
                assert torch.equal(up.weight.half(), weight.half())
                assert up.bias.tolist() == bias.tolist()
                assert up.bias[2].item() == bias[2].item()
                assert (up.weight.numpy() == weight.numpy()).all()
                assert torch.equal(torch.cat([up.bias, bias]),
                                   torch.cat([bias, bias]))
                assert repr(up.bias[0].item()) in repr(up.bias.tolist())
            assert_passes(case, model, device, expected)


def test_views_show_the_true_value_later(device, idle):
    """Item 14: a view, an array and a pointer that were taken before passes
    and after other groups were looked at."""
    case, model = make("stack")
    own = state_of(model)
    expected = references(case, model, device)
    with attached(model, least_budget(model), idle=idle):
        row = model.layers[0].up.weight[5]
        array = model.layers[1].up.weight.numpy()
        shared = memoryview(array)
        for value in model.parameters():
            value.sum()
        assert_passes(case, model, device, expected)
        assert torch.equal(row, own["layers.0.up.weight"][5])
        assert (array == own["layers.1.up.weight"].numpy()).all()
        assert shared.nbytes == array.nbytes
    assert (array == own["layers.1.up.weight"].numpy()).all()
    assert torch.equal(row.clone(), own["layers.0.up.weight"][5])


def test_a_weight_that_was_kept_shows_its_own_bytes_after_a_pass(device, idle):
    """Item 14: never another group's."""
    case, model = make("stack")
    own = state_of(model)
    expected = references(case, model, device)
    with attached(model, least_budget(model), idle=idle):
        kept = [layer.down.weight for layer in model.layers]
        assert_passes(case, model, device, expected)
        for at, weight in enumerate(kept):
            assert torch.equal(weight + 0, own[f"layers.{at}.down.weight"])


@pytest.mark.parametrize("write", [
    lambda w: w.add_(1), lambda w: w.copy_(torch.zeros_like(w)),
    lambda w: w.__setitem__(0, 1.0), lambda w: w[0].zero_(),
    lambda w: nn.init.normal_(w), lambda w: torch.mul(w, 2, out=w),
    lambda w: setattr(w, "data", torch.zeros_like(w)),
    lambda w: w.data.mul_(2), lambda w: w.detach().mul_(2),
    lambda w: w.view(-1)[:3].fill_(0)],
    ids=["add_", "copy_", "item", "row", "init", "out", "data", ".data.mul_",
         "detach.mul_", "view"])
def test_writing_is_refused_and_says_what_to_do(idle, write):
    """Item 14."""
    model = Stack(2)
    own = state_of(model)
    with attached(model, 0.9, idle=idle):
        with pytest.raises(hoist.FailedPrecondition, match=DETACH), (
                torch.no_grad()):
            write(model.layers[0].up.weight)
        for name, value in model.state_dict().items():
            assert same_bytes(value, own[name]), name


def rss() -> int:
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.hoistd(host=256 << 20, pool=64 << 20)
def test_looking_at_all_weights_keeps_few_of_them(idle):
    """Item 15: host images are dropped again. 64 MiB are looked at, twice; each
    group is 4 MiB, and so is what abs() makes of it."""
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)])
    with attached(model, 0.2, idle=idle):
        model[0].weight.sum()
        before = rss()
        for _ in range(2):
            for value in model.parameters():
                assert value.abs().sum() > 0
        assert rss() - before < 32 << 20
        assert hoist.stats(model).idle_reads >= 64


def test_what_is_always_on_the_device_is_there_outside_forward_too(device,
                                                                   idle):
    """Items 14 and 15: the model's own parameters, which are pinned."""
    case, model = make("image")
    own = state_of(model)
    expected = references(case, model, device)
    with attached(model, least_budget(model), idle=idle):
        assert hoist.stats(model).pinned_bytes > 0
        for _ in range(2):
            assert model.cls.device.type == device.type
            assert same_bytes(model.cls.cpu(), own["cls"])
            with pytest.raises(hoist.FailedPrecondition, match=DETACH), (
                    torch.no_grad()):
                model.positions.zero_()
            assert_passes(case, model, device, expected)
        with hoist.stage(model):
            assert model.cls.device.type == device.type
            assert same_bytes(model.cls.cpu(), own["cls"])
        assert type(model.cls) is not nn.Parameter


class TwoTowers(nn.Module):
    """Methods beside forward read root parameters, as CLIP's do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack(4)
        self.projection = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.table = nn.Parameter(torch.randn(7, WIDTH))
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encode(x, torch.zeros(2, dtype=torch.long,
                                          device=x.device))

    def encode(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = nn.functional.normalize(self.body(x) @ self.projection)
        x = nn.functional.linear(x, self.projection.t(), self.bias)
        x = x + self.table[at] + nn.functional.embedding(at, self.table)
        x.add_(self.bias).clamp_(min=self.bias[0])
        x = torch.where(x > self.table[:2], x, self.bias) * self.scale.exp()
        return torch.cat([x, torch.lerp(x, self.bias, self.scale),
                          torch.stack([self.bias, x[0]])])


@pytest.mark.parametrize("grad", [False, True])
def test_methods_compute_with_root_parameters_where_their_inputs_are(
        device, idle, grad):
    model = TwoTowers().eval().requires_grad_(False)
    x, at = numbers(2, WIDTH).to(device), torch.tensor([3, 6], device=device)
    with torch.set_grad_enabled(grad):
        plain = copy.deepcopy(model).to(device)
        expected = plain(x), plain.encode(x, at)
        with attached(model, least_budget(model), idle=idle):
            for _ in range(2):
                assert same_bytes(model(x), expected[0])
                assert same_bytes(model.encode(x, at), expected[1])


def test_a_meta_weight_is_on_meta_and_staged_all_the_same(device):
    """Item 14: idle="meta" is what it says, of what comes and goes."""
    case, model = make("transformer")
    expected = references(case, model, device)
    with attached(model, least_budget(model), idle="meta"):
        assert all(value.is_meta for value in model.parameters())
        assert model.head.weight is model.embed.weight
        assert_passes(case, model, device, expected)
        assert all(value.is_meta for value in model.parameters())
        with pytest.raises(hoist.FailedPrecondition, match=DETACH):
            model.load_state_dict(Transformer().state_dict())


def test_groups_are_staged_by_hoistds_names(device):
    """Item 14: hoist.stage("model/group"), and of a whole model."""
    model = Stack(3).to(device)
    own = [value.detach().clone() for value in model.parameters()]
    with attached(model, 0.9):
        name = hoist.stats(model).model
        idle = type(model.layers[1].up.weight)
        with hoist.stage(f"{name}/layers.1") as found:
            assert found is model
            assert type(model.layers[1].up.weight) is not idle
            assert model.layers[1].up.weight.device.type == device.type
            assert type(model.layers[0].up.weight) is idle
        with hoist.stage(name):
            for value, wanted in zip(model.parameters(), own):
                assert type(value) is not idle and torch.equal(value, wanted)
        assert type(model.layers[1].up.weight) is idle
        for wrong in ("nobody", "nobody/layers.1", f"{name}/layers.9"):
            with pytest.raises(hoist.NotFound), hoist.stage(wrong):
                pass


# What a forward leaves behind.


@pytest.mark.parametrize("how", ["hook", "attribute"])
def test_a_weight_that_is_kept_of_a_forward_stays_what_it_was(device, idle,
                                                              how):
    case, model = make("stack")
    own = {key: value.to(device) for key, value in state_of(model).items()}
    expected = references(case, model, device)
    kept: list[torch.Tensor] = []

    def keep(module: nn.Module, *_: object) -> None:
        if how == "attribute":
            vars(module)["last"] = module.weight
        kept.append(module.weight)

    with attached(model, least_budget(model), idle=idle):
        assert_passes(case, model, device, expected)
        handles = [layer.up.register_forward_hook(keep)
                   for layer in model.layers]
        assert_passes(case, model, device, expected)
        for handle in handles:
            handle.remove()
        assert len(kept) == 3 * 6
        for _ in range(2):
            for at, value in enumerate(kept):
                assert same_bytes(value, own[f"layers.{at % 6}.up.weight"]), at
            assert_passes(case, model, device, expected)


def test_a_view_that_is_kept_of_a_forward_is_an_error(device, idle):
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model, least_budget(model), idle=idle):
        assert_passes(case, model, device, expected)
        kept: list[torch.Tensor] = []
        handle = model.layers[2].up.register_forward_hook(
            lambda module, *_: kept.append(module.weight.t()))
        with pytest.raises(hoist.FailedPrecondition,
                           match='view of "layers.2.up.weight"'):
            assert_passes(case, model, device, expected)
        handle.remove()
        kept.clear()
        assert_passes(case, model, device, expected)


@torch.no_grad()
def test_an_output_that_shows_a_weight_stays_true(device, idle):
    """Positions that their module hands out as they are."""
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, rows: int) -> dict[str, object]:
            return {"rows": (self.weight[:rows],)}

    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Gives() for _ in range(5))

        def forward(self, rows: int) -> list[torch.Tensor]:
            return [layer(rows)["rows"][0] for layer in self.layers]

    model = Takes()
    own = [layer.weight[:3].clone().to(device) for layer in model.layers]
    with attached(model, least_budget(model), idle=idle):
        for _ in range(3):
            for found, wanted in zip(model(3), own):
                assert torch.equal(found, wanted)


# Reads while another thread is in the middle of a pass.


@pytest.mark.parametrize("keep_vars", [False, True])
def test_a_state_dict_is_true_while_another_thread_runs(device, idle,
                                                        keep_vars):
    case, model = make("stack")
    own = state_of(model)
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert go_on.wait(60)

    with attached(model, least_budget(model), idle=idle):
        handle = model.layers[3].up.register_forward_hook(wait)
        thread = threading.Thread(
            target=lambda: torch.no_grad()(model)(numbers(2, 64).to(device)))
        thread.start()
        assert inside.wait(60)
        try:
            state = model.state_dict(keep_vars=keep_vars)
            saved = io.BytesIO()
            if idle == "cpu":
                torch.save(state, saved)
        finally:
            go_on.set()
            thread.join()
        handle.remove()
        if idle == "cpu":
            saved.seek(0)
            for key, value in torch.load(saved).items():
                assert same_bytes(value, own[key]), key
        for key, value in state.items():
            assert same_bytes(value, own[key]), key


def test_a_state_dict_in_the_making_does_not_fail_another_threads_pass(
        device, idle):
    """torch puts views of the weights in it, which hoist replaces after."""
    case, model = make("stack")
    expected = references(case, model, device)
    part = model.layers[3].up
    inside, viewed, ended = (threading.Event() for _ in range(3))

    def look(*_: object) -> None:
        viewed.set()
        ended.wait(0.2)

    def wait(*_: object) -> None:
        inside.set()
        assert viewed.wait(60)

    part._register_state_dict_hook(look)
    with attached(model, least_budget(model), idle=idle):
        reader = threading.Thread(
            target=lambda: inside.wait(60) and part.state_dict())
        reader.start()
        handle = part.register_forward_hook(wait)
        with torch.no_grad():
            found = case.run(model, device, 0)
        ended.set()
        reader.join()
        handle.remove()
        assert_equal_outputs(found, expected[0])


def test_an_attribute_read_while_another_thread_runs_stays_true(device, idle):
    """Of the group that is there in this moment, too."""
    case, model = make("stack")
    own = state_of(model)
    expected = references(case, model, device)
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert go_on.wait(60)

    with attached(model, least_budget(model), idle=idle):
        handle = model.layers[3].up.register_forward_hook(wait)
        thread = threading.Thread(
            target=lambda: torch.no_grad()(model)(numbers(2, 64).to(device)))
        thread.start()
        assert inside.wait(60)
        try:
            held = {f"layers.{at}.up.weight": model.layers[at].up.weight
                    for at in range(len(model.layers))}
            shown = {key: value.clone() for key, value in held.items()
                     if value.device.type != "meta"}
        finally:
            go_on.set()
            thread.join()
        handle.remove()
        assert "layers.3.up.weight" in shown
        for key, value in shown.items():
            assert same_bytes(value, own[key]), key
        for _ in range(2):
            assert_passes(case, model, device, expected)
        for key in shown:
            assert same_bytes(held[key], own[key]), key


def test_addresses_hold_while_another_thread_stages_the_group(device):
    """safetensors reads a state_dict by its tensors' addresses, at its ease."""
    case, model = make("stack")
    own = state_of(model)
    expected = references(case, model, device)
    with attached(model, least_budget(model)):
        for found in (model.state_dict(), dict(model.named_parameters())):
            where = {key: value.data_ptr() for key, value in found.items()}
            thread = threading.Thread(target=lambda: [
                assert_passes(case, model, device, expected)
                for _ in range(2)])
            thread.start()
            thread.join()
            for key, address in where.items():
                nbytes = own[key].numel() * own[key].element_size()
                assert ctypes.string_at(address, nbytes) == (
                    own[key].numpy().tobytes()), key
            del found
