"""Modules over several devices; the meta device stands for a second one."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist.nn._run import hooks  # noqa: E402
from hoist.nn._api.assemble import _needed_at_once  # noqa: E402
from hoist.nn._run.hooks import Begin, End  # noqa: E402
from hoist.nn._tree.layout import GroupSpec  # noqa: E402
from hoist.nn._tree.others import Modules  # noqa: E402

CPU, META = torch.device("cpu"), torch.device("meta")


class FakeAttachment:
    """Notes what is entered and left, and moves inputs as Attachment does."""

    moves_inputs = True  # As there are several devices.
    gates = None  # The same.
    graph = types.SimpleNamespace(active=False)  # Nothing is compiled.

    def __init__(self) -> None:
        self.parts = [types.SimpleNamespace(torch_device=CPU),
                      types.SimpleNamespace(torch_device=META)]
        self.entered: list[object] = []
        self.fails: object = None

    def enter(self, group, call) -> None:
        self.entered.append(group)

    def leave(self, group, call) -> None:
        self.entered.remove(group)
        if group is self.fails:
            raise RuntimeError("hoistd is gone")

    def move_inputs(self, args, kwargs, device):
        return hooks.to_device((args, kwargs), device)


@pytest.fixture
def moves(monkeypatch):
    """Where things were moved to; back from meta comes a tensor of zeros."""
    found = []
    real = hooks.to_device

    def to_device(value, device):
        if isinstance(value, torch.Tensor) and value.is_meta and (
                device.type == "cpu"):
            found.append(device)
            return torch.zeros(value.shape)
        return real(value, device)

    monkeypatch.setattr(hooks, "to_device", to_device)
    return found


def hooked(module: nn.Module, attachment: FakeAttachment, part: int,
           past_hooks: str | None = None):
    group = types.SimpleNamespace(
        part=attachment.parts[part], is_lent=lambda tensor: False,
        past_hooks=past_hooks)
    begin = Begin(attachment, [group])
    module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)
    module.register_forward_hook(End(attachment, begin), with_kwargs=True,
                                 always_call=True)
    return begin


def test_a_module_elsewhere_gets_its_inputs_there_and_gives_outputs_back(moves):
    attachment = FakeAttachment()
    module = nn.Linear(3, 2, device="meta")
    begin = hooked(module, attachment, 1)
    x = torch.ones(4, 3)
    y = x.sum() + module(x)  # A residual beside it is on the first device.
    assert y.device == CPU and y.shape == (4, 2)
    assert len(moves) == 1 and not begin.came_from
    assert not attachment.entered


def test_a_module_on_the_inputs_device_moves_nothing(moves):
    attachment = FakeAttachment()
    module = nn.Linear(3, 2)
    hooked(module, attachment, 0)
    assert module(torch.ones(4, 3)).device == CPU
    assert not moves


def test_modules_within_one_elsewhere_stay_there(moves):
    attachment = FakeAttachment()
    inner = nn.Linear(3, 3, device="meta")
    outer = nn.Sequential(inner, nn.ReLU())
    hooked(inner, attachment, 1)
    hooked(outer, attachment, 1)
    assert outer(torch.ones(1, 3)).device == CPU
    assert len(moves) == 1  # At the end of the outer one.


def test_a_call_that_fails_leaves_no_place_behind(moves):
    attachment = FakeAttachment()

    class Fails(nn.Module):
        def forward(self, x):
            if x.shape[0] == 1:
                raise ValueError("no")
            return x

    module = Fails()
    begin = hooked(module, attachment, 1)
    with pytest.raises(ValueError):
        module(torch.ones(1, 3))
    assert not begin.came_from and not attachment.entered
    assert module(torch.ones(2, 3)).device == CPU


def test_a_call_that_is_refused_leaves_no_place_behind(moves):
    """Its graph would have a weight past torch's hooks."""
    attachment = FakeAttachment()
    module = nn.Identity()
    begin = hooked(module, attachment, 1, past_hooks="weight")
    with pytest.raises(hoist.FailedPrecondition, match="past"):
        module(torch.ones(1, 3, requires_grad=True))
    assert not begin.came_from and not attachment.entered


def test_all_groups_of_a_module_are_left_whichever_of_them_fails():
    attachment = FakeAttachment()
    groups = [types.SimpleNamespace(part=attachment.parts[0])
              for _ in range(3)]
    begin = Begin(attachment, groups)
    begin(nn.Identity(), (), {})
    attachment.fails = groups[2]
    with pytest.raises(RuntimeError, match="gone"):
        End(attachment, begin)(nn.Identity(), (), {}, torch.ones(1))
    assert not attachment.entered


def spec(*triggers: nn.Module) -> GroupSpec:
    return GroupSpec("g", triggers=Modules(triggers))


def test_groups_with_a_trigger_in_common_belong_together():
    a, b, c, d = (nn.Identity() for _ in range(4))
    assert _needed_at_once([spec(a), spec(b), spec(c)]) == [[0], [1], [2]]
    assert _needed_at_once([spec(a), spec(b), spec(c, a)]) == [[0, 2], [1]]
    assert _needed_at_once([spec(a), spec(b), spec(c), spec(a, c), spec(d),
                            spec(d, b)]) == [[0, 2, 3], [1, 4, 5]]
    assert _needed_at_once([spec(a), spec(b), spec(a, b, c), spec(c)]) == [
        [0, 1, 2, 3]]


def test_belonging_together_is_an_equivalence(chance):
    for _ in range(50):
        modules = [nn.Identity() for _ in range(8)]
        specs = [spec(*chance.sample(modules, chance.randrange(1, 4)))
                 for _ in range(chance.randrange(1, 9))]
        found = _needed_at_once(specs)
        assert sorted(at for one in found for at in one) == list(
            range(len(specs)))
        of = {at: i for i, one in enumerate(found) for at in one}
        for i, one in enumerate(specs):
            for j, other in enumerate(specs):
                if set(one.triggers) & set(other.triggers):
                    assert of[i] == of[j]
        # And no more than that: each set hangs together.
        for together in found:
            reached, grown = {together[0]}, True
            while grown:
                more = {at for at in together if any(
                    set(specs[at].triggers) & set(specs[one].triggers)
                    for one in reached)} - reached
                reached |= more
                grown = bool(more)
            assert reached == set(together)
