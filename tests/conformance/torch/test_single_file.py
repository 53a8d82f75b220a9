"""hoist.load of one file with the original's names, or several modules': equal
to diffusers' from_single_file."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
import image_models  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from image_models import DTYPE, run  # noqa: E402
from loaded import (assert_same_state, check_equals,  # noqa: E402
                    check_outlives, check_shared)

Path = pathlib.Path
# In one file, as the original's programs write it.
PARTS = {"model.diffusion_model.": image_models.sd3,
         "first_stage_model.": image_models.vae}


@pytest.fixture(params=PARTS)
def model(request, tmp_path) -> tuple[Any, Path, dict[str, Any]]:
    """One of those in the file, whose configuration is beside it."""
    return write(tmp_path, request.param)


def write(folder: Path, wanted: str, dtype: torch.dtype = DTYPE
          ) -> tuple[Any, Path, dict[str, Any]]:
    found, tensors = {}, {}
    for prefix, make in PARTS.items():
        kind, own, inputs = make(folder / prefix)
        found[prefix] = kind, inputs
        tensors |= {prefix + name: value.to(dtype).contiguous()
                    for name, value in own.items()}
    path = folder / wanted / "all.safetensors"
    safetensors.save_file(tensors, path)
    kind, inputs = found[wanted]
    return kind, path, inputs


def load(kind: Any, path: Path, budget: Any = 0.6, **options: Any) -> Any:
    said = kind.load_config(path.parent)
    return hoist.load(lambda: kind.from_config(said), path, budget,
                      **{"dtype": DTYPE, **options}).eval()


def the_librarys(kind: Any, path: Path, device: torch.device) -> Any:
    return kind.from_single_file(str(path), config=str(path.parent),
                                 torch_dtype=DTYPE).to(device)


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, model, groups):
    kind, path, inputs = model
    theirs = the_librarys(kind, path, device)
    check_equals(theirs, load(kind, path, groups=groups),
                 lambda one: run(one, inputs, device))


def test_dtype_converts_it(hoistd, device, tmp_path):
    kind, path, inputs = write(tmp_path, "model.diffusion_model.",
                               torch.float32)
    theirs, loaded = the_librarys(kind, path, device), load(kind, path)
    assert_equal_outputs(run(loaded, inputs, device),
                         run(theirs, inputs, device))
    assert_same_state(loaded, theirs)


@pytest.mark.real_time
def test_it_outlives_hoistd(make_hoistd, device, model):
    kind, path, inputs = model
    theirs = the_librarys(kind, path, device)
    expected = run(theirs, inputs, device)
    daemon = make_hoistd()
    loaded = load(kind, path)
    check_outlives(daemon, loaded, lambda one: run(one, inputs, device),
                   expected)
    assert_same_state(loaded, theirs)


def test_workers_share_it(hoistd, device, model):
    kind, path, inputs = model
    loaded = load(kind, path, 1.0)
    check_shared(hoistd, loaded,
                 lambda **options: load(kind, path, 1.0, **options),
                 lambda one: run(one, inputs, device))


def test_it_saves_as_the_library(hoistd, device, model, tmp_path):
    kind, path, _ = model
    load(kind, path).save_pretrained(tmp_path / "saved")
    saved = kind.from_pretrained(tmp_path / "saved", torch_dtype=DTYPE)
    assert_same_state(saved, the_librarys(kind, path, torch.device("cpu")))


def test_a_file_of_another_kind_is_refused_by_name(hoistd, tmp_path):
    kind, path, _ = write(tmp_path, "first_stage_model.")
    tensors = safetensors.load_file(path)
    lacks = path.with_name("lacks.safetensors")
    safetensors.save_file({name: value for name, value in tensors.items()
                           if "context_embedder" not in name}, lacks)
    said = diffusers.SD3Transformer2DModel.load_config(
        tmp_path / "model.diffusion_model.")
    with pytest.raises(hoist.NotFound, match="does not make a "
                       "SD3Transformer2DModel.*context_embedder.*rename="):
        hoist.load(lambda: diffusers.SD3Transformer2DModel.from_config(said),
                   lacks)
    with pytest.raises(hoist.NotFound, match="in none of the files"):
        hoist.load(lambda: diffusers.UNet1DModel(), path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_rename_takes_the_names_as_they_are(hoistd, device, tmp_path):
    kind, path, _ = write(tmp_path, "first_stage_model.")
    with pytest.raises(hoist.NotFound, match="in none of the files"):
        load(kind, path, rename={})


def test_what_diffusers_computes_is_refused(hoistd, monkeypatch, tmp_path):
    kind, path, _ = write(tmp_path, "model.diffusion_model.")
    entry = importlib.import_module(
        "diffusers.loaders.single_file_model").SINGLE_FILE_LOADABLE_CLASSES[
            "SD3Transformer2DModel"]
    convert = entry["checkpoint_mapping_fn"]
    monkeypatch.setitem(
        entry, "checkpoint_mapping_fn", lambda checkpoint, **rest: {
            name: value + 1 for name, value in
            convert(checkpoint=checkpoint, **rest).items()})
    with pytest.raises(hoist.Unimplemented, match="without computing.*aten.add"
                       ".*from_single_file makes the module.*hoist.attach"):
        load(kind, path)
