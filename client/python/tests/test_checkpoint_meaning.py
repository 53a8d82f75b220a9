"""What the files say of a module's weights besides their bytes is used or
refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

from hoist import Unimplemented  # noqa: E402
from hoist.checkpoint import (FileTensor, Use,  # noqa: E402
                              refuse_declared, refuse_losses)
from torch import nn  # noqa: E402


class Block(nn.Module):
    """A layer, one that holds a parameter beside another module, experts in
    one parameter, and one that makes a buffer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4, bias=False)
        self.attn = nn.MultiheadAttention(4, 2, bias=False)
        self.experts = nn.Module()
        self.experts.gate_up_proj = nn.Parameter(torch.empty(2, 4, 4))
        self.steps = nn.Linear(4, 4, bias=False)
        self.steps.register_buffer("index", torch.zeros(4), persistent=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.empty(4))
        self.layers = nn.ModuleList(Block() for _ in range(2))


def uses_of(module: nn.Module, prefix: str = "") -> list[Use]:
    return [Use(name, value.dtype, (prefix + name,))
            for name, value in module.named_parameters()]


def headers_of(uses: list[Use], *more: str, dtype: str = "F32",
               **types: str) -> dict[str, FileTensor]:
    names = [tensor for use in uses for tensor in use.tensors]
    return {name: FileTensor(types.get(name, dtype), (4, 4))
            for name in [*names, *more]}


LEAF = "layers.0.proj"


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "BF16", "F32"])
@pytest.mark.parametrize("beside", [
    f"{LEAF}.weight_scale", f"{LEAF}.weight_scale_inv", f"{LEAF}.scale",
    f"{LEAF}.scale_inv", f"{LEAF}.scale_weight", f"{LEAF}.input_scale",
    f"{LEAF}.output_scale", f"{LEAF}.weight_scale_2", f"{LEAF}.scales",
    f"{LEAF}.zero_point", f"{LEAF}.weight_zero_point", f"{LEAF}.qzeros",
    f"{LEAF}.g_idx", f"{LEAF}.SCB", f"{LEAF}.weight.absmax",
    f"{LEAF}.weight.quant_map", f"{LEAF}.weight.nested_absmax",
    f"{LEAF}.weight.quant_state.bitsandbytes__nf4", f"{LEAF}.biases",
    f"{LEAF}.weight_quantizer._amax", f"{LEAF}.a_word_of_tomorrow",
    # What it adds, and nobody adds it.
    f"{LEAF}.bias", f"{LEAF}.lora_A.weight", f"{LEAF}.lora_B.weight",
    # Of a parameter that its module does not name `weight`.
    "layers.1.experts.gate_up_proj_scale",
    "layers.1.experts.gate_up_proj_scales",
    "layers.1.experts.gate_up_proj_bias",
    "layers.1.experts.scales",
    "layers.1.attn.in_proj_weight_scale",
    "layers.1.attn.in_proj_weight.absmax",
    "positions_scale", "positions.scale"])
def test_what_belongs_to_a_weight_and_is_not_used_is_refused(beside, dtype):
    module = Model()
    uses = uses_of(module)
    refuse_losses(module, uses, headers_of(uses, dtype=dtype))
    with pytest.raises(Unimplemented, match="hoist.attach takes it") as raised:
        refuse_losses(module, uses, headers_of(uses, beside, dtype=dtype))
    assert f'"{beside}" beside it' in str(raised.value)


def test_several_are_counted():
    uses = uses_of(Model())
    with pytest.raises(Unimplemented, match=r"\(and 2 more\)"):
        refuse_losses(Model(), uses, headers_of(
            uses, *(f"{LEAF}.{one}" for one in ("scale", "zeros", "g_idx"))))


def test_what_a_converter_has_joined_keeps_what_belongs_to_its_parts():
    module = Model()
    name = "layers.0.experts.gate_up_proj"
    uses = [one for one in uses_of(module) if one.name != name]
    uses.append(Use(name, torch.float32, tuple(
        f"layers.0.experts.{at}.w1.weight" for at in range(3))))
    refuse_losses(module, uses, headers_of(uses))
    for rest in "weight_scale_inv", "scale":
        beside = f"layers.0.experts.1.w1.{rest}"
        with pytest.raises(Unimplemented, match=beside):
            refuse_losses(module, uses, headers_of(uses, beside))


def test_a_module_of_one_layer_has_its_neighbours_too():
    module = nn.Linear(4, 4)
    uses = uses_of(module)
    for beside in "weight_scale", "scale", "SCB":
        with pytest.raises(Unimplemented,
                           match=f'"weight" is.*"{beside}" beside'):
            refuse_losses(module, uses, headers_of(uses, beside))


@pytest.mark.parametrize("other", [
    "lm_head.weight", "lm_head.bias", "layers.2.proj.weight", "logit_scale",
    "cls_token", "layers.0.mask_token", "layers.0.norm.weight",
    "layers.0.attn.k_scale", "layers.0.attn.masked_bias",
    "layers.0.attn.rotary.inv_freq"])
def test_another_modules_tensors_are_left_and_told_of(other):
    uses = uses_of(Model())
    assert refuse_losses(Model(), uses, headers_of(uses, other)) == [other]


def test_what_a_module_makes_itself_is_left():
    uses = uses_of(Model())
    refuse_losses(Model(), uses, headers_of(uses, "layers.0.steps.index"))
    with pytest.raises(Unimplemented, match="layers.0.proj.index"):
        refuse_losses(Model(), uses, headers_of(uses, "layers.0.proj.index"))


def test_what_no_forward_reads_is_left():
    uses = uses_of(Model())
    assert refuse_losses(Model(), uses, headers_of(
        uses, f"{LEAF}.num_batches_tracked")) == []


def test_what_a_library_lets_pass_is_left():
    module: Any = Model()
    uses = uses_of(module)
    headers = headers_of(uses, f"{LEAF}.masked", "layers.0.position_ids",
                         "layers.0.attn.rotary_emb.inv_freq")
    with pytest.raises(Unimplemented, match="masked"):
        refuse_losses(module, uses, headers)
    module._keys_to_ignore_on_load_unexpected = [r"\.masked$"]
    assert refuse_losses(module, uses, headers) == []


def test_a_weight_that_is_left_to_the_caller_is_none_that_nobody_takes():
    module = Model()
    module.tail = nn.Linear(4, 4)
    module.tail.below = nn.Linear(4, 4)
    uses = [one for one in uses_of(module) if ".below." not in one.name]
    assert refuse_losses(module, uses, headers_of(
        uses, "tail.below.weight", "tail.below.bias")) == []


def test_neighbours_of_what_rename_has_chosen_are_anybodys():
    module = nn.Embedding(4, 4)
    uses = [Use("weight", torch.float32, ("tables.first",))]
    headers = headers_of(uses, "tables.second", "tables.third_scale")
    assert refuse_losses(module, uses, headers)
    with pytest.raises(Unimplemented, match="tables.first_scale"):
        refuse_losses(module, uses, headers_of(uses, "tables.first_scale"))


def test_bytes_of_another_type_are_no_values_where_a_scale_is_anywhere():
    """Not beside it: under a name that only its writer knows."""
    uses = uses_of(Model())
    wide = headers_of(uses, "scales.0", "scaled_fp8")
    assert refuse_losses(Model(), uses, wide) == ["scales.0", "scaled_fp8"]
    for sign in "scaled_fp8", "all.scales", "layers.0.attn.q_zero_point":
        with pytest.raises(Unimplemented, match=rf'F8_E4M3.*"{sign}"'):
            refuse_losses(Model(), uses, headers_of(
                uses, sign, **{f"{LEAF}.weight": "F8_E4M3"}))
    # Such a type alone is a cast.
    narrow = headers_of(uses, "lm_head.weight", dtype="F8_E4M3")
    assert refuse_losses(Model(), uses, narrow) == ["lm_head.weight"]
    # And the module's own is none.
    own = [Use(one.name, torch.float8_e4m3fn, one.tensors) for one in uses]
    refuse_losses(Model(), own, headers_of(own, "scales", dtype="F8_E4M3"))


# --- Declarations.

TYPES = [torch.float32, torch.int64, torch.bool]
FP8 = {"quant_method": "fp8"}


def declared(module: nn.Module, path: Any, dtypes: Any = TYPES) -> str | None:
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    try:
        refuse_declared(module, dtypes, files, path)
    except Unimplemented as error:
        assert "hoist.attach takes it" in str(error)
        return str(error)
    return None


@pytest.fixture
def folder(tmp_path):
    save_file({"weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors",
              metadata={"format": "pt"})
    return tmp_path


@pytest.mark.parametrize("config", [
    {"quantization_config": FP8}, {"compression_config": {"format": "dense"}},
    {"text_config": {"quantization_config": FP8}},
    {"quantization": {"group_size": 64, "bits": 4}}])
def test_a_configuration_that_says_so_is_refused_by_name(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps({"hidden_size": 4}))
    assert declared(nn.Linear(4, 4), folder) is None
    path.write_text(json.dumps(config))
    for given in folder, folder / "model.safetensors":
        said = declared(nn.Linear(4, 4), given)
        assert said and str(path) in said
        assert any(word in said for word in ("fp8", "format", "bits"))
    path.unlink()
    module: Any = nn.Linear(4, 4)
    module.config = SimpleNamespace(to_dict=lambda: config)
    said = declared(module, folder)
    assert said and "the module's configuration" in said
    module.config = config
    assert declared(module, folder)


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quant_config.json",
                                  "quantize_config.json", "quanto_qmap.json"])
def test_a_quantisers_own_file_is_refused_by_name(folder, name):
    (folder / name).write_text(json.dumps({"bits": 4}))
    said = declared(nn.Linear(4, 4), folder)
    assert said and name in said


def test_what_says_nothing_of_it_is_none(folder):
    for config in ({"quantization_config": None}, {"quantization_config": {}},
                   {"num_quantizers": 32, "quantizer": {"size": 2}}, [], 3):
        (folder / "config.json").write_text(json.dumps(config))
        assert declared(nn.Linear(4, 4), folder) is None
    (folder / "config.json").write_text("no JSON")
    assert declared(nn.Linear(4, 4), folder) is None


@pytest.mark.parametrize("key, value", [
    ("quantization_config", json.dumps(FP8)), ("quantization", "int8"),
    ("_quantization_metadata", json.dumps({"layers": {"a": {}}})),
    ("compression", "marlin"),
    ("proj.weight", json.dumps({"_type": "Float8Tensor", "_data": {}})),
    ("config", json.dumps({"quantization_config": FP8}))])
def test_metadata_that_say_so_are_refused_by_name(tmp_path, key, value):
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(4, 4)}, path, metadata={key: value})
    said = declared(nn.Linear(4, 4), tmp_path)
    assert said and "model.safetensors" in said and key in said


def test_other_metadata_are_none(tmp_path):
    path = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}, {"quantization": "none"},
                     {"weight": json.dumps({"_type": "Tensor"})},
                     {"tensor_names": json.dumps(["weight"])},
                     {"modelspec.title": "a {title}"},
                     {"config": json.dumps({"quantization_config": None})}):
        save_file({"weight": torch.zeros(4, 4)}, path, metadata=metadata)
        assert declared(nn.Linear(4, 4), tmp_path) is None


def test_a_module_that_has_places_for_quantised_weights_is_let_be(folder):
    (folder / "config.json").write_text(
        json.dumps({"quantization_config": FP8}))
    assert declared(nn.Linear(4, 4), folder)
    for dtype in torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int32:
        assert declared(nn.Linear(4, 4), folder, [*TYPES, dtype]) is None
    for name in "is_quantized", "hf_quantizer":
        module: Any = nn.Linear(4, 4)
        setattr(module, name, True)
        assert declared(module, folder) is None
