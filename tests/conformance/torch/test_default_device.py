"""torch's default device (vLLM sets it, and torch.set_default_device) moves
nothing of hoist's. "meta" has no bytes, so whatever is made there is found."""

from __future__ import annotations

import copy
import pathlib
from typing import Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.serving import _published  # noqa: E402
from torch import nn  # noqa: E402
from equal import same_bytes  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402

KEY = {"files": "none"}
pytestmark = pytest.mark.usefixtures("hoistd")


@pytest.fixture
def elsewhere() -> Iterator[None]:
    with torch.device("meta"):
        yield


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_state(model: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    for name, value in model.state_dict().items():
        assert value.device.type == "cpu"
        assert same_bytes(value, expected[name]), name


@pytest.fixture
def stack(device: torch.device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    model = Stack(6).bfloat16().float().eval()  # Stored in 16 bits, equal.
    x = numbers(2, WIDTH).to(device)
    with torch.no_grad():
        expected = copy.deepcopy(model).to(device)(x)
    return model, x, expected


@pytest.mark.parametrize("options", [
    {}, {"idle": "slot"}, {"storage_dtype": torch.bfloat16},
    {"groups": "leaf"}, {"hand_over": "by_group"}], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_a_module_lives_there_as_it_would(stack, elsewhere, options, grad):
    model, x, expected = stack
    own = state_of(model)
    model.requires_grad_(grad and not options)
    frozen = not any(one.requires_grad for one in model.parameters())
    with torch.set_grad_enabled(grad and frozen):
        hoist.attach(model, 0.5, **options)
        for budget in (None, 0.7, 1.0, 0.4):
            if budget is not None:
                hoist.set_budget(model, budget)
            for _ in range(2):
                assert same_bytes(model(x), expected)
            assert same_bytes(model.layers[3].up.weight.clone().cpu(),
                              own["layers.3.up.weight"])
            if model.layers[2].up.weight.device.type == "cpu":
                assert (model.layers[2].up.weight.detach().numpy() ==
                        own["layers.2.up.weight"].numpy()).all()
            with hoist.stage(model.layers[2]):
                assert model.layers[2].up.weight.device == x.device
        hoist.check(model)
        assert hoist.stats(model).stages > 0
        hoist.detach(model)
        assert_state(model, own)


def test_a_module_is_loaded_there(stack, elsewhere, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    model, x, expected = stack
    own = state_of(model)
    path: pathlib.Path = tmp_path / "model.safetensors"
    save_file(own, path)
    with torch.no_grad():
        loaded = hoist.load(lambda: Stack(6).eval(), path, budget=0.5)
        assert same_bytes(loaded(x), expected)
        hoist.detach(loaded)
        assert_state(loaded, own)


def test_a_module_is_published_there_for_engines(session, elsewhere):
    with torch.device("cpu"):
        module = nn.Linear(4, 4)
    _published.publish(session, "there", KEY, module, 10)
    found = _published.find(session, "there")
    assert found is not None and found[1].key == KEY
