"""Errors are typed, say what would be enough, and leave things as they were."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, Block, Stack, numbers  # noqa: E402
from passes import (assert_passes, attached, least_budget, make,  # noqa: E402
                    references)


def within(seconds: float, work) -> BaseException | None:
    """What the work raised; fails if it is not done by then."""
    raised: list[BaseException | None] = []

    def guarded() -> None:
        try:
            with torch.no_grad():
                work()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    assert raised, f"still running after {seconds} s"
    return raised[0]


def assert_untouched(model: nn.Module, kept: list[nn.Parameter]) -> None:
    assert all(one is two for one, two in
               zip(model.parameters(), kept, strict=True))
    assert not any("_hoist" in vars(one) or one._forward_hooks or
                   one._forward_pre_hooks for one in model.modules())


def test_without_a_hoistd_it_is_unavailable():
    """Item 21: the error names the socket, and nothing has changed."""
    model = Stack(2)
    kept = list(model.parameters())
    with pytest.raises(hoist.Unavailable, match="no-hoistd.sock"):
        hoist.attach(model)
    assert_untouched(model, kept)


@pytest.mark.parametrize("part", ["whole", "child", "parent", "sibling"])
def test_what_is_attached_is_not_attached_again(hoistd, device, part):
    """Item 21: nor a part of it, nor what it is a part of."""
    case, model = make("stack")
    expected = references(case, model, device)
    other = {"whole": model, "child": model.layers[1].up,
             "parent": nn.Sequential(model, nn.Linear(WIDTH, WIDTH)),
             "sibling": nn.Sequential(Block(), model.layers[1])}[part]
    with attached(model, 0.5):
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            hoist.attach(other)
        assert_passes(case, model, device, expected)


def test_what_is_no_module_is_refused(hoistd):
    """Item 21."""
    with pytest.raises(hoist.InvalidArgument, match="dict"):
        hoist.attach({"unet": Stack(2)})
    with pytest.raises(hoist.InvalidArgument, match="no weights"):
        hoist.attach(nn.Sequential(nn.ReLU()))
    with pytest.raises(hoist.InvalidArgument, match="no weights"):
        hoist.attach(Stack(2), exclude=[nn.Linear, nn.LayerNorm])


def test_modules_that_accelerate_moves_are_refused(hoistd, device):
    """Item 21: and are taken once its hooks are gone."""
    accelerate = pytest.importorskip("accelerate")
    model = Stack(2).eval()
    x = numbers(2, WIDTH).to(device)
    accelerate.cpu_offload(model, execution_device=device)
    with pytest.raises(hoist.FailedPrecondition,
                       match="remove_hook_from_submodules"):
        hoist.attach(model)
    with torch.no_grad():
        expected = model(x)
        accelerate.hooks.remove_hook_from_submodules(model)
        with attached(model, 0.9):
            assert_equal_outputs(model(x), expected)


@pytest.mark.parametrize("which", ["casting", "offloading"])
def test_modules_that_diffusers_moves_are_refused(hoistd, device, which):
    """Item 21."""
    hooks = pytest.importorskip("diffusers.hooks")
    model = Stack(2).eval()
    if which == "casting":
        hooks.apply_layerwise_casting(
            model, storage_dtype=torch.float8_e4m3fn,
            compute_dtype=torch.float32)
    else:
        hooks.apply_group_offloading(
            model, onload_device=device, offload_type="leaf_level")
    with pytest.raises(hoist.FailedPrecondition, match="hoist.compat"):
        hoist.attach(model)


def test_weights_on_meta_need_a_model_that_hoistd_has(hoistd, device):
    """Item 21: by name; another process's weights, which this one never
    had."""
    model = Stack(3).eval()
    expected = references(make("stack")[0], model, device)
    with torch.device("meta"):
        empty = Stack(3).eval()
    with pytest.raises(hoist.FailedPrecondition, match="hoist.load"):
        hoist.attach(empty)
    with pytest.raises(hoist.NotFound, match="stack-of-three"):
        hoist.attach(empty, name="stack-of-three")
    with attached(model, name="stack-of-three"):
        pass
    hoist.attach(empty, 0.9, name="stack-of-three")
    assert_passes(make("stack")[0], empty, device, expected)


def test_a_name_never_gives_other_weights(hoistd, device):
    """Items 17 and 21: neither values nor shapes."""
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model, 0.9, name="taken"):
        pass
    torch.manual_seed(1)
    other = Stack().eval()
    theirs = references(case, other, device)
    assert not torch.equal(theirs[0], expected[0])
    for one in (other, Stack(width=32)):
        with pytest.raises((hoist.AlreadyExists, hoist.FailedPrecondition),
                           match="name="):
            hoist.attach(one, 0.9, name="taken")
    with attached(other, 0.9):  # By its content it is another model.
        assert_passes(case, other, device, theirs)
    with attached(model, 0.9, name="taken"):
        assert_passes(case, model, device, expected)


@pytest.mark.hoistd(pool=64 << 20, host=2 << 20)
def test_too_little_host_memory_gives_all_back(hoistd):
    """Item 21: ResourceExhausted in the midst of the hand-over: the third
    group can never fit."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64),
                          nn.Linear(64, 16384))
    own = [value.detach().clone() for value in model.parameters()]
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach(model)
    for value, other in zip(model.parameters(), own, strict=True):
        assert same_bytes(value, other) and type(value) is nn.Parameter
        assert value.requires_grad
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0
    with torch.no_grad():
        model[0].weight.zero_()  # It is its own again.


@pytest.mark.hoistd(pool=2 << 20, host=64 << 20)
def test_a_device_that_others_fill_says_so(hoistd, device):
    """Item 21: and what is given back can be had."""
    first, second = Stack(6, 128).eval(), Stack(3, 128).eval()
    with attached(first, 1_900_000):
        with pytest.raises(hoist.ResourceExhausted,
                           match="needs .* more on device 0"):
            hoist.attach(second, 1_000_000, deadline=0)
    with attached(second, 1_000_000, deadline=0):
        pass


def test_gradients_are_refused(hoistd, device):
    """Item 21: of weights that are not frozen."""
    model = Stack(3).eval()
    x = numbers(2, WIDTH).to(device).requires_grad_()
    with attached(model, least_budget(model)):
        with pytest.raises(hoist.FailedPrecondition, match="no_grad"):
            model(x)
        assert not any(value.requires_grad for value in model.parameters())
        y = model(x.detach())  # As resident weights do; its backward raises.
        with torch.inference_mode():
            assert_equal_outputs(model(x), y.detach())


class _Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH).to_sparse(),
                                   requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.weight, x[0])


class _Ids(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WIDTH, WIDTH, max_norm=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x[0].argmax(-1))


class _Beside(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in self.layers]


@pytest.mark.parametrize("what, why", [
    (lambda: torch.jit.script(nn.Linear(WIDTH, WIDTH)),
     "layers.1.*TorchScript"),
    (_Sparse, "sparse.*exclude"),
    (_Ids, "layers.1.table.*max_norm"),
], ids=["TorchScript", "sparse", "max_norm"])
def test_what_cannot_be_staged_is_refused_by_name(hoistd, device, what, why):
    """And is its owner's, where it is excluded. (Embeddings of a maximal norm
    are written to by their forward.)"""
    def make_one() -> nn.Module:
        torch.manual_seed(0)
        return _Beside(Block(), what(), Block()).to(device)

    model, plain = make_one(), make_one()
    kept = list(model.parameters())
    x = numbers(2, WIDTH, WIDTH).to(device)
    with pytest.raises(hoist.Unimplemented, match=why):
        hoist.attach(model)
    assert_untouched(model, kept)
    hoist.attach(model, budget="140KiB", exclude=[model.layers[1]])
    with torch.no_grad():
        for _ in range(3):
            assert_equal_outputs(model(x), plain(x))
        hoist.detach(model)
        assert_equal_outputs(model(x), plain(x))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("idle", ["cpu", "slot"])
@pytest.mark.parametrize("name", ["stack", "image", "transformer"])
def test_a_pass_that_is_cut_short_leaves_no_trace(hoistd, device, name, idle,
                                                  error):
    """Item 21: in the midst of a block; passes are right afterwards, by this
    thread and by others, and so are weights and detach."""
    case, model = make(name)
    own = [value.detach().clone() for value in model.parameters()]
    expected = references(case, model, device)
    with attached(model, least_budget(model), idle=idle):
        assert_passes(case, model, device, expected)

        def cut(*_):
            raise error("cut short")

        for at, inner in ((1, "block" if name == "image" else "up"), (0, "")):
            target = model.layers[at].get_submodule(inner)
            with target.register_forward_pre_hook(cut):
                with pytest.raises(error), torch.no_grad():
                    case.run(model, device, 0)
            assert_passes(case, model, device, expected)
        assert within(60, lambda: assert_passes(
            case, model, device, expected)) is None
        hoist.set_budget(model, 0.9)
        assert_passes(case, model, device, expected)
    for value, other in zip(model.parameters(), own, strict=True):
        assert same_bytes(value, other)


def test_an_error_in_a_stage_block_gives_the_groups_back(hoistd, device):
    """Item 21."""
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model, least_budget(model)):
        leased = hoistd.tier("DEVICE")["leased_bytes"]
        with pytest.raises(ZeroDivisionError), hoist.stage(model.layers[2]):
            raise ZeroDivisionError
        assert hoistd.tier("DEVICE")["leased_bytes"] == leased
        assert_passes(case, model, device, expected)


def test_a_killed_hoistd_is_a_typed_error(make_hoistd, device):
    """Item 21: between passes. Nothing hangs, and no output is wrong."""
    daemon = make_hoistd()
    case, model = make("stack")
    expected = references(case, model, device)
    hoist.attach(model, 0.3, stage_deadline=5.0)  # It waits that long.
    assert_passes(case, model, device, expected)
    kept = model.layers[4].up.weight
    daemon.kill()
    for _ in range(2):
        raised = within(60, lambda: assert_passes(case, model, device,
                                                  expected))
        assert isinstance(raised, hoist.Unavailable), repr(raised)
    raised = within(60, lambda: hoist.check(model))
    assert isinstance(raised, hoist.Unavailable)
    for look in (lambda: kept.sum(), lambda: model.layers[0].down.bias.sum(),
                 lambda: hoist.set_budget(model, 0.9),
                 lambda: hoist.detach(model)):
        raised = within(60, look)
        assert isinstance(raised, hoist.HoistError), repr(raised)
    raised = within(60, lambda: hoist.attach(Stack(2)))
    assert isinstance(raised, hoist.Unavailable)
    make_hoistd()  # The process is well: another hoistd, another module.
    _, other = make("stack")
    again = references(case, other, device)
    with attached(other, 0.5):
        assert_passes(case, other, device, again)


def test_a_hoistd_killed_within_a_pass_is_a_typed_error(make_hoistd, device):
    """Item 21: a block runs while it goes; later blocks get no other bytes."""
    daemon = make_hoistd()
    model = Stack(6).eval()
    x = numbers(2, WIDTH).to(device)
    hoist.attach(model, least_budget(model))

    def kill(*_):
        daemon.kill()

    with torch.no_grad():
        expected = model(x)
        model.layers[2].up.register_forward_hook(kill)
        outputs = []
        raised = within(60, lambda: (outputs.append(model(x)),
                                     hoist.check(model)))
    assert isinstance(raised, hoist.Unavailable), (raised, outputs and
                                                   outputs[0] - expected)
