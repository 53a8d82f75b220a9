"""No copy of a streamed weight outlives its group: whatever mode a pass runs in,
and whoever keeps what it gave, it allocates what the resident module does."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from allocated import allocated  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from families import FAMILIES  # noqa: E402
from models import WIDTH, numbers  # noqa: E402
from passes import attached, least_budget  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.filterwarnings("ignore::FutureWarning")]
LAYERS = 12


@dataclasses.dataclass(frozen=True)
class Kind:
    """A module of many layers, and a call of it."""

    make: Callable[[], nn.Module]
    call: Callable[[nn.Module, torch.device], Any]
    groups: str = "leaf"


class Layers(nn.Module):
    """One after another."""

    def __init__(self, make: Callable[[], nn.Module],
                 call: Any = lambda layer, x: layer(x)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(LAYERS))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.call(layer, x)
        return x


def layers(make: Callable[[], nn.Module], *shape: int,
           call: Any = lambda layer, x: layer(x), groups: str = "leaf") -> Kind:
    return Kind(functools.partial(Layers, make, call),
                lambda model, device: model(numbers(*shape).to(device)), groups)


def family(name: str) -> Kind:
    return Kind(FAMILIES[name].make, FAMILIES[name].ways["forward"])


LINEAR = functools.partial(nn.Linear, 256, 256)
KINDS = {
    "linear": layers(LINEAR, 2, 256),
    "matmul": layers(LINEAR, 2, 256,
                     call=lambda layer, x: x @ layer.weight.t()),
    "bilinear": layers(lambda: nn.Bilinear(32, 32, 32), 2, 32,
                       call=lambda layer, x: layer(x, x)),
    "convolution": layers(lambda: nn.Conv2d(64, 64, 3, padding=1), 1, 64, 4, 4),
    "transposed": layers(lambda: nn.ConvTranspose1d(64, 64, 3, padding=1),
                         1, 64, 4),
    "embedding": layers(
        lambda: nn.Embedding(4096, 16), 2, 16, call=lambda layer, x: x + layer(
            torch.arange(2, device=x.device))),
    "bag": layers(
        lambda: nn.EmbeddingBag(4096, 16), 2, 16, call=lambda layer, x: x +
        layer(torch.arange(8, device=x.device).reshape(2, 4))),
    "layer norm": layers(lambda: nn.LayerNorm(16384), 1, 16384),
    "rms norm": layers(lambda: nn.RMSNorm(16384), 1, 16384),
    "group norm": layers(lambda: nn.GroupNorm(8, 4096), 1, 4096, 2),
    "batch norm": layers(lambda: nn.BatchNorm1d(4096), 2, 4096),
    "prelu": layers(lambda: nn.PReLU(4096), 1, 4096),
    "attention": layers(
        lambda: nn.MultiheadAttention(WIDTH, 4, batch_first=True), 1, 2, WIDTH,
        call=lambda layer, x: layer(x, x, x)[0]),
    # It reads its children's weights, past their calls.
    "encoder": layers(lambda: nn.TransformerEncoderLayer(
        WIDTH, 4, 2 * WIDTH, batch_first=True), 1, 2, WIDTH, groups="block"),
    "lstm": layers(lambda: nn.LSTM(WIDTH, WIDTH), 2, 1, WIDTH,
                   call=lambda layer, x: layer(x)[0]),
    "gru": layers(lambda: nn.GRU(WIDTH, WIDTH), 2, 1, WIDTH,
                  call=lambda layer, x: layer(x)[0]),
    **{name: family(name) for name in FAMILIES},
}


MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad, "no_grad": torch.no_grad,
    "inference": torch.inference_mode}


def made(kind: Kind) -> nn.Module:
    """With the same weights each time."""
    torch.manual_seed(0)
    return kind.make().eval()


def group_bytes(model: nn.Module) -> int:
    return max(group.spec.nbytes for group in vars(model)["_hoist"].groups)


def assert_no_more(model: nn.Module, plain: nn.Module, device: torch.device,
                   run: Callable[[nn.Module], Any],
                   reference: Callable[[nn.Module], Any] | None = None) -> None:
    """Than the resident module: at most, and after three passes, whose outputs
    are kept. One group's bytes are for what differs on the way."""
    reference = reference or run
    for _ in range(3):  # An order is learned, and what is large adopted.
        run(model), reference(plain)
    expected, theirs = allocated(
        device, lambda: [reference(plain) for _ in range(3)])
    found, ours = allocated(device, lambda: [run(model) for _ in range(3)])
    assert_equal_outputs(found, expected)
    spare = group_bytes(model)
    assert spare < hoist.stats(model).streamed_bytes / 2
    assert ours.left <= theirs.left + spare, (ours, theirs)
    assert ours.most <= theirs.most + spare, (ours, theirs)
    hoist.check(model)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sampled(
    KINDS, "llama", *(name for name in KINDS if name not in FAMILIES)))
def test_a_pass_allocates_what_the_resident_module_does(device, name, mode):
    if name in FAMILIES:
        pytest.importorskip("transformers")
        pytest.importorskip("diffusers")
    if name in ("lstm", "gru") and device.type == "cuda" and mode == "grad":
        pytest.skip("cuDNN saves a flat copy of a layer's weights for backward")
    kind = KINDS[name]
    model, plain = made(kind), made(kind).to(device)
    assert any(one.requires_grad for one in model.parameters())

    def run(model: nn.Module) -> Any:
        with MODES[mode]():
            return kind.call(model, device)

    with attached(model, least_budget(model, groups=kind.groups),
                  groups=kind.groups):
        assert_no_more(model, plain, device, run)


# What autocast casts.


@pytest.fixture
def half(device: torch.device) -> Callable[..., Any]:
    return functools.partial(torch.autocast, device.type, torch.bfloat16)


def without_casts(model: nn.Module, run: Callable[[nn.Module], Any]
                  ) -> Callable[[nn.Module], Any]:
    """The same, of a graph that has no casts of the model's weights, each of
    which has a storage of its own."""
    casts = [one.detach().to(torch.bfloat16).flatten()
             for one in model.parameters()]

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        whole = torch.empty(0, dtype=tensor.dtype,
                            device=tensor.device).set_(storage)
        return None if any(one.dtype == whole.dtype and torch.equal(one, whole)
                           for one in casts) else tensor

    def run_without(model: nn.Module) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
            return run(model)

    return run_without


def nudge(model: nn.Module, device: torch.device) -> None:
    """What the first layer gives needs gradients."""
    first = next(one for one in model.modules() if not [*one.children()])
    value = torch.full((), 0.001, device=device, requires_grad=True)
    first.register_forward_hook(lambda module, args, output: (
        (output[0] + value, *output[1:]) if isinstance(output, tuple) else
        output + value))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["linear", "convolution", "attention", "lstm",
                                  "llama", "clip"])
def test_autocast_keeps_no_cast(device, half, name, mode, frozen):
    """Neither in its cache nor in a graph."""
    pytest.importorskip("transformers")
    kind = KINDS[name]
    model = made(kind).requires_grad_(not frozen)
    plain = made(kind).to(device).requires_grad_(not frozen)
    if name == "lstm":
        try:
            with half():
                kind.call(plain, device)
        except RuntimeError as error:  # oneDNN's, on a CPU without AVX-512.
            pytest.skip(f"torch has no such LSTM here: {error}")
    if frozen:
        nudge(model, device), nudge(plain, device)

    def run(model: nn.Module, cache: bool = True) -> Any:
        with MODES[mode](), half(cache_enabled=cache):
            return kind.call(model, device)

    with attached(model, least_budget(model, groups=kind.groups),
                  groups=kind.groups):
        with half():  # Its cache lives for as long as this does.
            assert_no_more(model, plain, device, run, without_casts(
                plain, lambda plain: run(plain, cache=False)))
