"""hoist.load of a GGUF file: diffusers' own layers over the file's blocks, equal
to its from_single_file."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
gguf = pytest.importorskip("gguf")

import hoist  # noqa: E402
import image_models  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from gguf_files import KINDS, write  # noqa: E402
from image_models import DTYPE, plain, random_state, run  # noqa: E402
from loaded import check_equals, check_outlives, check_shared  # noqa: E402
from torch import nn  # noqa: E402

Path = pathlib.Path
def qwen(folder: Path) -> tuple[Any, Path, dict[str, Any]]:
    kind, tensors, inputs = image_models.qwen(folder)
    write(folder / "m.gguf", tensors, lambda _, at: KINDS[at // 2 % len(KINDS)])
    return kind, folder / "m.gguf", inputs


def sd3(folder: Path) -> tuple[Any, Path, dict[str, Any]]:
    kind, tensors, inputs = image_models.sd3(folder)
    write(folder / "m.gguf", tensors, lambda _, at: KINDS[at // 2 % len(KINDS)])
    return kind, folder / "m.gguf", inputs


MODELS = {"qwen": qwen, "sd3": sd3}


@pytest.fixture(params=MODELS)
def model(request, tmp_path) -> tuple[Any, Path, dict[str, Any]]:
    return MODELS[request.param](tmp_path)


def the_librarys(kind: Any, path: Path, dtype: torch.dtype = DTYPE) -> Any:
    return kind.from_single_file(
        str(path), config=str(path.parent), torch_dtype=dtype,
        quantization_config=diffusers.GGUFQuantizationConfig(
            compute_dtype=dtype))


def load(kind: Any, path: Path, budget: Any = 0.6,
         dtype: torch.dtype | None = DTYPE, **options: Any) -> Any:
    said = kind.load_config(path.parent)
    return hoist.load(lambda: kind.from_config(said), path, budget,
                      dtype=dtype, **options).eval()


def assert_same_state(ours: nn.Module, theirs: nn.Module) -> None:
    mine, expected = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(expected)
    for name, value in expected.items():
        assert isinstance(mine[name], type(value)), name
        assert getattr(mine[name], "quant_type", None) == getattr(
            value, "quant_type", None), name
        assert same_bytes(plain(mine[name]), plain(value)), name


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, model, groups):
    kind, path, inputs = model
    theirs = the_librarys(kind, path).to(device)
    check_equals(theirs, load(kind, path, groups=groups),
                 lambda one: run(one, inputs, device), assert_same_state)


def test_without_a_type_it_computes_in_float32_as_the_library(
        hoistd, device, model):
    kind, path, inputs = model
    theirs = kind.from_single_file(
        str(path), config=str(path.parent),
        quantization_config=diffusers.GGUFQuantizationConfig()).to(device)
    loaded = load(kind, path, dtype=None)
    assert_equal_outputs(run(loaded, inputs, device, torch.float32),
                         run(theirs, inputs, device, torch.float32))
    assert_same_state(loaded, theirs)


@pytest.mark.real_time
def test_it_outlives_hoistd(make_hoistd, device, model):
    kind, path, inputs = model
    theirs = the_librarys(kind, path).to(device)
    expected = run(theirs, inputs, device)
    daemon = make_hoistd()
    loaded = load(kind, path)
    check_outlives(daemon, loaded, lambda one: run(one, inputs, device),
                   expected)
    assert_same_state(loaded, theirs)


def test_workers_share_the_blocks(hoistd, device, tmp_path):
    kind, path, inputs = qwen(tmp_path)
    loaded = load(kind, path, 1.0, dtype=None)
    check_shared(
        hoistd, loaded,
        lambda **options: load(kind, path, 1.0, dtype=None, **options),
        lambda one: run(one, inputs, device, torch.float32))


@pytest.mark.parametrize("wanted", ["model.diffusion_model.", "vae."])
def test_one_module_of_several_is_loaded_as_by_the_library(
        hoistd, device, tmp_path, wanted):
    tensors = {}
    for prefix, make in (("model.diffusion_model.", image_models.sd3),
                         ("vae.", image_models.vae)):
        made = make(tmp_path / prefix)
        tensors |= {prefix + name: value for name, value in made[1].items()}
        if prefix == wanted:
            kind, _, inputs = made
    path = tmp_path / wanted / "m.gguf"
    write(path, tensors, lambda _, at: KINDS[at // 2 % len(KINDS)])
    theirs, loaded = the_librarys(kind, path).to(device), load(kind, path)
    assert_equal_outputs(run(loaded, inputs, device),
                         run(theirs, inputs, device))
    assert_same_state(loaded, theirs)


def test_what_diffusers_does_not_save_is_refused_as_by_it(hoistd, tmp_path):
    kind, path, _ = qwen(tmp_path)
    theirs, loaded = the_librarys(kind, path), load(kind, path)
    for one in (theirs, loaded):
        with pytest.raises(ValueError, match="not serializable"):
            one.save_pretrained(tmp_path / "saved")


def test_what_takes_more_than_diffusers_layers_is_refused(hoistd, tmp_path):
    kind, path, _ = qwen(tmp_path)
    said = kind.load_config(tmp_path)

    def make() -> Any:
        return kind.from_config(said)

    with torch.device("meta"):
        made = make()
    with pytest.raises(hoist.InvalidArgument, match="the function that makes"):
        hoist.load(made, path)
    with pytest.raises(hoist.InvalidArgument, match="rename=.*leave it out"):
        hoist.load(make, path, rename={})
    with pytest.raises(hoist.InvalidArgument, match="storage_dtype="):
        hoist.load(make, path, storage_dtype=torch.float8_e4m3fn)
    with pytest.raises(hoist.Unimplemented, match="diffusers and transformers alone"):
        hoist.load(lambda: nn.Linear(4, 4), path)
    with pytest.raises(hoist.Unimplemented, match="by its name.*gguf-split"):
        hoist.load(make, tmp_path)
    part = tmp_path / "m-00001-of-00002.gguf"
    part.symlink_to(path)
    with pytest.raises(hoist.Unimplemented, match="of a set.*gguf-split"):
        hoist.load(make, part)
    part.unlink()
    with pytest.raises(hoist.Unimplemented, match="no from_single_file"):
        hoist.load(lambda: diffusers.UNet1DModel(), path)
    write(path, random_state(make()), lambda _, at: "TQ1_0")
    with pytest.raises(hoist.Unimplemented,
                       match="TQ1_0, which diffusers does not unpack"):
        hoist.load(make, path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_its_state_is_unpacked_as_the_librarys(hoistd, device, tmp_path):
    unpack = diffusers.quantizers.gguf.utils.dequantize_gguf_tensor
    kind, path, inputs = qwen(tmp_path)
    theirs, loaded = the_librarys(kind, path), load(kind, path)
    run(loaded, inputs, device)
    state = loaded.state_dict()
    for name, value in theirs.state_dict().items():
        assert same_bytes(plain(unpack(state[name])), plain(unpack(value))), name


def test_what_diffusers_keeps_in_float32_is_refused(hoistd, monkeypatch,
                                                    tmp_path):
    kind, path, _ = qwen(tmp_path)
    monkeypatch.setattr(kind, "_keep_in_fp32_modules", ["time_text_embed"])
    with pytest.raises(hoist.Unimplemented, match="keeps time_text_embed.*in "
                       "float32, and unpacks it.*from_single_file.*hoist.attach"):
        load(kind, path)
    assert hoistd.tier("HOST")["used_bytes"] == 0
