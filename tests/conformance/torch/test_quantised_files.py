"""hoist.load of folders whose weights are quantised: the library's own modules
over the files' bytes, as they lie."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.core_model_loading")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from failing import LATE, assert_all_may_go, models_in  # noqa: E402
from loaded import (check_adapters, check_budgets,  # noqa: E402
                    check_compiled, check_outlives, check_shared)
from packed import (DTYPE, WRITERS, config, tell, with_kernels,  # noqa: E402
                    write, write_base, write_compressed, write_fp8_blocks,
                    write_mxfp4)
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from real_daemon import until  # noqa: E402
from sampled import sampled  # noqa: E402
from subclasses import inner_tensors  # noqa: E402
from torch import nn  # noqa: E402

Folder = pathlib.Path
FORMATS = list(WRITERS)
UNPACKED = [kind for kind in FORMATS if "unpacked" in kind]
# Beside a weight, and no part of its value.
NEEDLESS = ("weight_format", "input_global_scale")
# One of each library; the others differ from them in the numbers alone.
OFTEN = ("bitsandbytes nf4", "torchao int8", "fp8 blocks",
         "compressed-tensors fp8", "mxfp4 unpacked")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Folder:
    found = tmp_path_factory.mktemp("base")
    write_base(found)
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory, base) -> dict[str, Folder]:
    """Those that are written already."""
    return {}


@pytest.fixture
def folder(request, tmp_path_factory, base, folders) -> Iterator[Folder]:
    """Of the format that the test is called with."""
    kind = request.param
    if kind not in folders:
        made = tmp_path_factory.mktemp(kind.replace(" ", "-"))
        WRITERS[kind](base, made)
        folders[kind] = made
    with with_kernels():
        yield folders[kind]


def all_formats(function: Any) -> Any:
    return pytest.mark.parametrize("folder", FORMATS, indirect=True)(function)


def sampled_formats(*often: str) -> Any:
    return pytest.mark.parametrize("folder", sampled(FORMATS, *often),
                                   indirect=True)


def the_librarys(folder: Folder, device: torch.device) -> nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=DTYPE, device_map={"": device}).eval()


def load(folder: Folder, budget: Any = 0.6, **options: Any) -> nn.Module:
    said = transformers.AutoConfig.from_pretrained(folder)
    return hoist.load(
        lambda: transformers.AutoModelForCausalLM.from_config(said), folder,
        budget, dtype=DTYPE, **options).eval()


def metadata_of(folder: Folder) -> dict[str, str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return file.metadata()


def run(model: nn.Module, device: torch.device) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(10, device=device).reshape(2, 5)).logits


def moved(model: nn.Module, device: torch.device) -> nn.Module:
    """A loaded module is detached on the CPU. Each layer is moved by itself:
    one of bitsandbytes' moves its 8 bit state only then."""
    for one in model.modules():
        one.to(device)
    return model


@all_formats
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, tmp_path, folder, groups):
    theirs = the_librarys(folder, device)
    kinds = [type(one) for one in theirs.modules()]
    weights = {name: type(one) for name, one in theirs.named_parameters()}
    state = {name: value.clone() for name, value in
             theirs.state_dict().items()}
    expected = run(theirs, device)
    loaded = load(folder, groups=groups)
    assert [type(one) for one in loaded.modules()] == kinds
    check_budgets(loaded, lambda one: run(one, device), expected)
    hoist.detach(loaded)
    assert {name: type(one) for name, one in
            loaded.named_parameters()} == weights
    assert_equal_outputs(run(moved(loaded, device), device), expected,
                         "detached")
    fresh = load(folder, groups=groups)  # A pass may have repacked the other.
    hoist.detach(fresh)
    ours = fresh.state_dict()
    assert ours.keys() == state.keys()
    for name, value in ours.items():
        assert_equal_outputs(list(inner_tensors(value)),
                             list(inner_tensors(state[name])), name)


@pytest.mark.parametrize("folder, detached", sampled(
    [(kind, detached) for kind in FORMATS for detached in (False, True)
     # torchao saves no tensors that it does not know.
     if (detached or "torchao" not in kind) and "unpacked" not in kind],
    ("bitsandbytes nf4", False), ("bitsandbytes int8", True),
    ("torchao int8", True), ("fp8 blocks", False)), indirect=["folder"])
def test_what_is_saved_is_what_was_loaded(hoistd, device, tmp_path, folder,
                                          detached):
    loaded = load(folder)
    if detached:
        hoist.detach(loaded)
    loaded.save_pretrained(tmp_path)
    if any(one in folder.name for one in ("whole", "uint8")):
        # The library saves other types than it read.
        the_librarys(folder, device).save_pretrained(tmp_path / "theirs")
        folder = tmp_path / "theirs"
    assert_same_files(tmp_path, folder)


@pytest.mark.parametrize("folder, detached", sampled(
    [(kind, detached) for kind in UNPACKED for detached in (False, True)],
    ("mxfp4 unpacked", False)), indirect=["folder"])
def test_what_was_unpacked_is_saved_as_plain_weights(hoistd, device, tmp_path,
                                                     folder, detached):
    """The library itself saves some of them by the packed weights' names."""
    loaded = load(folder)
    expected = run(loaded, device)
    if detached:
        hoist.detach(loaded)
    loaded.save_pretrained(tmp_path)
    again = the_librarys(tmp_path, device)
    assert not hasattr(again.config, "quantization_config")
    assert_equal_outputs(run(again, device), expected)
    assert {value.dtype for value in
            load_file(tmp_path / "model.safetensors").values()} == {DTYPE}


def assert_same_files(ours: Folder, theirs: Folder) -> None:
    mine, expected = (load_file(one / "model.safetensors")
                      for one in (ours, theirs))
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        assert same_bytes(mine[name], value), name


@sampled_formats(*OFTEN)
def test_the_bytes_are_the_files_and_kept_once(hoistd, device, folder):
    saved = load_file(folder / "model.safetensors")
    loaded = load(folder, 1.0)
    run(loaded, device)
    stats = hoist.stats(loaded)
    # In groups, each tensor aligned; the states that were read are unused.
    names = {info.name for group in hoist_model(hoistd, stats.model)
             for info in group.tensors}
    # The library reshapes the scales of the former.
    if not any(one in folder.name for one in ("compressed", "unpacked")):
        assert names == saved.keys()
    check_shared(hoistd, loaded,
                 lambda **options: load(folder, 1.0, **options),
                 lambda one: run(one, device))


def hoist_model(hoistd: Any, name: str) -> list[Any]:
    with hoist.connect(hoistd.socket) as session:
        return list(session.model(name))


@pytest.mark.parametrize("folder", ["bitsandbytes nf4", "torchao int8",
                                    "fp8 blocks"], indirect=True)
def test_several_files_and_no_dtype(hoistd, device, tmp_path, folder):
    """A weight and its scales may lie in different files."""
    saved = load_file(folder / "model.safetensors")
    names = sorted(saved)  # A weight's tensors are neighbours.
    (tmp_path / "config.json").write_bytes(
        (folder / "config.json").read_bytes())
    files = {f"model-{at + 1:05}-of-00002.safetensors": names[at::2]
             for at in range(2)}
    for name, some in files.items():
        save_file({one: saved[one] for one in some}, tmp_path / name,
                  metadata=metadata_of(folder))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({
        "weight_map": {one: name for name, some in files.items()
                       for one in some}}))
    expected = run(the_librarys(folder, device), device)
    said = transformers.AutoConfig.from_pretrained(tmp_path)
    loaded = hoist.load(lambda: transformers.LlamaForCausalLM(said), tmp_path,
                        0.6).eval()
    for turn in range(2):
        assert_equal_outputs(run(loaded, device), expected, f"pass {turn}")
    hoist.check(loaded)


@pytest.mark.parametrize("groups", ["block", "leaf"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_quantised_experts_are_joined_and_so_are_their_scales(
        hoistd, device, tmp_path, groups, unpacked):
    """A tensor an expert and projection. No CPU computes with them packed."""
    saved = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        hidden_size=64, intermediate_size=128, vocab_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=4)).to(DTYPE)
    saved.save_pretrained(tmp_path / "base")
    write_fp8_blocks(tmp_path / "base", tmp_path, r"_proj\.|\.experts\.")
    tell(tmp_path, dequantize=unpacked)
    said = transformers.AutoConfig.from_pretrained(tmp_path)
    with with_kernels():
        theirs = transformers.MixtralForCausalLM.from_pretrained(
            tmp_path, dtype=DTYPE)
        loaded = hoist.load(lambda: transformers.MixtralForCausalLM(said),
                            tmp_path, 0.6, dtype=DTYPE, groups=groups)
    state = theirs.state_dict()
    scale = "model.layers.0.mlp.experts.gate_up_proj_scale_inv"
    assert unpacked or state[scale].shape == (4, 8, 2)
    for turn in "attached", "detached":
        assert loaded.state_dict().keys() == state.keys()
        for name, value in loaded.state_dict().items():
            assert same_bytes(value, state[name]), f"{turn} {name}"
        if turn == "attached":
            hoist.check(loaded)
            hoist.detach(loaded)


@sampled_formats(*OFTEN)
@pytest.mark.real_time
def test_it_outlives_hoistd(make_hoistd, device, folder):
    expected = run(the_librarys(folder, device), device)
    daemon = make_hoistd()
    loaded = load(folder)
    check_outlives(daemon, loaded, lambda one: run(one, device), expected)
    assert_equal_outputs(run(moved(loaded, device), device), expected,
                         "detached")


@sampled_formats(*OFTEN)
def test_adapters_go_on_top(hoistd, device, folder):
    check_adapters(the_librarys(folder, device), load(folder),
                   lambda model: run(model, device), ["q_proj", "down_proj"])


@pytest.mark.nightly
@sampled_formats("torchao int8")
def test_it_is_compiled_as_the_librarys_own(hoistd, device, folder):
    check_compiled(the_librarys(folder, device), load(folder),
                   lambda model: run(model, device))


@sampled_formats(*OFTEN)
def test_hoistd_itself_has_every_tensor(hoistd, folder):
    """Scales included, for callers without a quantiser."""
    with hoist.connect(hoistd.socket) as session:
        for rule in ("block", "module"):
            model = session.register(folder, rule, groups=rule)
            assert {one.name for group in model.groups
                    for one in group.tensors} == {
                        *load_file(folder / "model.safetensors")}


# --- What is refused.


@pytest.mark.parametrize("method", ["gptq", "awq", "quanto", "hqq", "modelopt",
                                    "a method of tomorrow"])
def test_another_quantiser_is_refused_by_name(hoistd, tmp_path, base, method):
    write(tmp_path, base, load_file(base / "model.safetensors"),
          quant_method=method, bits=4)
    with pytest.raises(hoist.Unimplemented,
                       match=f"{method}: hoist.load knows.*hoist.attach"):
        hoist.load(lambda: transformers.LlamaForCausalLM(config()), tmp_path)


@pytest.mark.parametrize("declared", [True, False])
def test_a_folder_that_quanto_wrote_is_refused(hoistd, tmp_path, base,
                                               declared):
    """Its config.json says nothing; quanto_qmap.json does, beside it."""
    saved: dict[str, torch.Tensor] = {}
    for name, value in load_file(base / "model.safetensors").items():
        if "_proj." in name:
            scale = value.abs().amax(1, keepdim=True) / 127
            saved[f"{name}._data"] = (value / scale).round().to(torch.int8)
            saved[f"{name}._scale"] = scale
        else:
            saved[name] = value
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    if declared:
        (tmp_path / "quanto_qmap.json").write_text(json.dumps({
            name.removesuffix(".weight._data"):
            {"weights": "qint8", "activations": "none"}
            for name in saved if name.endswith("._data")}))
    with pytest.raises(hoist.HoistError, match=(
            "quanto_qmap.json says .*from_pretrained.*hoist.attach" if declared
            else r"none of the files: .*q_proj\.weight")) as refused:
        hoist.load(lambda: transformers.LlamaForCausalLM(config()), tmp_path)
    assert isinstance(refused.value, hoist.Unimplemented if declared
                      else hoist.NotFound)
    assert hoistd.tier("HOST")["used_bytes"] == 0


@pytest.mark.parametrize("bits, kind, strategy", [
    (4, "int", "group"), (8, "int", "channel"), (8, "float", "channel"),
    (4, "float", "tensor_group")])
def test_weights_that_the_first_pass_would_unpack_are_refused(
        hoistd, device, tmp_path, base, bits, kind, strategy):
    write_compressed(base, tmp_path, num_bits=bits, type=kind,
                     strategy=strategy,
                     group_size={"group": 32, "tensor_group": 16}.get(strategy))
    with pytest.raises(hoist.Unimplemented,
                       match="compressed-tensors: .*use_optimized_inference.*"
                       "dequantize=True.*hoist.attach"):
        load(tmp_path)
    assert hoistd.tier("HOST")["used_bytes"] == 0
    expected = run(the_librarys(tmp_path, device), device)
    unpacked = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=DTYPE, quantization_config=transformers
        .CompressedTensorsConfig(dequantize=True)).eval()
    hoist.attach(unpacked, 0.6)
    assert_equal_outputs(run(unpacked, device), expected)


def test_mxfp4_is_unpacked_only_if_it_is_told(hoistd, device, tmp_path):
    """The library unpacks its bytes, or shuffles them for triton's kernels."""
    write_mxfp4(tmp_path)
    with pytest.raises(hoist.Unimplemented,
                       match="mxfp4: .*repacks.*dequantize=True.*hoist.attach"):
        load(tmp_path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_a_version_that_unpacks_in_another_way_is_refused(
        hoistd, tmp_path, base, monkeypatch):
    quantizer = pytest.importorskip(
        "transformers.quantizers.quantizer_finegrained_fp8")
    monkeypatch.setattr(quantizer.FineGrainedFP8HfQuantizer,
                        "get_load_operations", lambda self: {})
    WRITERS["fp8 blocks unpacked"](base, tmp_path)
    with pytest.raises(hoist.Unimplemented,
                       match="fp8: .*by no converter.*hoist.attach"):
        load(tmp_path)


def test_unpacked_weights_of_two_types_are_two_models(hoistd, device, tmp_path,
                                                      base):
    WRITERS["mxfp4 unpacked"](base, tmp_path)
    said = transformers.AutoConfig.from_pretrained(tmp_path)
    loaded = {dtype: hoist.load(
        lambda: transformers.GptOssForCausalLM(said), tmp_path, 0.6,
        dtype=dtype).eval() for dtype in (torch.float16, torch.float32)}
    for dtype, one in loaded.items():
        expected = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=dtype, device_map={"": device}).eval()
        assert_equal_outputs(run(one, device), run(expected, device),
                             str(dtype))


@pytest.mark.only_cuda("on the emulated device the CPU computes")
@pytest.mark.parametrize("full", [False, True])
def test_the_gpu_unpacks_weights_or_else_the_cpu(hoistd, device, tmp_path, base,
                                                 monkeypatch, full):
    """full: the library's operation finds no memory on the GPU."""
    library = pytest.importorskip("transformers.integrations.mxfp4")
    convert, devices = library.Mxfp4Dequantize.convert, set()

    def recorded(self: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        found = {one.device.type for value in tensors.values() for one in
                 (value if isinstance(value, list) else [value])}
        devices.update(found)
        if full and "cuda" in found:
            raise torch.OutOfMemoryError("as it is told")
        return convert(self, tensors, *args, **kwargs)

    WRITERS["mxfp4 unpacked"](base, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(library.Mxfp4Dequantize, "convert", recorded)
        loaded = load(tmp_path)
    assert devices == {"meta", "cuda", *["cpu"] * full}
    assert_equal_outputs(run(loaded, device),
                         run(the_librarys(tmp_path, device), device))


@pytest.mark.only_emulated("a GPU has kernels for it")
def test_weights_that_the_library_would_unpack_are_refused(hoistd, tmp_path,
                                                           base):
    WRITERS["fp8 blocks"](base, tmp_path)
    with pytest.raises(hoist.Unimplemented,
                       match="fp8: .*unpacks.*no kernels.*dequantize=True.*"
                       "hoist.attach"):
        load(tmp_path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


@sampled_formats(*OFTEN, "compressed-tensors nvfp4 unpacked")
def test_each_tensor_of_a_weight_is_needed(hoistd, tmp_path, folder):
    """None is taken without one, and none is published."""
    saved = load_file(folder / "model.safetensors")
    metadata = metadata_of(folder)
    weight = ("layers.0.mlp.experts.down_proj" if "mxfp4" in folder.name else
              "layers.0.self_attn.q_proj.")
    parts = [name for name in saved if weight in name
             and not name.endswith(("bias", *NEEDLESS))]
    assert len(parts) > 1
    (tmp_path / "config.json").write_bytes(
        (folder / "config.json").read_bytes())
    for lost in parts:
        save_file({name: value for name, value in saved.items()
                   if name != lost}, tmp_path / "model.safetensors",
                  metadata=metadata)
        with pytest.raises(hoist.NotFound, match="none of the files.*"
                           + re.escape(lost)):
            load(tmp_path)
        assert hoistd.tier("HOST")["used_bytes"] == 0, lost


@pytest.mark.parametrize("act", LATE)
@pytest.mark.parametrize("folder", ["mxfp4 unpacked"], indirect=True)
def test_a_load_that_fails_at_the_last_group_leaves_nothing_there(
        make_hoistd, device, monkeypatch, folder, act):
    """No lease, and neither the file's model nor the groups before."""
    integration = pytest.importorskip("transformers.integrations.mxfp4")
    convert = integration.Mxfp4Dequantize.convert
    daemon = make_hoistd()
    do, undo = LATE[act]
    calls = 0

    def late(self: Any, given: Any, *args: Any, **options: Any) -> Any:
        nonlocal calls
        meta = all(one.is_meta for value in given.values() for one in value)
        calls += not meta
        if not meta and calls == 6:  # Two for each of three layers.
            do(daemon)
        return convert(self, given, *args, **options)

    monkeypatch.setattr(integration.Mxfp4Dequantize, "convert", late)
    with pytest.raises((hoist.HoistError, KeyboardInterrupt)) as raised:
        load(folder, deadline=1)
    assert calls == 6, raised.value
    undo(daemon)
    until(lambda: not models_in(daemon))
    assert int(daemon.status()["leases"]) == 0
    assert_all_may_go(daemon)
    loaded = load(folder)  # From the begin.
    assert calls == 12
    assert_equal_outputs(run(loaded, device),
                         run(the_librarys(folder, device), device))


@sampled_formats(*OFTEN)
def test_what_stays_packed_is_not_cast_once_more(hoistd, device, folder):
    """Its layers unpack it. Plain weights are cast as any are."""
    cast = {"storage_dtype": torch.float8_e4m3fn, "skip": ()}
    if "unpacked" not in folder.name:
        with pytest.raises(hoist.InvalidArgument, match="storage_dtype=.*leave "
                           "it out"):
            load(folder, **cast)
        return
    theirs = hoist.attach(the_librarys(folder, device), 0.6, **cast)
    loaded = load(folder, **cast)
    assert_equal_outputs(run(loaded, device), run(theirs, device))


@pytest.mark.parametrize("folder", ["bitsandbytes nf4"], indirect=True)
def test_a_module_that_is_made_already_is_not_turned_into_another(hoistd,
                                                                  folder):
    said = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        module = transformers.LlamaForCausalLM(said)
    kinds = [type(one) for one in module.modules()]
    with pytest.raises(hoist.Unimplemented, match="bitsandbytes"):
        hoist.load(module, folder)
    assert [type(one) for one in module.modules()] == kinds
