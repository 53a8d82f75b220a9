"""hoist.load of folders whose tensors are not the module's as they are: a
library renames, merges, fuses or splits them as it loads them."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from families import FAMILIES, computing_library, refuse  # noqa: E402
from real_daemon import write_safetensors  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from torch import nn  # noqa: E402

MIXTRAL = FAMILIES["mixtral"]
FP8 = torch.float8_e4m3fn


@pytest.fixture
def moe_folder(tmp_path):
    """As MoE checkpoints are: a tensor an expert and projection."""
    MIXTRAL.make().save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert any(".experts.0.w1." in name for name in saved)
    return tmp_path


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_experts_stored_one_by_one_are_the_modules(hoistd, device, moe_folder,
                                                   groups):
    resident = MIXTRAL.make().to(device)
    before = {name: value.clone()
              for name, value in resident.state_dict().items()}
    loaded = hoist.load(MIXTRAL.build, moe_folder, budget=0.8, groups=groups)
    for name, value in loaded.state_dict().items():
        assert same_bytes(value, before[name]), name
    with torch.no_grad():
        for turn in range(3):
            assert_equal_outputs(MIXTRAL.run(loaded, device),
                                 MIXTRAL.run(resident, device), f"pass {turn}")
    hoist.check(loaded)
    hoist.detach(loaded)
    for name, value in loaded.state_dict().items():
        assert same_bytes(value, before[name]), name


def test_the_files_are_read_once_whatever_is_joined(hoistd, device,
                                                    moe_folder):
    loaded = hoist.load(MIXTRAL.build, moe_folder, budget=1.0)
    with torch.no_grad():
        MIXTRAL.run(loaded, device)
    hoist.check(loaded)
    read = hoistd.counters()["file_read_bytes"]
    weights = sum(one.nbytes for one in loaded.parameters())
    assert weights <= read < 1.05 * weights
    other = hoist.load(MIXTRAL.build, moe_folder, budget=1.0)
    assert hoist.stats(other).model == hoist.stats(loaded).model
    with torch.no_grad():
        MIXTRAL.run(other, device)
    hoist.check(other)
    assert hoistd.counters()["file_read_bytes"] == read


def test_joined_weights_are_cast_as_others_are(hoistd, device, moe_folder):
    resident = MIXTRAL.make().to(device)
    with torch.no_grad():
        for one in resident.parameters():
            one.copy_(one.to(FP8).to(one.dtype))
        expected = MIXTRAL.run(resident, device)
        loaded = hoist.load(MIXTRAL.build, moe_folder, budget=1.0,
                            storage_dtype=FP8, skip=())
        assert_equal_outputs(MIXTRAL.run(loaded, device), expected)
    stats = hoist.stats(loaded)
    weights = sum(one.nbytes for one in loaded.parameters())
    assert stats.model_bytes < 0.5 * weights  # F32's quarter, and alignment.
    hoist.check(loaded)


class Fused(nn.Module):
    """One matrix where the files have three, and three where they have one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.up = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) * self.qkv(x).sum()


def test_rename_may_give_several_tensors(hoistd, device, tmp_path):
    torch.manual_seed(3)
    parts = {name: torch.randn(8, 8) for name in ("q", "k", "v")}
    saved = {**parts, "up.weight": torch.randn(16, 8),
             "up.bias": torch.randn(16)}
    save_file(saved, tmp_path / "model.safetensors")

    def rename(name: str) -> str | list[str]:
        return ["q", "k", "v"] if name == "qkv.weight" else name

    resident = Fused().to(device)
    resident.load_state_dict({"qkv.weight": torch.cat(list(parts.values())),
                              "up.weight": saved["up.weight"],
                              "up.bias": saved["up.bias"]})
    loaded = hoist.load(Fused, tmp_path, rename=rename)
    x = torch.randn(3, 8, device=device)
    with torch.no_grad():
        assert_equal_outputs(loaded(x), resident(x))
    hoist.check(loaded)


def test_a_tensor_that_two_parameters_want_is_read_for_both(hoistd, device,
                                                            tmp_path):
    square = torch.randn(8, 8)
    save_file({"w": square}, tmp_path / "model.safetensors")
    two = nn.Sequential(nn.Linear(8, 8, bias=False),
                        nn.Linear(8, 8, bias=False))
    loaded = hoist.load(lambda: two, tmp_path, rename=lambda name: "w")
    for one in loaded:
        assert same_bytes(one.weight, square)
    x = torch.randn(3, 8, device=device)
    with torch.no_grad():
        assert_equal_outputs(
            loaded(x), nn.functional.linear(nn.functional.linear(
                x, square.to(device)), square.to(device)))


def test_several_tensors_of_another_size_are_refused(hoistd, tmp_path):
    save_file({"q": torch.zeros(8, 8), "k": torch.zeros(8, 8)},
              tmp_path / "model.safetensors")
    with pytest.raises(hoist.InvalidArgument, match=r"\(24, 8\) here, \(128,"):
        hoist.load(lambda: Fused().qkv, tmp_path,
                   rename=lambda name: ["q", "k"])
    with pytest.raises(hoist.NotFound, match="weight"):
        hoist.load(lambda: Fused().qkv, tmp_path,
                   rename=lambda name: ["q", "k", "none"])


@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16},
                                     {"storage_dtype": FP8, "skip": ()}],
                         ids=["plain", "dtype", "storage"])
def test_what_a_library_computes_is_computed_once(hoistd, device, moe_folder,
                                                  groups, options):
    """Turned: no joining of the files' tensors gives that."""
    core = pytest.importorskip("transformers.core_model_loading")
    resident = MIXTRAL.make()
    with torch.no_grad():
        for layer in resident.model.layers:
            weight = layer.self_attn.o_proj.weight
            weight.copy_(weight.T.clone())
        if "storage_dtype" in options:
            for one in resident.parameters():
                one.copy_(one.to(FP8).to(one.dtype))
        for one in resident.parameters():
            one.data = one.data.to(options.get("dtype"))
    resident.to(device)
    with computing_library(core.Transpose(0, 1)):
        loaded = hoist.load(MIXTRAL.build, moe_folder, budget=0.8,
                            groups=groups, **options)
        made = hoist.stats(loaded).model
        copies = hoistd.tier("HOST")["used_bytes"]
        other = hoist.load(MIXTRAL.build, moe_folder, budget=0.8,
                           groups=groups, **options)
    assert hoist.stats(other).model == made
    assert hoistd.tier("HOST")["used_bytes"] <= copies
    with torch.no_grad():
        for turn in range(2):
            for one in (loaded, other):
                assert_equal_outputs(MIXTRAL.run(one, device),
                                     MIXTRAL.run(resident, device),
                                     f"pass {turn}")
    hoist.check(loaded)
    hoist.check(other)


def test_what_is_computed_otherwise_is_not_shared(hoistd, device, moe_folder):
    """An operation that is not the library's own may be any; one writes to what
    it is given. And the configuration may tell operations what to do."""
    core = pytest.importorskip("transformers.core_model_loading")
    config = MIXTRAL.make().config
    name = "model.layers.0.self_attn.o_proj.weight"
    before = MIXTRAL.make().state_dict()[name]
    models = set()
    for scale in (2, 3):
        with computing_library(lambda value, by=scale: value.mul_(by)):
            loaded = hoist.load(MIXTRAL.build, moe_folder)
        models.add(hoist.stats(loaded).model)
        assert same_bytes(loaded.state_dict()[name], before * scale)
    for length in (32, 64, 64):
        config.max_position_embeddings = length
        with computing_library(core.Transpose(0, 1)):
            loaded = hoist.load(
                lambda: transformers.MixtralForCausalLM(config), moe_folder)
        models.add(hoist.stats(loaded).model)
        assert same_bytes(loaded.state_dict()[name], before.T)
    assert len(models) == 4


def test_what_a_library_fuses_and_computes_goes_to_several_groups(
        hoistd, device, tmp_path, monkeypatch):
    """One file tensor is what three groups' weights are computed from."""
    mapping = pytest.importorskip("transformers.conversion_mapping")
    core = pytest.importorskip("transformers.core_model_loading")
    plain = mapping.get_checkpoint_conversion_mapping
    names = [f"self_attn.{one}_proj.weight" for one in "qkv"]
    rule = core.WeightConverter(
        "self_attn.fused", names, operations=[core.Transpose(0, 1),
                                              core.Chunk(dim=0)])
    monkeypatch.setattr(
        mapping, "get_checkpoint_conversion_mapping",
        lambda key: [rule] if key == "llama" else plain(key))
    family = FAMILIES["llama"]
    config = family.make().config
    config.num_key_value_heads = config.num_attention_heads
    torch.manual_seed(5)
    resident = type(family.make())(config).eval()
    saved = {name: value.clone() for name, value in
             resident.state_dict().items()}
    for at in range(config.num_hidden_layers):
        base = f"model.layers.{at}."
        saved[base + "self_attn.fused"] = torch.cat(
            [saved.pop(base + name) for name in names]).T.contiguous()
    save_file(saved, tmp_path / "model.safetensors")
    resident.to(device)
    loaded = hoist.load(lambda: type(resident)(config), tmp_path,
                        groups="leaf").eval()
    with torch.no_grad():
        assert_equal_outputs(family.run(loaded, device),
                             family.run(resident, device))
    hoist.check(loaded)


def test_what_a_library_cannot_compute_is_refused_by_name(hoistd, moe_folder):
    with computing_library(refuse), pytest.raises(
            hoist.Unimplemented,
            match=r"o_proj.*Work: no scale was given.*hoist\.attach"):
        hoist.load(MIXTRAL.build, moe_folder)


def test_a_part_of_another_type_is_refused(hoistd, tmp_path):
    write_safetensors(str(tmp_path / "model.safetensors"), {
        "q": ("F32", [8, 8], bytes(256)), "k": ("F32", [8, 8], bytes(256)),
        "v": ("BF16", [8, 8], bytes(128))})
    with pytest.raises(hoist.InvalidArgument, match="BF16, F32"):
        hoist.load(lambda: Fused().qkv, tmp_path,
                   rename=lambda name: ["q", "k", "v"])


class Renamed(transformers.PreTrainedModel):
    """Its second layer was the first of those who saved it."""

    config_class = transformers.PretrainedConfig

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        super().__init__(config)
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.register_buffer("scale", torch.ones(4, 4))
        self.post_init()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) * self.scale


@pytest.fixture
def renamed_folder(monkeypatch, tmp_path):
    """And a way to say what the library does to it besides."""
    mapping = pytest.importorskip("transformers.conversion_mapping")
    core = pytest.importorskip("transformers.core_model_loading")
    rules = [core.WeightRenaming(r"^first\.", "second.")]
    plain = mapping.get_checkpoint_conversion_mapping
    monkeypatch.setattr(
        mapping, "get_checkpoint_conversion_mapping",
        lambda key: list(rules) if key == "Renamed" else plain(key))
    # Or the library takes the class for one that has nothing to do with it.
    monkeypatch.setattr(mapping, "USER_REGISTERED_MAPPINGS", {"Renamed"},
                        raising=False)
    return tmp_path, rules, core


def test_a_tensor_that_the_library_renames_is_not_taken_by_its_name(
        hoistd, renamed_folder):
    folder, _, _ = renamed_folder
    save_file({"first.weight": torch.randn(4, 4)},
              folder / "model.safetensors")
    with pytest.raises(hoist.NotFound, match="files: first.weight;"):
        hoist.load(lambda: Renamed(transformers.PretrainedConfig()), folder)


def test_a_buffer_that_the_library_computes_is_not_left_as_it_was_made(
        hoistd, renamed_folder):
    folder, rules, core = renamed_folder
    saved = {"first.weight": torch.randn(4, 4), "scale": torch.randn(4, 4),
             "second.weight": torch.randn(4, 4)}
    save_file(saved, folder / "model.safetensors")
    rules[:] = [core.WeightConverter("scale", "scale",
                                     operations=[core.Transpose(0, 1)])]
    loaded = hoist.load(lambda: Renamed(transformers.PretrainedConfig()),
                        folder)
    assert same_bytes(loaded.scale, saved["scale"].T)
    rules[:] = [core.WeightConverter("scale", "scale",
                                     operations=[core.Transpose(0, 7)])]
    with pytest.raises(hoist.Unimplemented, match="scale.*Transpose"):
        hoist.load(lambda: Renamed(transformers.PretrainedConfig()), folder)


def test_a_library_that_does_not_tell_is_not_guessed_about(
        hoistd, device, tmp_path, monkeypatch):
    """A version whose functions are others: its files could hold anything."""
    from transformers import LlamaConfig, LlamaForCausalLM, core_model_loading
    config = LlamaConfig(hidden_size=16, intermediate_size=32, vocab_size=32,
                         num_hidden_layers=2, num_attention_heads=2)
    resident = LlamaForCausalLM(config).eval()
    resident.save_pretrained(tmp_path)
    resident.to(device)

    def build():
        return LlamaForCausalLM(config)

    monkeypatch.delattr(core_model_loading, "rename_source_key")
    with pytest.raises(hoist.Unimplemented, match="does not say.*hoist.attach"
                       ) as raised:
        hoist.load(build, tmp_path, budget=1.0)
    assert "rename={}" in str(raised.value)
    with hoist.connect() as session, pytest.raises(hoist.NotFound):
        session.model(tmp_path.name)  # Nothing was left behind.
    # Who knows better insists.
    loaded = hoist.load(build, tmp_path, budget=1.0, rename={}).eval()
    ids = torch.arange(6, device=device).reshape(2, 3)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, resident(ids).logits)


def test_a_folder_with_two_variants_is_refused_by_the_files_names(
        hoistd, device, tmp_path):
    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    plain = {name: value.contiguous()
             for name, value in model.state_dict().items()}
    half = {name: value.half() for name, value in plain.items()}
    save_file(plain, tmp_path / "diffusion_pytorch_model.safetensors")
    variant = tmp_path / "diffusion_pytorch_model.fp16.safetensors"
    save_file(half, variant)

    def build():
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    with pytest.raises(hoist.InvalidArgument) as caught:
        hoist.load(build, tmp_path)
    for said in ("model.safetensors", variant.name, "name one of them"):
        assert said in str(caught.value)
    loaded = hoist.load(build, variant)
    for name, value in loaded.state_dict().items():
        assert same_bytes(value, half[name]), name


@pytest.mark.parametrize("times, kept", [(1.0, "both"), (1.0, "lm_head.weight"),
                                         (2.0, "both")])
def test_what_is_tied_and_stored_twice_is_one_value_or_refused(
        hoistd, device, tmp_path, times, kept):
    """transformers' version 5 takes such a tie apart, and 4 does not."""
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=16, intermediate_size=32, vocab_size=32,
                         num_hidden_layers=2, num_attention_heads=2,
                         tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    saved = load_file(file)
    saved["lm_head.weight"] = saved["model.embed_tokens.weight"] * times
    if kept != "both":
        del saved["model.embed_tokens.weight"]
    save_file(saved, file, metadata={"format": "pt"})
    if times != 1.0:
        with pytest.raises(hoist.InvalidArgument,
                           match="lm_head.*tie_word_embeddings=False"):
            hoist.load(lambda: LlamaForCausalLM(config), tmp_path)
        config.tie_word_embeddings = False
    loaded = hoist.load(lambda: LlamaForCausalLM(config), tmp_path).eval()
    resident = LlamaForCausalLM.from_pretrained(tmp_path, config=config).eval()
    resident.to(device)
    ids = torch.arange(6, device=device).reshape(2, 3)
    with torch.no_grad():
        assert same_bytes(loaded(ids).logits, resident(ids).logits)


def test_integers_for_what_has_gradients_are_refused(hoistd, device, tmp_path):
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(4, 4, dtype=torch.int8),
               "bias": torch.ones(4)}, file)
    module = nn.Linear(4, 4, device="meta")
    with pytest.raises(hoist.InvalidArgument, match="weight is to have.* I8 "):
        hoist.load(module, file)
    assert all(one.is_meta for one in module.parameters())
    with hoist.connect() as session, pytest.raises(hoist.NotFound):
        session.model("model")
    loaded = hoist.load(module.requires_grad_(False), file)
    assert loaded.weight.dtype == torch.int8  # As it is in the file.


# --- What the files say besides.


def quantised(model: nn.Module, scale: str) -> dict[str, torch.Tensor]:
    """As checkpoints in FP8 are: each matrix with a scale beside it."""
    saved = {}
    for name, value in model.state_dict().items():
        saved[name] = value.clone()
        if value.dim() == 2:
            by = value.abs().max() / 448
            saved[name] = (value / by).to(FP8)
            saved[name.removesuffix("weight") + scale] = by.reshape(1)
    return saved


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float32},
                                     {"dtype": torch.bfloat16}], ids=str)
@pytest.mark.parametrize("scale", ["weight_scale", "weight_scale_inv", "scale",
                                   "weight.absmax"])
def test_weights_whose_scales_nobody_takes_are_refused(hoistd, tmp_path, scale,
                                                       options):
    """Not loaded without them: their bytes are not their values."""
    def build():
        return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    save_file(quantised(build(), scale), tmp_path / "model.safetensors")
    with pytest.raises(hoist.Unimplemented) as caught:
        hoist.load(build, tmp_path, **options)
    for said in '"0.weight"', f'"0.{scale}"', "and 1 more", "hoist.attach":
        assert said in str(caught.value)
    with hoist.connect() as session, pytest.raises(hoist.NotFound):
        session.model(tmp_path.name)  # Nothing was left behind.
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_a_module_with_places_for_scales_gets_them(hoistd, device, tmp_path):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(8, 8, dtype=FP8), False)
            self.weight_scale = nn.Parameter(torch.empty(1), False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight.float() * self.weight_scale)

    saved = quantised(nn.Linear(8, 8, bias=False), "weight_scale")
    save_file(saved, tmp_path / "model.safetensors",
              metadata={"quantization": "fp8"})
    loaded = hoist.load(Scaled, tmp_path)
    x = torch.randn(3, 8, device=device)
    whole = saved["weight"].to(device).float() * saved["weight_scale"].to(
        device)
    with torch.no_grad():
        assert_equal_outputs(loaded(x), x @ whole)


def test_fp8_without_scales_is_a_type_as_others(hoistd, device, tmp_path):
    plain = nn.Linear(8, 8)
    saved = {name: value.to(FP8) for name, value in plain.state_dict().items()}
    save_file(saved, tmp_path / "model.safetensors")
    loaded = hoist.load(lambda: nn.Linear(8, 8), tmp_path,
                        dtype=torch.bfloat16)
    for name, value in loaded.state_dict().items():
        assert same_bytes(value, saved[name].to(torch.bfloat16)), name


@pytest.mark.parametrize("where", ["the folder's", "the module's"])
def test_a_configuration_of_a_quantiser_is_refused_by_its_name(hoistd, tmp_path,
                                                               where):
    """Whatever it is, and be the weights as wide as ever: from_pretrained
    would make other layers."""
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(hidden_size=16, intermediate_size=32, vocab_size=32,
                         num_hidden_layers=2, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    if where == "the module's":
        config.quantization_config = said
    else:
        file = tmp_path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()),
                                    "quantization_config": said}))
    with pytest.raises(hoist.Unimplemented,
                       match="quantization_config: bitsandbytes"):
        hoist.load(lambda: LlamaForCausalLM(config), tmp_path)


def test_what_nobody_takes_and_changes_nothing_is_logged(hoistd, tmp_path,
                                                         caplog):
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    loaded = hoist.load(lambda: nn.Sequential(nn.Linear(4, 4)), tmp_path)
    assert same_bytes(loaded[0].weight, plain[0].weight)
    assert "2 tensors of the files are no weights of the module: 1." in (
        caplog.text)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


def test_dtype_converts_buffers_of_the_files_too(hoistd, device, tmp_path):
    torch.manual_seed(4)
    plain = Normed().eval()
    plain.norm.running_mean.normal_()
    save_file(plain.state_dict(), tmp_path / "model.safetensors")
    plain.half().to(device)
    loaded = hoist.load(Normed, tmp_path, dtype=torch.float16).eval()
    for name, value in plain.state_dict().items():
        assert same_bytes(loaded.state_dict()[name], value), name
    x = torch.randn(2, 3, 8, 8, device=device).half()
    with torch.no_grad():
        assert_equal_outputs(loaded(x), plain(x))


class Buffers(transformers.PreTrainedModel):
    """Of each kind that from_pretrained(dtype=) has a way with."""

    config_class = transformers.PretrainedConfig
    _keep_in_fp32_modules_strict = ["kept"]

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        super().__init__(config)
        self.body = Normed()
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.float32))
        self.register_buffer("kept", torch.randn(4))
        self.register_buffer("saved", torch.linspace(0, 1, 4))
        self.register_buffer("own", torch.linspace(0, 1, 4), persistent=False)
        self.register_buffer("insists", torch.linspace(
            0, 1, 4, dtype=torch.float32), persistent=False)
        self.register_buffer("saved_wide", torch.randn(4, dtype=torch.float32))
        self.post_init()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16,
                                   torch.float32])
def test_types_are_those_of_from_pretrained(hoistd, device, tmp_path, dtype):
    config = transformers.PretrainedConfig()
    Buffers(config).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    theirs = Buffers.from_pretrained(tmp_path, dtype=dtype)
    loaded = hoist.load(lambda: Buffers(config), tmp_path, dtype=dtype)
    both = [dict([*one.named_parameters(), *one.named_buffers()])
            for one in (loaded, theirs)]
    assert both[0].keys() == both[1].keys()
    for name, value in both[1].items():
        assert both[0][name].dtype == value.dtype, name
        if name in saved:  # It leaves the others' values to the module.
            assert same_bytes(both[0][name], value.to(device)), name
    assert {"wide", "kept", "saved", "saved_wide"} < saved.keys()
    assert torch.get_default_dtype() is torch.float32


def test_buffers_that_nobody_has_made_say_what_would_do(hoistd, tmp_path):
    save_file({"second.weight": torch.ones(4, 4)},
              tmp_path / "model.safetensors")

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(4, 4, bias=False)
            self.register_buffer("scale", torch.ones(4), persistent=False)

    with torch.device("meta"):
        module = Scaled()
    with pytest.raises(hoist.NotFound, match="1 buffers.*scale; give"):
        hoist.load(module, tmp_path)
    assert hoist.load(Scaled, tmp_path).scale.sum() == 4
