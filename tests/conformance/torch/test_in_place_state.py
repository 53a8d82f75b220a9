"""What is read in place is a weight like any other of hoist's: what would
change it is refused, and detach gives back what was there."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from deaths import start_again  # noqa: E402
from equal import same_bytes  # noqa: E402
from models import Words  # noqa: E402
from torch import nn  # noqa: E402


def attached(device: torch.device) -> Words:
    model = Words.on(device)
    hoist.attach(model, budget="4MiB", in_place="embed")
    return model


def assert_as_it_was(model: Words, device: torch.device) -> None:
    """In what it computes and in what it shows, attached and detached."""
    plain = Words.on(device)
    for detached in False, True:
        if detached:
            hoist.detach(model)
        assert same_bytes(model.read(device), plain.read(device))
        found = model.state_dict()
        for name, value in plain.state_dict().items():
            assert same_bytes(found[name], value), name
    copy.deepcopy(model).half()  # As nothing of hoist's is there.


def _set_another(model: Words) -> None:
    model.embed.weight = nn.Parameter(torch.zeros(2048, Words.WIDTH))


def _load(model: Words, **options: Any) -> None:
    model.load_state_dict(
        {"embed.weight": torch.zeros(2048, Words.WIDTH)}, strict=False, **options)


REFUSED = {
    "half of all": lambda model: model.half(),
    "half": lambda model: model.embed.half(),
    "load_state_dict": _load,
    "assigned by load_state_dict": lambda model: _load(model, assign=True),
    "another in its place": _set_another,
    "a copy of its module": lambda model: copy.deepcopy(model.embed),
    "attached by itself": lambda model: hoist.attach(model.embed),
}


@pytest.mark.usefixtures("hoistd")
@pytest.mark.parametrize("change", [*REFUSED])
def test_what_would_change_it_is_refused_and_changes_nothing(device, change):
    model = attached(device)
    with pytest.raises(hoist.FailedPrecondition):
        REFUSED[change](model)
    assert_as_it_was(model, device)


@pytest.mark.usefixtures("hoistd")
def test_conversions_to_what_it_is_are_allowed(device):
    model = attached(device)
    weight = model.embed.weight
    model.to(device).to(torch.float32).float()
    model.embed.to(device)
    assert model.embed.weight is weight
    assert_as_it_was(model, device)


@pytest.mark.usefixtures("hoistd")
def test_what_it_is_told_holds_after_detach(device):
    model = Words.on(device).requires_grad_(True)
    model.embed.weight.of_somebody = 3
    hoist.attach(model, budget="4MiB", in_place="embed")
    assert model.embed.weight.of_somebody == 3
    model.requires_grad_(False)
    hoist.detach(model)
    assert not any(one.requires_grad for one in model.parameters())
    assert vars(model.embed.weight) == {"of_somebody": 3}


@pytest.mark.usefixtures("hoistd")
def test_what_is_taken_out_stays_out(device):
    model = attached(device)
    del model.embed.weight
    hoist.detach(model)
    assert not hasattr(model.embed, "weight")
    _set_another(model)


def test_detach_after_hoistds_end_gives_it_back(device, make_hoistd):
    daemon = make_hoistd()
    model = attached(device)
    daemon.kill()
    start_again(daemon)
    found = Words.on(device)  # So that what was handed over is there again.
    with hoist.connect() as session:
        hoist.attach(found, budget="4MiB", in_place="embed", session=session)
        hoist.detach(model)
        assert same_bytes(model.read(device), Words.on(device).read(device))
        assert type(model.embed.weight) is nn.Parameter
        hoist.detach(found)


@torch.no_grad()
def _exported(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = torch.export.export(model, (ids,)).module()(ids)
    return out


def _jacobian(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    def sums(bias: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(
            model, {"layers.1.bias": bias}, (ids,))
        return out.sum(-1)

    found: torch.Tensor = torch.func.jacrev(sums)(
        torch.ones(Words.WIDTH, device=ids.device))
    return found


@pytest.mark.usefixtures("hoistd")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [_exported, _jacobian])
def test_beside_what_stays_it_can_be_traced_and_transformed(device, way):
    """Touches are not counted then."""
    model, plain = attached(device), Words.on(device)
    hoist.set_budget(model, 1.0)
    assert same_bytes(model.read(device), plain.read(device))
    ids = torch.arange(8, device=device)
    try:
        assert same_bytes(way(model, ids), way(plain, ids))
    except TypeError as error:  # FX may know no subclass of Parameter.
        assert way is _exported and "Multiple dispatch" in str(error)
    assert_as_it_was(model, device)


def test_where_nobody_kept_it_it_stays_right_and_says_that_it_stays(
        make_hoistd, device):
    daemon = make_hoistd()
    model = attached(device)
    expected = model.read(device)
    daemon.kill()
    start_again(daemon)
    other = attached(device)  # Who brings the same bytes again.
    with contextlib.suppress(hoist.Unavailable):  # Of a GPU, once.
        model.read(device)
    assert same_bytes(model.read(device), expected)
    with pytest.raises(hoist.Unavailable, match="stays where it is"):
        hoist.advance(model, wait=True)
    hoist.set_budget(model, "6MiB")
    assert same_bytes(model.read(device), expected)
    hoist.detach(other)
    assert_as_it_was(model, device)
