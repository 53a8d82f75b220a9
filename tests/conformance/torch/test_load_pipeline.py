"""Pipelines that come from the files that diffusers has saved them in."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
numpy = pytest.importorskip("numpy")

import hoist  # noqa: E402
from hoist.nn import IdleTensor  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from pipelines import KINDS  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
MIB = 1 << 20


@pytest.fixture(name="save", scope="module")
def saver(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder of each kind, saved once."""
    folders: dict[str, pathlib.Path] = {}

    def save(kind: str) -> pathlib.Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(kind)
            KINDS[kind].make().save_pretrained(folders[kind])
        return folders[kind]

    return save


def resident(folder: pathlib.Path, **options: Any) -> Any:
    pipe = diffusers.DiffusionPipeline.from_pretrained(folder, **options)
    pipe.set_progress_bar_config(disable=True)
    for module in modules_of(pipe).values():
        for weight in module.parameters():  # Not at a file's odd addresses,
            weight.data = weight.data.clone()  # which change CPUs' rounding.
    return pipe.to(KIND)


def modules_of(pipe: Any) -> dict[str, nn.Module]:
    return {name: one for name, one in pipe.components.items()
            if isinstance(one, nn.Module)}


# The largest in one type alone: its classes are others', but for the UNet.
@pytest.mark.parametrize("kind, dtype", sampled([
    *((kind, torch.float32) for kind in KINDS),
    *((kind, torch.bfloat16) for kind in KINDS if kind != "sdxl")],
    ("sd3", torch.float32), ("ltx", torch.float32), ("flux", torch.bfloat16)))
def test_it_is_the_pipeline_that_diffusers_makes(hoistd, device, save, kind,
                                                 dtype):
    folder = save(kind)
    theirs = resident(folder, dtype=dtype)
    expected = KINDS[kind].run(theirs).tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        pipe = hoist.load_pipeline(folder, 0.6, dtype=dtype, device=device)
    pipe.set_progress_bar_config(disable=True)
    assert type(pipe) is type(theirs)
    stats = hoist.stats(pipe)
    assert {*stats.components} == {*modules_of(theirs)}
    assert stats.budget_bytes == pytest.approx(0.6 * stats.model_bytes,
                                               rel=0.01)
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0
    for _ in range(2):
        assert KINDS[kind].run(pipe).tobytes() == expected
    for name, one in modules_of(pipe).items():
        other = modules_of(theirs)[name]
        assert one.training is other.training is False
        for key, weight in other.state_dict().items():
            assert one.state_dict()[key].dtype == weight.dtype, key
    hoist.detach(pipe)
    assert KINDS[kind].run(pipe.to(device)).tobytes() == expected


def test_the_weights_do_not_pass_through_the_worker(hoistd, device, save):
    pipe = hoist.load_pipeline(save("flux"), 4 * MIB, device=device)
    for module in modules_of(pipe).values():
        for weight in module.parameters():
            assert isinstance(weight, IdleTensor)
    assert hoist.stats(pipe.vae).idle_reads == 0
    assert hoistd.tier("HOST")["used_bytes"] >= 0


def test_some_are_left_to_diffusers(hoistd, device, save):
    folder = save("flux")
    expected = KINDS["flux"].run(resident(folder)).tobytes()
    pipe = hoist.load_pipeline(
        folder, 4 * MIB, components=["transformer", "text_encoder_2"],
        each={"transformer": {"groups": "leaf"}}, device=device)
    pipe.set_progress_bar_config(disable=True)
    assert attachment_of(pipe.vae) is None
    found = hoist.stats(pipe).components
    assert found["transformer"].groups > 3 * found["text_encoder_2"].groups
    pipe.to(device)
    assert KINDS["flux"].run(pipe).tobytes() == expected


def test_two_share_what_is_on_the_host(hoistd, device, save):
    folder = save("flux")
    first = hoist.load_pipeline(folder, 4 * MIB, device=device)
    read = hoistd.counters()["file_read_bytes"]
    used = hoistd.tier("HOST")["used_bytes"]
    second = hoist.load_pipeline(folder, 4 * MIB, device=device)
    for pipe in (first, second):
        pipe.set_progress_bar_config(disable=True)
    assert KINDS["flux"].run(first).tobytes() == KINDS["flux"].run(
        second).tobytes()
    assert hoistd.tier("HOST")["used_bytes"] <= 1.01 * max(
        used, hoist.stats(first).model_bytes)
    assert hoistd.counters()["file_read_bytes"] <= read + 1.01 * (
        hoist.stats(first).model_bytes)


def test_what_is_no_pipelines_folder_says_what_would_be(hoistd, tmp_path):
    with pytest.raises(hoist.NotFound, match="model_index.json"):
        hoist.load_pipeline(tmp_path)
    (tmp_path / "model_index.json").write_text("{")
    with pytest.raises(hoist.InvalidArgument, match="model_index.json"):
        hoist.load_pipeline(tmp_path)
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(hoist.InvalidArgument, match="no modules"):
        hoist.load_pipeline(tmp_path)


@pytest.mark.parametrize("options, match", [
    ({"components": ["nothing"]}, "those are"),
    ({"each": {"scheduler": {}}}, "the components are"),
    ({"name": "mine"}, "name="), ({"budget": {0: 1}}, "of one device")])
def test_bad_arguments_are_refused_before_anything_is_read(
        hoistd, save, options, match):
    with pytest.raises(hoist.InvalidArgument, match=match):
        hoist.load_pipeline(save("flux"), **options)
    assert hoistd.counters()["file_read_bytes"] == 0


def test_a_quantised_component_is_named_and_nothing_is_left(hoistd, save,
                                                             tmp_path):
    folder = tmp_path / "pipeline"
    shutil.copytree(save("flux"), folder)
    file = folder / "transformer" / "config.json"
    file.write_text(json.dumps({
        **json.loads(file.read_text()),
        "quantization_config": {"quant_method": "torchao"}}))
    with pytest.raises(hoist.Unimplemented,
                       match='component "transformer".*torchao'):
        hoist.load_pipeline(folder, 0.6)


def test_a_component_without_files_is_named_and_nothing_is_left(
        hoistd, device, save, tmp_path):
    folder = tmp_path / "flux"
    shutil.copytree(save("flux"), folder)
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(hoist.HoistError, match='component "vae"'):
        hoist.load_pipeline(folder, 4 * MIB, device=device)
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


def test_a_budget_below_a_component_says_what_would_do(hoistd, device, save):
    with pytest.raises(hoist.ResourceExhausted, match='component "'):
        hoist.load_pipeline(save("flux"), 256 << 10, device=device)
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


def quantised(folder: pathlib.Path, into: pathlib.Path, name: str, cls: Any,
              said: Any) -> None:
    """A copy of a pipeline's folder, with one component's weights quantised by
    its library."""
    shutil.copytree(folder, into, dirs_exist_ok=True)
    shutil.rmtree(into / name)
    cls.from_pretrained(folder / name, dtype=torch.bfloat16,
                        quantization_config=said).save_pretrained(into / name)


@pytest.mark.parametrize("kind", ["bitsandbytes", "torchao"])
def test_a_text_encoder_may_be_quantised(hoistd, device, tmp_path, save, kind):
    quantization = pytest.importorskip("torchao.quantization")
    pytest.importorskip("bitsandbytes")
    said = (transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
        if kind == "bitsandbytes" else transformers.TorchAoConfig(
            quantization.Int8WeightOnlyConfig(version=2)))
    quantised(save("flux"), tmp_path, "text_encoder_2",
              transformers.T5EncoderModel, said)
    theirs = diffusers.DiffusionPipeline.from_pretrained(
        tmp_path, dtype=torch.bfloat16).to(device)
    theirs.set_progress_bar_config(disable=True)
    expected = KINDS["flux"].run(theirs).tobytes()
    pipe = hoist.load_pipeline(tmp_path, 0.6, dtype=torch.bfloat16,
                               device=device)
    pipe.set_progress_bar_config(disable=True)
    own, other = pipe.text_encoder_2, theirs.text_encoder_2
    assert [type(one) for one in own.modules()] == [
        type(one) for one in other.modules()]
    for turn in range(2):
        assert KINDS["flux"].run(pipe).tobytes() == expected, turn
    hoist.check(pipe)


@pytest.mark.parametrize("by", ["load_pipeline", "attach_pipeline"])
def test_a_transformer_may_be_quantised(hoistd, device, tmp_path, save, by):
    quantization = pytest.importorskip("torchao.quantization")
    quantised(save("flux"), tmp_path, "transformer",
              diffusers.FluxTransformer2DModel, diffusers.TorchAoConfig(
                  quantization.Int8WeightOnlyConfig(version=2)))

    def the_librarys() -> Any:
        made = diffusers.DiffusionPipeline.from_pretrained(
            tmp_path, dtype=torch.bfloat16)
        made.set_progress_bar_config(disable=True)
        return made

    theirs = the_librarys().to(device)
    expected = KINDS["flux"].run(theirs).tobytes()
    pipe = (hoist.load_pipeline(tmp_path, 0.6, dtype=torch.bfloat16,
                                device=device) if by == "load_pipeline" else
            hoist.attach_pipeline(the_librarys(), 0.6, device=device))
    pipe.set_progress_bar_config(disable=True)
    for turn in range(2):
        assert KINDS["flux"].run(pipe).tobytes() == expected, turn
    hoist.check(pipe)
