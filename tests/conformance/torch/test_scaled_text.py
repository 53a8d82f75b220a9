"""hoist.load of 8-bit floats with scales beside them, as image models' text
encoders have them, into transformers' models: plain weights, equal to those of
plain torch."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from failing import LATE, models_in  # noqa: E402
from loaded import (assert_same_state, check_adapters,  # noqa: E402
                    check_compiled, check_equals, check_outlives, check_shared)
from real_daemon import until  # noqa: E402
from torch import nn  # noqa: E402

Path = pathlib.Path
DTYPE = torch.bfloat16
FP8 = torch.float8_e4m3fn
MARK = "scaled_fp8"
_LAYERS = dict(vocab_size=64, hidden_size=64, intermediate_size=128,
               num_hidden_layers=3, num_attention_heads=4)


@dataclasses.dataclass(frozen=True)
class Kind:
    model: str
    config: Callable[[], Any]
    adapted: list[str]


KINDS = {
    "t5": Kind("T5EncoderModel", lambda: transformers.T5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=3,
        num_heads=4, feed_forward_proj="gated-gelu"), ["q", "wo"]),
    "clip": Kind("CLIPTextModel", lambda: transformers.CLIPTextConfig(
        **_LAYERS, bos_token_id=0, eos_token_id=1, pad_token_id=1),
        ["q_proj", "fc1"]),
    "qwen": Kind("Qwen2_5_VLForConditionalGeneration",
                 lambda: transformers.Qwen2_5_VLConfig(
                     text_config=dict(
                         _LAYERS, num_key_value_heads=2, rope_scaling={
                             "type": "mrope", "mrope_section": [2, 3, 3]}),
                     vision_config=dict(
                         depth=2, hidden_size=64, intermediate_size=128,
                         num_heads=4, out_hidden_size=64)),
                 ["q_proj", "down_proj"])}


@pytest.fixture
def folder(request, tmp_path) -> Path:
    return write(tmp_path, getattr(request, "param", "t5"))


all_kinds = pytest.mark.parametrize("folder", KINDS, indirect=True)


def write(folder: Path, name: str, by_row: bool = False) -> Path:
    """m.safetensors, and plain/ with what it says, for the library."""
    torch.manual_seed(5)
    model = getattr(transformers, KINDS[name].model)(KINDS[name].config())
    model.save_pretrained(folder / "plain")
    path = folder / "plain" / "model.safetensors"
    packed, plain = {}, {}
    for key, value in safetensors.load_file(path).items():
        packed[key] = plain[key] = value.to(DTYPE)
        if value.ndim != 2 or any(one in key for one in (
                "shared", "embed", "relative", "lm_head")):
            continue
        high = value.abs().amax(1) if by_row else value.abs().amax()
        scale = (high.clamp(1e-6) / 448).reshape(-1)
        packed[key] = (value / scale[:, None]).to(FP8)
        plain[key] = (packed[key].float() * scale[:, None]).to(DTYPE)
        packed[key.replace("weight", "scale_weight")] = scale
        packed[key.replace("weight", "scale_input")] = torch.ones(1)
    assert len(packed) > len(plain)
    packed[MARK] = torch.zeros(2).to(FP8)
    safetensors.save_file(plain, path, {"format": "pt"})
    safetensors.save_file(packed, folder / "m.safetensors")
    return folder


def kind_of(folder: Path) -> Kind:
    said = json.loads((folder / "plain" / "config.json").read_text())
    return next(one for one in KINDS.values()
                if one.model in said["architectures"])


def the_librarys(folder: Path, device: torch.device,
                 dtype: torch.dtype = DTYPE) -> Any:
    return getattr(transformers, kind_of(folder).model).from_pretrained(
        folder / "plain", dtype=dtype).eval().to(device)


def load(folder: Path, budget: Any = 0.6, **options: Any) -> Any:
    said = transformers.AutoConfig.from_pretrained(folder / "plain")
    kind = getattr(transformers, kind_of(folder).model)
    return hoist.load(lambda: kind(said), folder / "m.safetensors", budget,
                      **options).eval()


def run(model: nn.Module, device: torch.device) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(10, device=device).reshape(2, 5))[0]


@all_kinds
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, folder, groups):
    """Of the weights times their scales."""
    theirs = the_librarys(folder, device)
    check_equals(theirs, load(folder, groups=groups),
                 lambda one: run(one, device))


def test_a_scale_may_be_of_a_row(hoistd, device, tmp_path):
    folder = write(tmp_path, "clip", by_row=True)
    assert_same_state(load(folder), the_librarys(folder, device))


def test_dtype_is_theirs(hoistd, device, folder):
    """The library keeps some weights in float32, which are not rounded."""
    packed = safetensors.load_file(folder / "m.safetensors")
    state = load(folder, dtype=torch.float16).state_dict()
    for key, dtype in (("wi_0", torch.float16), ("wo", torch.float32)):
        name = f"encoder.block.0.layer.1.DenseReluDense.{key}"
        value = packed[f"{name}.weight"].float() * packed[f"{name}.scale_weight"]
        assert same_bytes(state[f"{name}.weight"], value.to(dtype)), key


def test_it_is_cast_as_plain_weights_are(hoistd, device, folder):
    cast = {"storage_dtype": torch.float8_e5m2, "skip": ()}
    theirs = hoist.attach(the_librarys(folder, device), 0.6, **cast)
    assert_equal_outputs(run(load(folder, **cast), device), run(theirs, device))


def test_workers_share_what_the_first_one_computed(hoistd, device, folder):
    check_shared(hoistd, load(folder, 1.0),
                 lambda **options: load(folder, 1.0, **options),
                 lambda one: run(one, device))


@all_kinds
def test_it_is_saved_as_plain_weights(hoistd, device, tmp_path, folder):
    load(folder).save_pretrained(tmp_path / "saved")
    again = type(the_librarys(folder, device)).from_pretrained(
        tmp_path / "saved", dtype=DTYPE)
    assert_same_state(again, the_librarys(folder, device))


@pytest.mark.real_time
def test_it_outlives_hoistd(make_hoistd, device, folder):
    theirs = the_librarys(folder, device)
    expected = run(theirs, device)
    daemon = make_hoistd()
    loaded = load(folder)
    check_outlives(daemon, loaded, lambda one: run(one, device), expected)
    assert_same_state(loaded, theirs)


def test_adapters_go_on_top(hoistd, device, folder):
    check_adapters(the_librarys(folder, device), load(folder),
                   lambda model: run(model, device), kind_of(folder).adapted)


@pytest.mark.nightly
def test_it_is_compiled_as_the_librarys_own(hoistd, device, folder):
    check_compiled(the_librarys(folder, device), load(folder),
                   lambda model: run(model, device))


# --- One of several modules in a file; what is refused; failures.


def test_one_file_has_an_encoder_a_denoiser_and_a_vae(hoistd, device, folder):
    """diffusers knows the prefixes of its own; rename= names the encoder's."""
    pytest.importorskip("diffusers")
    image_models = pytest.importorskip("image_models")
    prefix = "text_encoders.t5xxl.transformer."
    path = folder / "m.safetensors"
    tensors = {prefix + name: value for name, value in
               safetensors.load_file(path).items()}
    alone = {}
    for begin, make in (("model.diffusion_model.", image_models.sd3),
                        ("vae.", image_models.vae)):
        where = folder / begin
        kind, own, _ = make(where)
        own = {name: value.contiguous() for name, value in (
            image_models.scaled(own) if "model" in begin else own).items()}
        safetensors.save_file(own, where / "own.safetensors")
        tensors |= {begin + name: value for name, value in own.items()}
        alone[where] = kind
    safetensors.save_file(tensors, path)
    with pytest.raises(hoist.NotFound, match="hold.*rename="):
        load(folder)
    loaded = load(folder, rename={"": prefix})
    theirs = the_librarys(folder, device)
    assert_equal_outputs(run(loaded, device), run(theirs, device))
    assert_same_state(loaded, theirs)
    for where, kind in alone.items():
        said = kind.load_config(where)
        assert_same_state(*(hoist.load(lambda: kind.from_config(said), one)
                            for one in (path, where / "own.safetensors")))


def test_other_scales_are_refused_by_name(hoistd, folder):
    path = folder / "m.safetensors"
    whole = safetensors.load_file(path)
    name = "encoder.block.0.layer.0.SelfAttention.q"

    def refused(match: str, **changes: torch.Tensor) -> None:
        safetensors.save_file({**whole, **{
            f"{name}.{key}": value for key, value in changes.items()}}, path)
        with pytest.raises(hoist.Unimplemented, match=match):
            load(folder)

    refused("SelfAttention.q.weight is int8_tensorwise.*hoist.load knows",
            comfy_quant=torch.tensor(list(json.dumps(
                {"format": "int8_tensorwise"}).encode()), dtype=torch.uint8))
    refused("q.weight is I8", weight=torch.zeros(64, 64, dtype=torch.int8))
    refused("scale_weight is F32.*neither one float nor 64, one a row",
            scale_weight=torch.ones(2, 2))
    refused('q.weight" is a weight.*weight_scale_2" beside it',
            weight_scale_2=torch.ones(1))
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_a_weight_never_goes_without_its_scale(hoistd, folder):
    path = folder / "m.safetensors"
    whole = safetensors.load_file(path)
    name = "encoder.block.0.layer.0.SelfAttention.q.scale_weight"
    del whole[name]
    safetensors.save_file(whole, path)
    with pytest.raises(hoist.Unimplemented, match="q.*scale_input.*beside it"):
        load(folder)
    assert hoistd.tier("HOST")["used_bytes"] == 0


@pytest.mark.parametrize("act", LATE)
def test_a_load_that_fails_in_the_middle_leaves_nothing_there(
        make_hoistd, device, monkeypatch, folder, act):
    library = pytest.importorskip("hoist.checkpoint._unscaled")
    value_of, calls = library._Unscales.__call__, 0
    daemon = make_hoistd()
    do, undo = LATE[act]

    def late(self: Any, tensors: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            do(daemon)
        return value_of(self, tensors)

    monkeypatch.setattr(library._Unscales, "__call__", late)
    with pytest.raises((hoist.HoistError, ValueError, KeyboardInterrupt)):
        load(folder, deadline=1)
    assert calls >= 12
    undo(daemon)
    until(lambda: not models_in(daemon))
    assert_equal_outputs(run(load(folder), device),
                         run(the_librarys(folder, device), device))
