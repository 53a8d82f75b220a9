"""hoist.load of 8-bit floats with scales beside them, as image models' files
have them: diffusers' own layers, equal to its from_single_file."""

from __future__ import annotations

import importlib
import json
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
safetensors = pytest.importorskip("safetensors.torch")
pytest.importorskip("diffusers.quantizers.bfl")

import hoist  # noqa: E402
import image_models  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from image_models import DTYPE, FP8, run, scaled  # noqa: E402
from loaded import (assert_same_state, check_equals,  # noqa: E402
                    check_outlives, check_shared)
from torch import nn  # noqa: E402

Path = pathlib.Path
Tensors = dict[str, torch.Tensor]
MODELS = {"qwen": image_models.qwen, "sd3": image_models.sd3}


def one_scale(tensors: Tensors) -> Tensors:
    """The same, with equal scales, which other formats write once."""
    found = {}
    for name, value in tensors.items():
        found[name] = value.to(DTYPE)
        if value.ndim == 2:
            scale = value.float().abs().amax() / 448
            found[name] = (value / scale).to(FP8)
            found[f"{name}_scale"] = scale.expand(len(value)).contiguous()
    return found


def _renamed(tensors: Tensors, to: str) -> Tensors:
    """Of one scale a tensor."""
    return {name.replace(".weight_scale", to):
            value[:1] if name.endswith(".weight_scale") else value
            for name, value in tensors.items()}


def with_mark(tensors: Tensors) -> tuple[Tensors, None]:
    made = _renamed(tensors, ".scale_weight")
    inputs = {name.replace("_weight", "_input"): torch.ones(1)
              for name in made if name.endswith(".scale_weight")}
    return {**made, **inputs, "scaled_fp8": torch.zeros(2).to(FP8)}, None


def with_formats(tensors: Tensors) -> tuple[Tensors, None]:
    made = {name: value.reshape(()) if name.endswith("_scale") else value
            for name, value in _renamed(tensors, ".weight_scale").items()}
    said = json.dumps({"format": "float8_e4m3fn"}).encode()
    formats = {name.replace("weight_scale", "comfy_quant"): torch.tensor(
        list(said), dtype=torch.uint8) for name in made
        if name.endswith(".weight_scale")}
    return {**made, **formats}, None


def with_metadata(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    made = _renamed(tensors, ".weight_scale")
    layers = {name.removesuffix(".weight_scale"):
              {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
              for name in made if name.endswith(".weight_scale")}
    return made, {"_quantization_metadata": json.dumps({"layers": layers})}


def by_row(tensors: Tensors) -> tuple[Tensors, None]:
    return tensors, None


# How a file says it, and the scales that it can say.
FORMATS = {"mark": (with_mark, one_scale), "rows": (by_row, scaled),
           "formats": (with_formats, one_scale),
           "metadata": (with_metadata, one_scale)}


def write(folder: Path, model: str, form: str
          ) -> tuple[Any, Path, dict[str, Any]]:
    """Also what diffusers reads, rows.safetensors."""
    kind, tensors, inputs = MODELS[model](folder)
    say, scales = FORMATS[form]
    made = scales(tensors)
    safetensors.save_file(made, folder / "rows.safetensors")
    said, metadata = say(made)
    safetensors.save_file({name: value.contiguous() for name, value in
                           said.items()}, folder / "m.safetensors", metadata)
    return kind, folder / "m.safetensors", inputs


@pytest.fixture(params=MODELS)
def model(request, tmp_path) -> tuple[Any, Path, dict[str, Any]]:
    return write(tmp_path, request.param, "mark")


def the_librarys(kind: Any, path: Path, device: torch.device) -> Any:
    return kind.from_single_file(
        str(path.with_name("rows.safetensors")), config=str(path.parent),
        torch_dtype=DTYPE, quantization_config=diffusers.BFLQuantizationConfig(
            compute_dtype=DTYPE)).to(device)


def load(kind: Any, path: Path, budget: Any = 0.6, **options: Any) -> Any:
    said = kind.load_config(path.parent)
    return hoist.load(lambda: kind.from_config(said), path, budget,
                      **options).eval()


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, model, groups):
    kind, path, inputs = model
    theirs = the_librarys(kind, path, device)
    check_equals(theirs, load(kind, path, groups=groups),
                 lambda one: run(one, inputs, device))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_each_format_is_read(hoistd, device, tmp_path, name, form):
    kind, path, inputs = write(tmp_path, name, form)
    theirs, loaded = the_librarys(kind, path, device), load(kind, path)
    assert_equal_outputs(run(loaded, inputs, device),
                         run(theirs, inputs, device))
    assert_same_state(loaded, theirs)


def test_dtype_is_what_the_layers_compute_in(hoistd, device, tmp_path):
    kind, path, inputs = write(tmp_path, "sd3", "rows")
    theirs = kind.from_single_file(
        str(path), config=str(tmp_path), torch_dtype=torch.float32,
        quantization_config=diffusers.BFLQuantizationConfig(
            compute_dtype=torch.float32)).to(device)
    loaded = load(kind, path, dtype=torch.float32)
    assert_equal_outputs(run(loaded, inputs, device, torch.float32),
                         run(theirs, inputs, device, torch.float32))
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


def test_workers_share_the_weights(hoistd, device, model):
    kind, path, inputs = model
    loaded = load(kind, path, 1.0)
    check_shared(hoistd, loaded,
                 lambda **options: load(kind, path, 1.0, **options),
                 lambda one: run(one, inputs, device))


def test_what_diffusers_does_not_save_is_refused_as_by_it(hoistd, model,
                                                          tmp_path):
    kind, path, _ = model
    theirs = the_librarys(kind, path, torch.device("cpu"))
    for one in (theirs, load(kind, path)):
        with pytest.raises(ValueError, match="not serializable"):
            one.save_pretrained(tmp_path / "saved")


def test_other_scales_are_refused_by_name(hoistd, tmp_path):
    kind, path, _ = write(tmp_path, "qwen", "formats")
    whole = safetensors.load_file(path)
    name = "transformer_blocks.0.attn.to_q"
    weight = whole[f"{name}.weight"]

    def refused(match: str, error: type[Exception] = hoist.Unimplemented,
                leave_out: str = "", metadata: Any = None,
                **changes: torch.Tensor) -> None:
        tensors = {**whole, **{f"{name}.{key}": value
                               for key, value in changes.items()}}
        tensors.pop(f"{name}.{leave_out}", None)
        safetensors.save_file(tensors, path, metadata)
        with pytest.raises(error, match=match):
            load(kind, path)

    def said(**format: Any) -> torch.Tensor:
        return torch.tensor(list(json.dumps(format).encode()),
                            dtype=torch.uint8)

    refused("to_q.weight is int8_tensorwise.*hoist.load knows scales of float8_e4m3fn.*"
            "weights times their scales",
            comfy_quant=said(format="int8_tensorwise"))
    refused("format is.*convrot.*does not know",
            comfy_quant=said(format="float8_e4m3fn", convrot=True))
    refused("format is no JSON", comfy_quant=said()[:1])
    refused("to_q.weight is I8", leave_out="comfy_quant",
            weight=weight.to(torch.int8))
    refused("to_q.weight is U8", leave_out="comfy_quant",  # NVFP4.
            weight=weight.view(torch.uint8), weight_scale_2=torch.ones(1))
    refused("to_q.weight is F8_E5M2", leave_out="comfy_quant",
            weight=weight.to(torch.float8_e5m2))
    refused("weight_scale is F32.*neither one float nor 256, one a row",
            weight_scale=torch.ones(2, 2))
    refused("weight_scale is I32", weight_scale=torch.ones(1).to(torch.int32))
    refused('to_q.weight" is a weight.*weight_scale_2" beside it',
            weight_scale_2=torch.ones(1))
    refused("to_q.weight is .256, 256. here, .255, 256. in the file",
            hoist.InvalidArgument, weight=weight[1:].contiguous())
    safetensors.save_file(whole, path)  # By a library without such layers:
    with pytest.raises(hoist.Unimplemented, match="beside it"):
        hoist.load(lambda: nn.ModuleDict({"to_q": nn.Linear(256, 256)}), path,
                   rename={"to_q": name})
    assert hoistd.tier("HOST")["used_bytes"] == 0


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_a_weight_never_goes_without_its_scale(hoistd, tmp_path, name, form):
    kind, path, _ = write(tmp_path, name, form)
    said = kind.load_config(tmp_path)
    with torch.device("meta"):
        made = kind.from_config(said)
    declared = "|says that the weights are quantised"
    with pytest.raises(hoist.Unimplemented, match="scale.* beside it" + declared):
        hoist.load(made, path)  # No factory, so no other layers.
    with pytest.raises((hoist.Unimplemented, hoist.NotFound),
                       match="scale.* beside it|in none of the" + declared):
        load(kind, path, rename={})
    (tmp_path / "config.json").write_text(json.dumps(
        {**said, "quantization_config": {"quant_method": "some"}}))
    with pytest.raises(hoist.Unimplemented, match="some: .*quantiser.*hoist.attach"):
        load(kind, path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_other_modules_of_the_file_are_as_they_were(hoistd, device, tmp_path):
    kind, path, _ = write(tmp_path, "sd3", "mark")
    vae, others, _ = image_models.vae(tmp_path / "vae")
    tensors = {
        **{f"model.diffusion_model.{name}": value
           for name, value in safetensors.load_file(path).items()},
        **{f"first_stage_model.{name}": value
           for name, value in others.items()}}
    safetensors.save_file(tensors, path)
    assert_same_state(load(kind, path), the_librarys(kind, path, device))

    def load_vae() -> Any:
        said = vae.load_config(tmp_path / "vae")
        return hoist.load(lambda: vae.from_config(said), path)

    assert_same_state(load_vae(), vae.from_single_file(
        str(path), config=str(tmp_path / "vae")))
    safetensors.save_file(tensors, path, {  # It does not say of which.
        "_quantization_metadata": json.dumps({"layers": {"some": {}}})})
    with pytest.raises(hoist.Unimplemented, match="says that the weights are"):
        load_vae()


def test_a_scale_of_no_linear_layer_is_refused(hoistd, tmp_path):
    kind, path, _ = write(tmp_path, "sd3", "mark")
    tensors = safetensors.load_file(path)
    tensors["x_embedder.proj.weight"] = tensors[
        "x_embedder.proj.weight"].to(FP8)
    tensors["x_embedder.proj.scale_weight"] = torch.ones(1)
    safetensors.save_file(tensors, path)
    with pytest.raises(hoist.Unimplemented,
                       match="pos_embed.proj.weight has a scale, and is no"):
        load(kind, path)


def test_rows_of_another_length_are_refused(hoistd, monkeypatch, tmp_path):
    """Two rows of the file, with two scales, are 256 of the module."""
    kind, path, _ = write(tmp_path, "sd3", "rows")
    name = "context_embedder.weight"
    tensors = safetensors.load_file(path)
    tensors[name] = tensors[name].reshape(2, 128, 256)
    tensors[f"{name}_scale"] = torch.ones(2)
    safetensors.save_file(tensors, path)
    entry = importlib.import_module(
        "diffusers.loaders.single_file_model").SINGLE_FILE_LOADABLE_CLASSES[
            "SD3Transformer2DModel"]
    convert = entry["checkpoint_mapping_fn"]
    monkeypatch.setitem(
        entry, "checkpoint_mapping_fn", lambda checkpoint, **rest: convert(
            checkpoint={**checkpoint, name: checkpoint[name].reshape(256, 256)},
            **rest))
    with pytest.raises(hoist.Unimplemented, match="has parts of context_embed"):
        load(kind, path)


def test_what_diffusers_keeps_in_float32_is_refused(hoistd, monkeypatch,
                                                    tmp_path):
    kind, path, _ = write(tmp_path, "qwen", "mark")
    monkeypatch.setattr(kind, "_keep_in_fp32_modules", ["time_text_embed"])
    with pytest.raises(hoist.Unimplemented, match="keeps time_text_embed.*in "
                       "float32, and unpacks it.*weights times their scales"):
        load(kind, path)


def test_a_storage_type_is_refused(hoistd, tmp_path):
    kind, path, _ = write(tmp_path, "qwen", "mark")
    with pytest.raises(hoist.InvalidArgument, match="storage_dtype="):
        load(kind, path, storage_dtype=torch.float8_e5m2)
