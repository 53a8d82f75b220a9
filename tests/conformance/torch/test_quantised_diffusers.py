"""hoist.load of diffusers' folders whose weights are quantised: the library's
own layers over the files' bytes, as they lie."""

from __future__ import annotations

import contextlib
import pathlib
import re
from typing import Any, Callable, Iterator
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("accelerate")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from loaded import (check_adapters, check_budgets,  # noqa: E402
                    check_compiled, check_outlives, check_shared)
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from sampled import sampled  # noqa: E402
from subclasses import inner_tensors  # noqa: E402
from torch import nn  # noqa: E402

DTYPE = torch.bfloat16
Folder = pathlib.Path
Kind = diffusers.PriorTransformer


def torchao(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        quantization = pytest.importorskip("torchao.quantization")
        return diffusers.TorchAoConfig(getattr(quantization, name)(**options))
    return make


def bitsandbytes(**options: Any) -> Callable[[], Any]:
    def make() -> Any:
        pytest.importorskip("bitsandbytes")
        return diffusers.BitsAndBytesConfig(**options)
    return make


FORMATS = {
    "torchao int8": torchao("Int8WeightOnlyConfig", version=2),
    "torchao float8": torchao("Float8WeightOnlyConfig"),
    "bitsandbytes nf4": bitsandbytes(
        load_in_4bit=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=DTYPE),
    "bitsandbytes int8": bitsandbytes(load_in_8bit=True)}


@contextlib.contextmanager
def on_any_device() -> Iterator[None]:
    """diffusers asks for a GPU before it uses bitsandbytes, which needs none."""
    with contextlib.ExitStack() as stack:
        bnb: Any = diffusers.quantizers.bitsandbytes.bnb_quantizer
        for one in (bnb.BnB4BitDiffusersQuantizer,
                    bnb.BnB8BitDiffusersQuantizer):
            stack.enter_context(mock.patch.object(one, "validate_environment"))
            stack.enter_context(mock.patch.object(
                one, "update_device_map", lambda self, given: given))
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Folder:
    found: Folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(4)
    Kind(num_attention_heads=2, attention_head_dim=32, num_layers=2,
         embedding_dim=64, num_embeddings=7).to(DTYPE).save_pretrained(found)
    return found


@pytest.fixture(params=sampled(FORMATS, "torchao int8", "bitsandbytes nf4",
                               "bitsandbytes int8"))
def folder(request, tmp_path, base) -> Iterator[Folder]:
    made = tmp_path / request.param.replace(" ", "-")
    with on_any_device():
        Kind.from_pretrained(base, torch_dtype=DTYPE,
                             quantization_config=FORMATS[request.param]()
                             ).save_pretrained(made)
        yield made


def the_librarys(folder: Folder, device: torch.device) -> nn.Module:
    made: nn.Module = Kind.from_pretrained(folder, torch_dtype=DTYPE)
    return moved(made, device).eval()


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """Each layer by itself: diffusers moves no 8 bit weights."""
    for one in model.modules():
        nn.Module.to(one, device)
    return model


def load(folder: Folder, budget: Any = 0.6, **options: Any) -> nn.Module:
    said = Kind.load_config(folder)
    made: nn.Module = hoist.load(lambda: Kind.from_config(said), folder, budget,
                                 dtype=DTYPE, **options)
    return made.eval()


def run(model: nn.Module, device: torch.device) -> torch.Tensor:
    torch.manual_seed(5)
    inputs = (torch.randn(2, 64), torch.randn(2, 64), torch.randn(2, 7, 64))
    hidden, proj, states = (one.to(device, DTYPE) for one in inputs)
    with torch.no_grad():
        found: torch.Tensor = model(hidden, 1, proj,
                                    states).predicted_image_embedding
    return found


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, folder, groups):
    theirs = the_librarys(folder, device)
    kinds = [type(one) for one in theirs.modules()]
    weights = {name: type(one) for name, one in theirs.named_parameters()}
    state = {name: list(inner_tensors(value)) for name, value in
             theirs.state_dict().items()}
    assert any(one is not nn.Parameter for one in weights.values())
    expected = run(theirs, device)
    fresh = load(folder, groups=groups)
    hoist.detach(fresh)
    ours = fresh.state_dict()
    assert ours.keys() == state.keys()
    for name, value in ours.items():
        assert_equal_outputs(list(inner_tensors(value)), state[name], name)
    loaded = load(folder, groups=groups)
    assert [type(one) for one in loaded.modules()] == kinds
    check_budgets(loaded, lambda one: run(one, device), expected)
    hoist.detach(loaded)
    assert {name: type(one) for name, one in
            loaded.named_parameters()} == weights
    assert_equal_outputs(run(moved(loaded, device), device), expected,
                         "detached")


def test_another_worker_reads_nothing(hoistd, device, folder):
    check_shared(hoistd, load(folder, 1.0),
                 lambda **options: load(folder, 1.0, **options),
                 lambda one: run(one, device))


@pytest.mark.real_time
def test_it_outlives_hoistd(make_hoistd, device, folder):
    daemon = make_hoistd()
    loaded = load(folder)
    expected = run(loaded, device)
    check_outlives(daemon, loaded, lambda one: run(one, device), expected)


def test_what_is_saved_is_what_was_loaded(hoistd, tmp_path, folder):
    loaded = load(folder)
    if "torchao" in folder.name:  # It saves no tensors that it does not know.
        hoist.detach(loaded)
    loaded.save_pretrained(tmp_path / "saved")
    (mine,), (expected,) = (map(load_file, one.glob("*.safetensors"))
                            for one in (tmp_path / "saved", folder))
    for name, value in expected.items():
        assert same_bytes(mine[name], value), name
    # 8 bit weights have their format only when the library has saved them.
    assert {*mine} - {*expected} <= {
        name for name in mine if name.endswith("weight_format")}


def test_adapters_go_on_top(hoistd, device, folder):
    check_adapters(the_librarys(folder, device), load(folder),
                   lambda model: run(model, device), ["to_q", "to_v"])


@pytest.mark.nightly
def test_it_is_compiled_as_the_librarys_own(hoistd, device, folder):
    check_compiled(the_librarys(folder, device), load(folder),
                   lambda model: run(model, device))


def test_each_tensor_of_a_weight_is_needed(hoistd, tmp_path, folder):
    saved, = folder.glob("*.safetensors")
    tensors = load_file(saved)
    with safe_open(saved, "pt") as file:
        metadata = file.metadata()
    parts = [name for name in tensors if "0.attn1.to_q." in name
             and not name.endswith(("bias", "weight_format"))]
    assert len(parts) > 1
    for lost in parts:
        save_file({name: value for name, value in tensors.items()
                   if name != lost}, saved, metadata=metadata)
        with pytest.raises(hoist.NotFound, match="none of the files.*"
                           + re.escape(lost)):
            load(folder)
        assert hoistd.tier("HOST")["used_bytes"] == 0, lost


@pytest.mark.parametrize("method", ["quanto", "modelopt"])
def test_another_quantiser_is_refused_by_name(hoistd, base, method):
    said = {**Kind.load_config(base),
            "quantization_config": {"quant_method": method,
                                    "weights_dtype": "int8"}}
    with pytest.raises(hoist.Unimplemented, match=f"{method}.*torchao.*attach"):
        hoist.load(lambda: Kind.from_config(said), base, dtype=DTYPE)
    assert hoistd.tier("HOST")["used_bytes"] == 0
