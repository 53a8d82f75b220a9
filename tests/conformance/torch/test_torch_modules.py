"""torch's own modules that do more with their weights than use them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import WIDTH, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.filterwarnings("ignore::FutureWarning")]


class Recurrent(nn.Module):
    """Keep lists of their weights beside their parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            kind(WIDTH, WIDTH, batch_first=True)
            for kind in (nn.LSTM, nn.GRU, nn.RNN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        return x


def encoder() -> nn.Module:
    """Uses its children's weights without calling them, if it may."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(
        WIDTH, 4, 128, batch_first=True), 3)


def normed() -> nn.Module:
    """Weights that are computed from others, at each call."""
    return nn.Sequential(
        nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)))


def bags() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(50, WIDTH), nn.Linear(WIDTH, WIDTH),
                         nn.PReLU(WIDTH), nn.LayerNorm(WIDTH))


def folded() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 4, 3), nn.InstanceNorm2d(4, affine=True),
        nn.Flatten(), nn.LazyLinear(16))


KINDS = {"recurrent": (Recurrent, (2, 5, WIDTH)), "encoder": (encoder,
                                                             (2, 5, WIDTH)),
         "normed": (normed, (2, WIDTH)), "bags": (bags, None),
         "folded": (folded, (2, 3, 8, 8))}


def input_for(name: str, device: torch.device, turn: int) -> torch.Tensor:
    shape = KINDS[name][1]
    if shape is None:
        return (torch.arange(12).reshape(3, 4) * (turn + 1) % 50).to(device)
    return numbers(*shape, seed=turn).to(device)


def build(name: str) -> nn.Module:
    model = KINDS[name][0]().eval()
    with torch.no_grad():
        model(input_for(name, torch.device("cpu"), 0))  # Lazy ones are made.
    return model


@pytest.mark.parametrize("idle", ["cpu", "slot"])
@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("name", KINDS)
def test_it_computes_what_it_does_on_the_device(device, name, groups, idle):
    """Items 1, 2 and 8: streamed; and copied after detach, at once."""
    model = build(name)
    whole = copy.deepcopy(model).to(device)
    own = {key: value.clone() for key, value in model.state_dict().items()}
    least = least_budget(model, groups=groups)
    # Where groups part a fused layer, torch computes in another order.
    exact = not (name == "encoder" and groups == "leaf")
    with attached(model, least, groups=groups, idle=idle), torch.no_grad():
        for turn in range(3):
            x = input_for(name, device, turn)
            ours, theirs = model(x), whole(x)
            if exact:
                assert_equal_outputs(ours, theirs, f"turn {turn}")
            else:
                torch.testing.assert_close(ours, theirs)
        hoist.check(model)
        for key, value in model.state_dict().items():
            assert same_bytes(value, own[key]), key
    copied = copy.deepcopy(model).to(device)
    with torch.no_grad():
        assert_equal_outputs(copied(x), theirs)


def test_a_recurrent_module_lets_go_of_its_weights(hoistd, device):
    """Item 8: neither keeps the ones it had, nor hoist's after detach."""
    model = build("recurrent")
    kept = model.layers[0]._flat_weights[0].data_ptr()
    with attached(model, 0.9), torch.no_grad():
        lstm = model.layers[0]
        assert [one.data_ptr() for one in lstm._flat_weights][0] != kept
        model(input_for("recurrent", device, 0))
    for layer in model.layers:
        assert len(layer._flat_weights) == 4
        for one, name in zip(layer._flat_weights, layer._flat_weights_names):
            assert one is getattr(layer, name)


def test_conversions_leave_an_attached_recurrent_module_whole(device):
    """Item 15: .to() rebuilds its list."""
    model = build("recurrent")
    whole = copy.deepcopy(model).to(device)
    x = input_for("recurrent", device, 0)
    with attached(model, 0.9), torch.no_grad():
        for _ in range(2):
            model.to(device).float()
            assert_equal_outputs(model(x), whole(x))
