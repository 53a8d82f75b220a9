"""Weights of every type, size and stride compute and come back as they were."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from torch import nn  # noqa: E402

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
          torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex64, torch.complex128,
          torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES = {"matrix": (33, 7), "scalar": (), "one": (1,), "odd": (4099,),
          "empty": (0,), "no rows": (0, 5), "no columns": (5, 0),
          "deep": (2, 1, 3, 1, 5), "a byte": (1, 1)}


def random_bytes_as(dtype: torch.dtype, shape: tuple[int, ...],
                    device: torch.device) -> torch.Tensor:
    """Any bits, NaNs included."""
    count = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool().to(device)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape).to(device)


class Holder(nn.Module):
    """Gives out what it holds: one parameter, one buffer of the same kind."""

    def __init__(self, weight: torch.Tensor, buffer: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("kept", buffer)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.weight.clone(), self.kept.clone()


class Holders(nn.Module):
    def __init__(self, held: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Holder(*one) for one in held)

    def forward(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [layer() for layer in self.layers]


def assert_comes_back(module: nn.Module, groups: object) -> None:
    before = [(name, one.dtype, one.shape, one.stride(), one.clone())
              for name, one in module.state_dict().items()]
    expected = [tuple(one.clone() for one in pair) for pair in module()]
    hoist.attach(module, 1.0, groups=groups)
    for _ in range(3):
        assert_equal_outputs(module(), expected)
    for attached in (True, False):
        found = module.state_dict()
        assert list(found) == [one[0] for one in before]
        for name, dtype, shape, stride, value in before:
            one = found[name]
            assert one.dtype == dtype and one.shape == shape, name
            assert one.stride() == stride, name
            assert same_bytes(one, value), name
        if attached:
            hoist.detach(module)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_type_in_every_shape_comes_back_bit_for_bit(hoistd, device, dtype):
    module = Holders([
        tuple(random_bytes_as(dtype, shape, device) for _ in range(2))
        for shape in SHAPES.values()])
    assert_comes_back(module, "block")


def test_all_types_and_shapes_in_one_group_come_back(hoistd, device):
    module = Holders([
        tuple(random_bytes_as(dtype, shape, device) for _ in range(2))
        for dtype in DTYPES for shape in SHAPES.values()])
    assert_comes_back(module, lambda name, one: "all" if not name else None)


STRIDED = {
    "transposed": lambda x: x.t(),
    "every other row": lambda x: x[::2],
    "every third column": lambda x: x[:, ::3],
    "a window": lambda x: x[3:9, 2:11],
    "channels last": lambda x: x.view(2, 3, 16, 8).contiguous(
        memory_format=torch.channels_last),
    "expanded": lambda x: x[:1].expand(7, -1),
    "expanded scalar": lambda x: x[0, 0].expand(3, 4),
    "not at its storage's begin": lambda x: x.view(-1)[5:],
    "overlapping": lambda x: torch.as_strided(x, (5, 8), (3, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8,
                                   torch.float8_e5m2, torch.complex64],
                         ids=str)
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_strides_come_back(hoistd, device, dtype, groups):
    def one(make) -> torch.Tensor:
        return make(random_bytes_as(dtype, (24, 32), device))

    module = Holders([(one(make), one(make)) for make in STRIDED.values()])
    assert_comes_back(module, groups)


def test_names_that_begin_alike_are_not_mixed_up(hoistd, device):
    """"a.1" is not "a.10", nor is "a.1" in "a.11.x" or "aa.1"."""
    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
            self.aa = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for one, other in zip(self.a, self.aa):
                x = other(one(x))
            return x

    module = Alike().to(device).requires_grad_(False)
    x = torch.randn(2, 8, device=device)
    expected = module(x)
    state = {name: one.clone() for name, one in module.state_dict().items()}
    for groups in ("block", "leaf", {"one": ["a.1"], "ten": ["a.10"]},
                   {"a": ["a"], "aa": ["aa"]}):
        hoist.attach(module, 1.0, groups=groups)
        for _ in range(2):
            assert_equal_outputs(module(x), expected)
        for name, one in module.state_dict().items():
            assert same_bytes(one, state[name]), name
        hoist.detach(module)


def test_a_named_group_holds_that_module_alone(hoistd, device, session):
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    module = module.to(device).requires_grad_(False)
    hoist.attach(module, 1.0, groups={"one": ["1"], "ten": ["10"]})
    model = session.model(hoist.stats(module).model)
    assert {one.name for one in model["one"].tensors} == {
        "1.weight", "1.bias"}
    assert {one.name for one in model["ten"].tensors} == {
        "10.weight", "10.bias"}


def test_a_module_that_shares_nothing_but_emptiness(hoistd, device):
    """Zero-size weights have no address that could tell them apart."""
    empty = torch.empty(0, device=device)
    module = Holders([(empty, empty), (empty, torch.ones(3, device=device))])
    expected = module()
    hoist.attach(module, 1.0, groups="leaf")
    assert_equal_outputs(module(), expected)
    hoist.detach(module)
    assert_equal_outputs(module(), expected)


# What libraries keep in float32.


def a_t5(folder) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=2,
        feed_forward_proj="gated-gelu")
    kind = transformers.T5EncoderModel
    kind(config).eval().save_pretrained(folder)
    return kind, lambda: kind(config)


def a_wan(folder) -> tuple[Any, Any]:
    diffusers = pytest.importorskip("diffusers")
    kind = diffusers.WanTransformer3DModel
    options = dict(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12,
        in_channels=4, out_channels=4, text_dim=16, freq_dim=16, ffn_dim=32,
        num_layers=2, rope_max_seq_len=32)
    kind(**options).eval().save_pretrained(folder)
    return kind, lambda: kind(**options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make_one", [a_t5, a_wan])
def test_load_casts_as_from_pretrained_does(hoistd, device, tmp_path, make_one,
                                            dtype):
    """T5's `wo` in float16, and Wan's norms, are float32."""
    kind, factory = make_one(tmp_path)
    name = "torch_dtype" if make_one is a_wan else "dtype"
    wanted = kind.from_pretrained(tmp_path, **{name: dtype})
    model = hoist.load(factory, tmp_path, dtype=dtype)
    own = dict(wanted.named_parameters())
    types = {value.dtype for value in own.values()}
    assert len(types) == 2 or (make_one is a_t5 and dtype != torch.float16)
    for key, value in model.named_parameters():
        assert value.dtype == own[key].dtype, key
        assert same_bytes(value.cpu(), own[key]), key
    hoist.detach(model)


class Filters(nn.Module):
    """What torch conjugates or negates as it is read, or has so in memory."""

    def __init__(self, lazy: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = torch.randn(2, 64, 64, dtype=torch.complex64)
        self.weight = nn.Parameter(made[0].conj() if lazy else made[0].clone(),
                                   requires_grad=False)
        self.register_buffer("imaginary", made[1].conj().imag if lazy else
                             made[1].imag.clone())
        assert self.weight.is_conj() == self.imaginary.is_neg() == lazy

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.weight @ self.weight, self.imaginary + 1


@pytest.mark.usefixtures("hoistd")
def test_what_is_conjugated_when_it_is_read_is_no_other_weight(device):
    """One has the bytes of the other, and another value."""
    models = [Filters(lazy).to(device) for lazy in (False, True)]
    expected = [[one.clone() for one in model()] for model in models]
    with hoist.connect() as session:
        for model in models:
            hoist.attach(model, 1.0, session=session)
        for _ in range(2):
            for model, want in zip(models, expected):
                assert_equal_outputs(list(model()), want)
        for model, want in zip(models, expected):
            hoist.detach(model)
            assert_equal_outputs(list(model()), want)
