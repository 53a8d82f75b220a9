"""Weights that are stored in a smaller type than they compute in."""

from __future__ import annotations

import copy
import re

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from models import (CASES, WIDTH, Block, Stack, Transformer,  # noqa: E402
                    numbers)
from passes import (assert_passes, attached, least_budget, make,  # noqa: E402
                    references, settled)

pytestmark = pytest.mark.usefixtures("hoistd")
FP8 = torch.float8_e4m3fn
PAIRS = [(torch.float32, FP8), (torch.float32, torch.float8_e5m2),
         (torch.float32, torch.float16), (torch.float32, torch.bfloat16),
         (torch.bfloat16, FP8), (torch.float16, torch.float8_e5m2)]


def cast(model: nn.Module, storage: torch.dtype, kept: str = r"\Z."
         ) -> nn.Module:
    """A copy whose weights are what they are after a stay in `storage`, except
    those whose names match."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, value in made.named_parameters():
            if value.dtype.is_floating_point and not re.search(kept, name):
                value.copy_(value.to(storage).to(value.dtype))
    return made


class Diffuser(nn.Module):
    """Each kind of module that the defaults skip, and some that they do not."""

    KEPT = r"pos_embed|patch_embed|norm|embed|^proj_in|^proj_out|^lm_head|steps"

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.pos_embed = nn.Parameter(torch.randn(1, 16, WIDTH))
        self.time_embedding = nn.Linear(1, WIDTH)
        self.proj_in = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm_out = nn.GroupNorm(4, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.proj_out = nn.Linear(WIDTH, WIDTH)
        self.lm_head = nn.Linear(WIDTH, WIDTH)
        self.steps = nn.Parameter(torch.arange(16), requires_grad=False)
        self.register_buffer("sigmas", torch.randn(16))
        self.register_buffer("mask", torch.rand(16) > 0.5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = x + self.pos_embed + self.time_embedding(
            self.steps.to(x.dtype)[:, None])
        x = self.proj_in(x) * (self.sigmas * self.mask)[:, None]
        for block in self.blocks:
            x = block(x)
        x = self.norm_out(self.inner(x).transpose(1, 2)).transpose(1, 2)
        x = x.contiguous()
        return self.lm_head(self.proj_out(x))


def image_for(device: torch.device, turn: int = 0) -> torch.Tensor:
    return numbers(2, 3, 16, 16, seed=turn).to(device)


@pytest.mark.parametrize("compute,storage", PAIRS, ids=str)
def test_the_compute_tensor_is_the_stored_one_cast_back(device, compute,
                                                        storage):
    """Item 16: W.to(storage).to(compute), in every forward; NaN and what
    overflows included."""
    model = Stack(3).to(compute).eval()
    with torch.no_grad():
        model.layers[1].up.weight[0, :4] = torch.tensor(
            [1e-9, -70000.0, 480.0, float("inf")])
    expected = cast(model, storage)
    seen = []

    def look(module, *_):
        seen.append([value.detach().cpu().clone()
                     for value in module.parameters()])

    for layer in model.layers:
        layer.register_forward_pre_hook(look)
    with attached(model, least_budget(model, storage_dtype=storage, skip=()),
                  storage_dtype=storage, skip=()), torch.no_grad():
        for _ in range(2):
            model(numbers(2, WIDTH).to(device, compute))
    assert len(seen) == 6
    for at, values in enumerate(seen):
        wanted = list(expected.layers[at % 3].parameters())
        for value, other in zip(values, wanted, strict=True):
            assert value.dtype == compute
            # Which NaN it is, is the device's business.
            assert torch.equal(value.isnan(), other.isnan())
            assert same_bytes(value.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("name", CASES)
def test_every_module_computes_with_cast_weights(device, name, groups):
    """Item 16: also where groups are pinned, tied, or called twice."""
    case, model = make(name)
    expected = references(case, cast(model, FP8), device)
    options = {"groups": groups, "storage_dtype": FP8, "skip": ()}
    least = least_budget(model, **options)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    for idle in ("cpu", "slot"):
        with attached(model, least, idle=idle, **options):
            for budget in (least, 1 << 22, least):
                hoist.set_budget(model, budget)
                assert_passes(case, model, device, expected,
                              f"{idle}, {budget}")
            for key, value in model.state_dict().items():
                assert same_bytes(value, own[key]), key  # What it was.
    for key, value in model.state_dict().items():
        assert same_bytes(value, own[key]), key


def test_defaults_skip_norms_embeddings_and_projections(device):
    """Item 16: and what is no floating type; buffers stay, too."""
    model = Diffuser().eval()
    expected = cast(model, FP8, Diffuser.KEPT).to(device)
    everything = cast(model, FP8, "steps").to(device)
    with torch.no_grad():
        wanted = expected(image_for(device))
        assert not torch.equal(wanted, everything(image_for(device)))
        with attached(model, 0.9, storage_dtype=FP8):
            for _ in range(2):
                assert_equal_outputs(model(image_for(device)), wanted)
        with attached(model, 0.9, storage_dtype=FP8, skip=()):
            assert_equal_outputs(model(image_for(device)),
                                 everything(image_for(device)))


@pytest.mark.parametrize("skip,kept", [
    ((r"blocks\.1",), r"^blocks\.1\."),
    ((nn.Linear,), r"up|down|proj|inner|time|lm_head"),
    (("inner", nn.LayerNorm), r"inner|blocks\.\d\.norm"),
    ((*hoist.nn.DEFAULT_SKIP, r"blocks\.0\.up"),
     Diffuser.KEPT + r"|^blocks\.0\.up"),
    ((r".",), r"."),
], ids=["pattern", "class", "both", "more", "all"])
def test_skip_takes_patterns_and_classes(device, skip, kept):
    """Item 16."""
    model = Diffuser().eval()
    expected = cast(model, FP8, kept).to(device)
    with torch.no_grad(), attached(model, 0.9, storage_dtype=FP8, skip=skip):
        assert_equal_outputs(model(image_for(device)),
                             expected(image_for(device)))


def test_a_tied_weight_is_kept_where_one_of_its_places_is(device):
    """Item 16: a head that is tied to a skipped embedding."""
    case, model = make("transformer")
    expected = references(case, cast(model, FP8, "embed|norm"), device)
    with attached(model, 0.9, storage_dtype=FP8):
        assert_passes(case, model, device, expected)
        assert model.head.weight is model.embed.weight


@pytest.mark.parametrize("compute,storage,ratio", [
    (torch.bfloat16, FP8, 2), (torch.float32, torch.float16, 2),
    (torch.float32, FP8, 4)], ids=str)
def test_the_link_carries_the_stored_bytes(hoistd, device, compute, storage,
                                           ratio):
    """Item 16: counted by hoistd over 4 passes; nothing comes back."""
    model = Stack(4, 128).to(compute).eval()
    x = numbers(2, 128).to(device, compute)
    moved = {}
    with torch.no_grad():
        for dtype in (None, storage):
            with attached(model, least_budget(model, storage_dtype=dtype),
                          storage_dtype=dtype):
                model(x)
                before = settled(hoistd)
                for _ in range(4):
                    model(x)
                after = settled(hoistd)
                moved[dtype] = (after["host_to_device_bytes"] -
                                before["host_to_device_bytes"])
                assert moved[dtype] == 4 * hoist.stats(model).streamed_bytes
                assert after["device_to_host_bytes"] == 0
    # Norms are not cast, and images are padded to pages.
    linears = 4 * sum(value.nbytes for name, value in
                          model.named_parameters() if "norm" not in name)
    assert moved[None] >= linears
    assert linears / ratio <= moved[storage] <= linears / ratio + 16 * 8192


def test_detach_and_attach_again_give_the_same(hoistd, device):
    """Item 16: reversible; what is published stays, and is found again."""
    case, model = make("stack")
    own = {name: value.clone() for name, value in model.state_dict().items()}
    expected = references(case, cast(model, FP8, "norm"), device)
    plain = references(case, model, device)
    with attached(model, 0.6, storage_dtype=FP8):
        assert_passes(case, model, device, expected)
        staged, held = hoist.stats(model).model, hoistd.tier("HOST")
    for key, value in model.state_dict().items():
        assert same_bytes(value, own[key])
    with attached(model, 0.6):
        assert_passes(case, model, device, plain)
    with attached(model, 0.6, storage_dtype=FP8):
        assert hoist.stats(model).model == staged
        assert hoistd.tier("HOST")["used_bytes"] == held["used_bytes"]
        assert_passes(case, model, device, expected)


def test_either_order_of_casting_and_staging_is_the_same(hoistd, device):
    """Item 16: the same bytes and the same memory, whichever came first."""
    case, model = make("stack")
    expected = references(case, cast(model, FP8, "norm"), device)
    held, names = [], []
    for order in ([None, FP8], [FP8, None], [FP8]):
        for dtype in order:
            with attached(model, 0.6, storage_dtype=dtype):
                if dtype is not None:
                    names.append(hoist.stats(model).model)
                    assert_passes(case, model, device, expected)
        held.append(hoistd.tier("HOST")["used_bytes"])
        hoistd.forget_models()
    assert len(set(held)) == 1 and held[0] > 0
    assert len(set(names)) == 1


def test_other_rules_for_casting_are_other_models(device):
    """Item 16: never one's bytes for the other's."""
    model = Transformer().eval()
    found = set()
    for skip in (hoist.nn.DEFAULT_SKIP, (), (r"layers\.2",)):
        for dtype in (FP8, torch.float8_e5m2):
            with attached(model, 0.9, storage_dtype=dtype, skip=skip):
                found.add(hoist.stats(model).model)
    assert len(found) == 6


def test_storage_that_is_not_smaller_changes_nothing(device):
    """Item 16: bf16 weights stored as bf16 or fp16."""
    model = Stack(3).to(torch.bfloat16).eval()
    x = numbers(2, WIDTH).to(device, torch.bfloat16)
    with torch.no_grad():
        wanted = copy.deepcopy(model).to(device)(x)
        for dtype in (torch.bfloat16, torch.float16):
            with attached(model, 0.9, storage_dtype=dtype):
                assert_equal_outputs(model(x), wanted)
                assert hoist.stats(model).scratch_bytes == 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.float64,
                                   "fp8"], ids=str)
def test_what_is_no_storage_type_is_refused(dtype):
    """Items 16 and 21."""
    with pytest.raises(hoist.InvalidArgument, match="float8_e4m3fn"):
        hoist.attach(Stack(2), storage_dtype=dtype)


def test_a_model_weighs_what_is_stored(device):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    model = transformers.BertModel(transformers.BertConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
        num_attention_heads=4, vocab_size=100)).to(device).eval()
    plain = model.get_memory_footprint()
    layer = model.encoder.layer[0].attention.self.query.weight
    cast_bytes = sum(
        module.weight.nbytes + module.bias.nbytes
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear))
    assert layer.dtype == torch.float32
    with attached(model, 1.0, storage_dtype=torch.bfloat16):
        assert model.get_memory_footprint() == plain - cast_bytes // 2
        linear = model.encoder.layer[0].attention.self.query
        assert linear.weight.nbytes == layer.nbytes
    assert model.get_memory_footprint() == plain
    with attached(model, 1.0):
        assert model.get_memory_footprint() == plain
