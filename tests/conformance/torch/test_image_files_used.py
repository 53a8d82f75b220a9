"""torch.compile, and adapters, over modules that hoist.load made of an image
model's file: equal to the same over diffusers' own."""

from __future__ import annotations

import pathlib
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("gguf")
pytest.importorskip("diffusers.quantizers.bfl")

import gguf_files  # noqa: E402
import hoist  # noqa: E402
import image_models  # noqa: E402
from compiling import (CountingBackend, fresh_compiler,  # noqa: E402
                       plenty_of_code)
from equal import assert_equal_outputs  # noqa: E402
from image_models import DTYPE, run, scaled  # noqa: E402
from torch import nn  # noqa: E402

Tensors = dict[str, torch.Tensor]


def names(path: pathlib.Path, tensors: Tensors) -> None:
    safetensors.save_file({name: value.to(DTYPE)
                           for name, value in tensors.items()}, path)


def fp8(path: pathlib.Path, tensors: Tensors) -> Any:
    safetensors.save_file(scaled(tensors), path)
    return diffusers.BFLQuantizationConfig(compute_dtype=DTYPE)


def gguf(path: pathlib.Path, tensors: Tensors) -> Any:
    kinds = gguf_files.KINDS
    gguf_files.write(path, tensors, lambda _, at: kinds[at // 2 % len(kinds)])
    return diffusers.GGUFQuantizationConfig(compute_dtype=DTYPE)


FILES: dict[str, tuple[str, Callable[[pathlib.Path, Tensors], Any]]] = {
    "names": ("m.safetensors", names), "fp8": ("m.safetensors", fp8),
    "gguf": ("m.gguf", gguf)}


@pytest.fixture(params=FILES)
def modules(request, hoistd, device, tmp_path) -> tuple[Any, Any, Any]:
    """diffusers' own, hoist's, and a call's inputs."""
    kind, tensors, inputs = image_models.sd3(tmp_path)
    name, write = FILES[request.param]
    config = write(tmp_path / name, tensors)
    theirs = kind.from_single_file(
        str(tmp_path / name), config=str(tmp_path), torch_dtype=DTYPE,
        **({} if config is None else {"quantization_config": config}))
    said = kind.load_config(tmp_path)
    ours = hoist.load(lambda: kind.from_config(said), tmp_path / name, 0.6,
                      dtype=DTYPE).eval()
    return theirs.to(device), ours, inputs


def test_adapters_go_on_top(modules, device):
    peft = pytest.importorskip("peft")
    theirs, ours, inputs = modules

    def adapt(model: nn.Module) -> None:
        torch.manual_seed(7)
        model.add_adapter(peft.LoraConfig(
            r=4, target_modules=["to_q", "linear_2"],
            init_lora_weights=False))

    plain = run(ours, inputs, device)
    adapt(theirs)
    expected = run(theirs.to(device), inputs, device)
    with pytest.raises(AssertionError):
        assert_equal_outputs(expected, plain)
    adapt(ours)
    for turn in range(2):
        assert_equal_outputs(run(ours, inputs, device), expected,
                             f"pass {turn}")
    ours.unload_lora()
    assert_equal_outputs(run(ours, inputs, device), plain, "unloaded")
    hoist.check(ours)


@pytest.mark.nightly
def test_it_is_compiled_as_the_librarys_own(modules, device):
    theirs, ours, inputs = modules
    with fresh_compiler(), plenty_of_code():
        expected = run(torch.compile(theirs, backend="aot_eager"), inputs,
                       device)
    with fresh_compiler(), plenty_of_code():
        backend = CountingBackend()
        compiled = torch.compile(ours, backend=backend)
        for turn in range(3):
            assert_equal_outputs(run(compiled, inputs, device), expected,
                                 f"pass {turn}")
        assert backend.compilations
    hoist.check(ours)
