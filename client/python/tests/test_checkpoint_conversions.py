"""transformers' conversions of checkpoints, its own and others: followed, said
in pieces, or refused by name and computed."""

from __future__ import annotations

import pathlib
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
pytest.importorskip("safetensors.torch")

from checkpoints import (  # noqa: E402
    EXPERTS, TEXT, build, check, headers_of, write)
from hoist.checkpoint._transformers import (  # noqa: E402
    library_computations, library_sources)
from hoist.checkpoint._safetensors import (  # noqa: E402
    FileTensor, find_files, read_headers)

@pytest.fixture(autouse=True)
def no_warnings(caplog: pytest.LogCaptureFixture):
    """hoist did not fall back to plain names."""
    yield
    assert not [record for record in caplog.records
                if record.name == "hoist.nn"]


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch):
    """Makes a list of transforms what the library does to Llama models."""
    from transformers import conversion_mapping
    conversion_mapping.get_checkpoint_conversion_mapping("llama")  # Fills it.

    def register(*transforms: Any) -> None:
        monkeypatch.setitem(
            conversion_mapping._checkpoint_conversion_mapping_cache, "llama",
            list(transforms))

    return register


ATTENTION = "model.layers.0.self_attn."
PROJECTIONS = [f"self_attn.{one}_proj.weight" for one in "qkv"]


def llama(folder: pathlib.Path, change: Callable[[dict], None],
          **options: Any) -> Any:
    """Writes a Llama's tensors as `change` leaves them; its class."""
    model = build("LlamaForCausalLM", TEXT | {"num_hidden_layers": 1} | options)
    tensors = dict(model.state_dict())
    change(tensors)
    write(folder, model.config, tensors)
    return type(model)


def fuse(tensors: dict[str, torch.Tensor]) -> None:
    tensors[ATTENTION + "qkv"] = torch.cat(
        [tensors.pop(f"model.layers.0.{one}") for one in PROJECTIONS])


@pytest.mark.parametrize("operation, heads", [("Split", 1), ("Chunk", 2)])
def test_a_fused_tensor_is_split(tmp_path, convert, operation, heads):
    core = transformers.core_model_loading
    if not hasattr(core, operation):
        pytest.skip(f"transformers {transformers.__version__} has no such")
    convert(core.WeightConverter("self_attn.qkv", PROJECTIONS,
                                 [getattr(core, operation)(dim=0)]))
    sources = check(tmp_path, llama(tmp_path, fuse,
                                    num_key_value_heads=heads))
    assert [sources[f"model.layers.0.{one}"].pieces[0].tensor
            for one in PROJECTIONS] == [ATTENTION + "qkv"] * 3


def test_halves_of_a_tensor_are_joined_along_its_last_dimension(
        tmp_path, convert):
    core = transformers.core_model_loading

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        whole = tensors.pop(ATTENTION + "o_proj.weight")
        for side, half in zip(("left", "right"), whole.chunk(2, dim=1)):
            tensors[f"{ATTENTION}o_proj.{side}"] = half

    convert(core.WeightConverter(["o_proj.left", "o_proj.right"],
                                 "o_proj.weight", [core.Concatenate(dim=1)]))
    sources = check(tmp_path, llama(tmp_path, halve))
    assert len(sources[ATTENTION + "o_proj.weight"].pieces) == 2 * 16


def test_any_number_of_shards_is_joined_as_the_configuration_says(
        tmp_path, convert):
    core = transformers.core_model_loading

    def shard(tensors: dict[str, torch.Tensor]) -> None:
        whole = tensors.pop("model.embed_tokens.weight")
        for at, part in enumerate(whole.chunk(12)):
            tensors[f"model.embed_tokens.shards.{at}"] = part

    convert(core.WeightConverter(
        r"embed_tokens.shards.*", "embed_tokens.weight",
        [core.Concatenate(dim=0, num_shards_attribute="num_shards")]))
    sources = check(tmp_path, llama(tmp_path, shard))
    assert [piece.tensor.rpartition(".")[2] for piece in
            sources["model.embed_tokens.weight"].pieces] == [
                str(at) for at in range(11)]  # 6 rows each, and 11 of them.


def test_a_transpose_that_finds_its_shape_is_none(tmp_path, convert):
    core = transformers.core_model_loading
    name = "model.layers.0.mlp.up_proj.weight"
    convert(core.WeightConverter("mlp.up_proj.weight", "mlp.up_proj.weight",
                                 [core.Transpose(0, 1, check_dims=True)]))
    own, other = tmp_path / "own", tmp_path / "other"
    cls = llama(own, lambda tensors: None)
    assert check(own, cls)[name].file_tensor == name
    llama(other, lambda tensors: tensors.update({
        name: tensors[name].T.contiguous()}))
    assert name not in check(other, cls, refuses={name: "Transpose"})


@pytest.mark.parametrize("operation", ["PermuteForRope", "Interleave",
                                       "Transpose"])
def test_what_moves_elements_is_refused_by_its_name(tmp_path, convert,
                                                    operation):
    core = transformers.core_model_loading
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [getattr(core, operation)()]))
    cls = llama(tmp_path, move(ATTENTION + "o_proj.weight",
                               ATTENTION + "o_proj.kernel"))
    try:
        cls.from_pretrained(tmp_path)
    except RuntimeError as why:  # Older versions' own fail at it.
        pytest.skip(f"transformers {transformers.__version__}: {why}")
    check(tmp_path, cls, refuses={ATTENTION + "o_proj.weight": operation})


def test_all_that_a_refused_converter_makes_is_refused(tmp_path, convert):
    core = transformers.core_model_loading
    convert(core.WeightConverter("self_attn.qkv", PROJECTIONS, [
        core.Chunk(dim=0), core.PermuteForRope(
            permute_layer_names=["q_proj", "k_proj"])]))
    check(tmp_path, llama(tmp_path, fuse, num_key_value_heads=2), refuses={
        f"model.layers.0.{one}": "PermuteForRope" for one in PROJECTIONS})


def operation(work: Callable[[torch.Tensor], Any]) -> Any:
    """One that the library does not have, called Own."""
    class Own(transformers.core_model_loading.ConversionOps):
        def convert(self, input_dict: dict[str, Any], *_: Any,
                    target_patterns: list[str], **__: Any) -> dict[str, Any]:
            (value,) = input_dict.values()
            return {target_patterns[0]: work(value[0])}

    return Own()


@pytest.mark.parametrize("work", [
    lambda value: torch.stack([value[at] for at in range(16)]),
    lambda value: torch.cat([value[:5], value[5:-1], value[-1:]]),
    lambda value: torch.stack(value.unbind(1), 1),
    lambda value: torch.hstack([value[:, :3], value[:, 3:]]).clone().detach(),
    lambda value: value.flatten().view(4, -1).reshape(16, 16)[...],
    lambda value: value.unsqueeze(1).transpose(0, 1).squeeze(0),
    lambda value: value[None].permute(1, 0, 2).movedim(1, 2)[:, :, 0],
    lambda value: value.roll(0, 0) if value.is_cpu else value.narrow(0, 0, 16),
    lambda value: torch.cat(value.split(7, dim=-1)[::-1], 1)])
def test_operations_that_hoist_has_never_heard_of_are_followed(
        tmp_path, convert, work):
    core = transformers.core_model_loading
    name = ATTENTION + "o_proj.weight"
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [operation(work)]))
    assert name in check(tmp_path, llama(
        tmp_path, move(name, ATTENTION + "o_proj.kernel")))


COMPUTED = [
    lambda value: value + 1, lambda value: value.mul_(2),
    lambda value: torch.cat([value[::2], value[1::2]]),
    lambda value: value[:8].repeat(2, 1), lambda value: value.flip(0),
    lambda value: value.T.contiguous(), lambda value: value.bfloat16(),
    lambda value: value.view(torch.int32).view(torch.float32),
    lambda value: value[torch.arange(16)]]
# Shapes and types do not tell what these give.
BY_VALUE = [
    lambda value: torch.cat([value[1:], torch.ones(1, 16)]),
    lambda value: torch.zeros(16, 16).copy_(value),
    lambda value: value if (value == value).all() else value]


@pytest.mark.parametrize("work", COMPUTED + BY_VALUE)
def test_or_refused_by_their_name(tmp_path, convert, work):
    core = transformers.core_model_loading
    name = ATTENTION + "o_proj.weight"
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [operation(work)]))
    check(tmp_path, llama(tmp_path, move(name, ATTENTION + "o_proj.kernel")),
          refuses={name: "Own"}, computes=work in COMPUTED)


def move(old: str, new: str) -> Callable[[dict], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[new] = tensors.pop(old)

    return change


def test_a_name_that_is_the_modules_is_not_renamed_away(tmp_path, convert):
    core = transformers.core_model_loading
    convert(core.WeightRenaming(r"^model.norm", "model.old_norm"),
            core.WeightConverter("mlp.up_proj.weight", "mlp.gone",
                                 [core.Concatenate(dim=0)]))
    sources = check(tmp_path, llama(tmp_path, lambda tensors: None))
    assert {"model.norm.weight", "model.layers.0.mlp.up_proj.weight"
            } <= set(sources)


def test_an_early_version_5_answers_with_its_errors(tmp_path, convert,
                                                    monkeypatch):
    core = transformers.core_model_loading
    converter = core.WeightConverter
    now = converter.convert

    def then(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return now(self, *args, **kwargs), {}
        except Exception:
            raise core.SkipParameters

    convert(converter("self_attn.qkv", PROJECTIONS, [core.Chunk(dim=0)]),
            converter("norm.gain", "norm.weight",
                      [operation(lambda value: value + 1)]))
    llama(tmp_path, fuse, num_key_value_heads=2)
    module = build("LlamaForCausalLM", TEXT | {"num_hidden_layers": 1,
                                               "num_key_value_heads": 2})
    headers = read_headers(find_files(tmp_path))
    headers["model.norm.gain"] = headers.pop("model.norm.weight")
    found = library_sources(module, headers)
    monkeypatch.setattr(converter, "convert", then)
    assert library_sources(module, headers) == found
    assert list(found[1]) == ["model.norm.weight"]
    assert ATTENTION + "q_proj.weight" in found[0]


def test_values_from_elsewhere_are_refused(convert):
    core = transformers.core_model_loading
    convert(core.WeightConverter("norm.gain", "norm.weight", [
        operation(lambda value: torch.zeros(16))]))
    module = build("LlamaForCausalLM", TEXT)
    headers = headers_of(module)
    headers["model.norm.gain"] = headers.pop("model.norm.weight")
    sources, refused = library_sources(module, headers)
    assert list(refused) == ["model.norm.weight"]
    assert "not made of the files' tensors alone" in refused[
        "model.norm.weight"]


def test_experts_of_two_types_are_refused():
    module = build("MixtralForCausalLM", TEXT | EXPERTS)
    name = "model.layers.0.mlp.experts.down_proj"
    headers = {
        f"model.layers.0.block_sparse_moe.experts.{at}.w2.weight": FileTensor(
            "BF16" if at else "F32", (16, 24)) for at in range(12)}
    sources, refused = library_sources(module, headers)
    assert sources == {} and list(refused) == [name]
    assert "MergeModulelist: tensors of different types" in refused[name]


FP8 = {"quant_method": "fp8", "weight_block_size": [4, 4]}


def fp8_headers(module: Any) -> dict[str, FileTensor]:
    """A checkpoint of a Qwen3-MoE whose projections have blocks of scales."""
    headers: dict[str, FileTensor] = {}

    def quantise(name: str, rows: int, columns: int) -> None:
        headers[name] = FileTensor("F8_E4M3", (rows, columns))
        headers[name + "_scale_inv"] = FileTensor("F32",
                                                  (rows // 4, columns // 4))

    for name, tensor in module.state_dict().items():
        if name.endswith("_proj.weight"):
            quantise(name, *tensor.shape)
        elif name.endswith(".experts.down_proj"):
            for at in range(12):
                expert = f"{name.removesuffix('down_proj')}{at}."
                quantise(expert + "down_proj.weight", 16, 8)
                quantise(expert + "gate_proj.weight", 8, 16)
                quantise(expert + "up_proj.weight", 8, 16)
        elif "_proj" not in name:
            headers[name] = FileTensor("BF16", tuple(tensor.shape))
    return headers


def test_weights_whose_scales_are_elsewhere_are_refused():
    model = build("Qwen3MoeForCausalLM", TEXT | EXPERTS)
    model.config.quantization_config = FP8
    sources, refused = library_sources(model, fp8_headers(model))
    assert set(refused) == {name for name in model.state_dict()
                            if "_proj" in name}
    assert set(sources) == set(model.state_dict()) - set(refused)
    for name, why in refused.items():
        # Older versions have no operation for experts: they name the other.
        named = ["FineGrainedFP8HfQuantizer"]
        if ".experts." in name:
            named.append("Fp8Dequantize")
        assert any(one in why for one in named)


def test_what_is_moved_without_its_scales_is_not_computed(convert):
    core = transformers.core_model_loading
    convert(core.WeightConverter("o_proj.kernel", "o_proj.weight",
                                 [core.Transpose(0, 1)]))
    model = build("LlamaForCausalLM", TEXT | {"num_hidden_layers": 1})
    name = ATTENTION + "o_proj.weight"
    headers = headers_of(model)
    headers.pop(name)
    for dtype, quantised in (("F8_E4M3", True), ("BF16", True),
                             ("F8_E4M3", False)):
        model.config.quantization_config = FP8 if quantised else None
        headers[ATTENTION + "o_proj.kernel"] = FileTensor(dtype, (16, 16))
        _, refused = library_sources(model, headers)
        assert list(refused) == [name]
        computed = library_computations(model, headers, refused)
        assert (name in computed) == (dtype == "BF16" or not quantised)


def test_layers_that_have_a_place_for_scales_get_them():
    from transformers.quantizers.auto import AutoHfQuantizer
    with torch.device("meta"):
        model = build("Qwen3MoeForCausalLM",
                      TEXT | EXPERTS | {"quantization_config": FP8})
        quantizer = AutoHfQuantizer.from_config(FP8, pre_quantized=True)
        quantizer.preprocess_model(model=model, device_map=None,
                                   checkpoint_files=None, use_kernels=False,
                                   dtype=torch.bfloat16)
    sources, refused = library_sources(model, fp8_headers(model))
    assert refused == {}
    assert {name: source.shape for name, source in sources.items()} == {
        name: tuple(value.shape) for name, value in model.state_dict().items()}
    scales = sources["model.layers.0.mlp.experts.gate_up_proj_scale_inv"]
    assert [(piece.tensor.split(".")[5:7], piece.count)
            for piece in scales.pieces] == [
                ([str(at), one], 8) for at in range(12)
                for one in ("gate_proj", "up_proj")]
