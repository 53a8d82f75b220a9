"""hoist.load of a GGUF file into transformers' models: plain weights, unpacked
once for all workers, equal to its from_pretrained(gguf_file=)."""

from __future__ import annotations

import importlib
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
pytest.importorskip("transformers.core_model_loading")

import hoist  # noqa: E402
from compiling import (CountingBackend, fresh_compiler,  # noqa: E402
                       plenty_of_code)
from equal import assert_equal_outputs  # noqa: E402
from failing import LATE, assert_all_may_go, models_in  # noqa: E402
from gguf_files import KINDS, write as write_image  # noqa: E402
from gguf_language import FAMILIES, Family, write  # noqa: E402
from loaded import (assert_same_state, check_equals,  # noqa: E402
                    check_outlives, check_shared)
from real_daemon import until  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

Path = pathlib.Path
DTYPE = torch.bfloat16
FILE = "m.gguf"
WEIGHTS, MIDDLE = 21, 12  # Of "llama"; one of its second layer.


@pytest.fixture
def folder(request, tmp_path) -> Path:
    write(tmp_path / FILE, FAMILIES[getattr(request, "param", "llama")])
    return tmp_path


all_families = pytest.mark.parametrize(
    "folder", sampled(FAMILIES, *(FAMILIES.keys() - {"phi3"})), indirect=True)


def the_librarys(folder: Path, dtype: torch.dtype | None = DTYPE) -> Any:
    made = getattr(transformers, family_of(folder).model)
    return made.from_pretrained(folder, gguf_file=FILE, dtype=dtype).eval()


def load(folder: Path, budget: Any = 0.6, dtype: torch.dtype | None = DTYPE,
         **options: Any) -> Any:
    said = transformers.AutoConfig.from_pretrained(folder, gguf_file=FILE)
    kind = getattr(transformers, family_of(folder).model)
    return hoist.load(lambda: getattr(kind, "from_config", kind)(said),
                      folder / FILE, budget, dtype=dtype, **options).eval()


def family_of(folder: Path) -> Family:
    fields = gguf.GGUFReader(folder / FILE).fields
    return FAMILIES[fields["general.architecture"].contents()]


def run(model: nn.Module, device: torch.device) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(10, device=device).reshape(2, 5))[0]


@all_families
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_it_equals_the_librarys_own(hoistd, device, folder, groups):
    theirs = the_librarys(folder).to(device)
    check_equals(theirs, load(folder, groups=groups),
                 lambda one: run(one, device))


@pytest.mark.parametrize("kinds, dtype, folder, computed", [
    (("F32",), None, "qwen2", False), (("F32",), None, "llama", True),
    (("BF16", "F16"), torch.float16, "llama", True),
    (KINDS, torch.float16, "t5encoder", True)], indirect=["folder"])
def test_in_other_types_it_equals_the_librarys(hoistd, device, folder, kinds,
                                               dtype, computed):
    """What the library would not change is no computed model's. It keeps some
    weights in float32."""
    write(folder / FILE, family_of(folder), kinds)
    theirs, loaded = the_librarys(folder, dtype), load(folder, dtype=dtype)
    assert_same_state(loaded, theirs)
    assert_equal_outputs(run(loaded, device), run(theirs.to(device), device))
    assert ("@computed" in hoist.stats(loaded).model) == computed


def test_it_is_cast_as_plain_weights_are(hoistd, device, folder):
    cast = {"storage_dtype": torch.float8_e4m3fn, "skip": ()}
    theirs = hoist.attach(the_librarys(folder).to(device), 0.6, **cast)
    assert_equal_outputs(run(load(folder, **cast), device), run(theirs, device))


def test_workers_share_what_the_first_one_unpacked(hoistd, device, folder,
                                                   monkeypatch):
    loaded = load(folder, 1.0)
    run(loaded, device)
    types = unpacked_types(monkeypatch)
    check_shared(hoistd, loaded,
                 lambda **options: load(folder, 1.0, **options),
                 lambda one: run(one, device))
    assert all(rows == 1 for rows, _ in types)  # To ask for the type.


def unpacked_types(monkeypatch: Any) -> list[tuple[int, str]]:
    """The calls of the gguf package from here on: rows and types."""
    calls: list[tuple[int, str]] = []
    dequantize = gguf.dequantize

    def recorded(data: Any, kind: Any) -> Any:
        calls.append((len(data), kind.name))
        return dequantize(data, kind)

    monkeypatch.setattr(gguf, "dequantize", recorded)
    return calls


@pytest.mark.real_time
@pytest.mark.parametrize("folder", ["llama", "lfm2"], indirect=True)
def test_it_outlives_hoistd(make_hoistd, device, folder):
    theirs = the_librarys(folder).to(device)
    expected = run(theirs, device)
    daemon = make_hoistd()
    loaded = load(folder)
    check_outlives(daemon, loaded, lambda one: run(one, device), expected)
    assert_same_state(loaded, theirs)


@pytest.mark.parametrize("folder", ["llama", "lfm2"], indirect=True)
def test_it_is_saved_as_plain_weights(hoistd, device, tmp_path, folder):
    """The library itself refuses to save some of them."""
    theirs, loaded = the_librarys(folder), load(folder)
    run(loaded, device)
    loaded.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", dtype=DTYPE)
    assert not hasattr(again.config, "quantization_config")
    assert_same_state(again, theirs)


def test_adapters_go_on_top(hoistd, device, folder):
    peft = pytest.importorskip("peft")

    def adapted(model: nn.Module) -> nn.Module:
        torch.manual_seed(7)
        return peft.get_peft_model(model, peft.LoraConfig(
            r=4, target_modules=["q_proj", "down_proj"],
            init_lora_weights=False)).eval()

    expected = run(adapted(the_librarys(folder)).to(device), device)
    loaded = load(folder)
    plain = run(loaded, device)
    over = adapted(loaded)
    assert not torch.equal(expected, plain)
    for turn in range(2):
        assert_equal_outputs(run(over, device), expected, f"pass {turn}")
    assert over.unload() is loaded
    assert_equal_outputs(run(loaded, device), plain, "unloaded")
    hoist.check(loaded)


@pytest.mark.nightly
def test_it_is_compiled_as_the_librarys_own(hoistd, device, folder):
    with fresh_compiler(), plenty_of_code():
        expected = run(torch.compile(the_librarys(folder).to(device),
                                     backend="aot_eager"), device)
    loaded = load(folder)
    with fresh_compiler(), plenty_of_code():
        backend = CountingBackend()
        compiled = torch.compile(loaded, backend=backend)
        for turn in range(3):
            assert_equal_outputs(run(compiled, device), expected,
                                 f"pass {turn}")
        assert backend.compilations
    hoist.check(loaded)


# --- What is refused.


def make(family: str = "llama", **options: Any) -> Any:
    return lambda: FAMILIES[family].make(**options)


def test_another_modules_file_is_refused(hoistd, folder):
    with pytest.raises(hoist.InvalidArgument,
                       match=r"embed_tokens.*\(65, 256\) here, \(64, 256\)"):
        hoist.load(make(vocab_size=65), folder / FILE)
    with pytest.raises(hoist.NotFound, match="none of the files.*q_proj.bias"
                       ".*load the whole checkpoint, of this module$"):
        hoist.load(make(attention_bias=True), folder / FILE)
    with pytest.raises(hoist.InvalidArgument, match="token_embd.*output.weight "
                       "are one weight of the module, and differ"):
        hoist.load(make(tie_word_embeddings=True), folder / FILE)
    assert hoistd.tier("HOST")["used_bytes"] == 0


@pytest.mark.parametrize("lost", ["ffn_gate_exps", "ffn_up_exps"])
def test_experts_without_a_half_are_refused(hoistd, tmp_path, lost):
    """The library itself fills it with zeros."""
    write(tmp_path / FILE, FAMILIES["qwen3moe"], lost=f"blk.1.{lost}.weight")
    with pytest.raises(hoist.NotFound, match=f"experts.gate_up_proj.*lacks "
                       f"blk.1.{lost}.weight"):
        load(tmp_path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_blocks_that_the_library_does_not_unpack_are_refused(hoistd, tmp_path):
    write(tmp_path / FILE, FAMILIES["llama"], ("Q8_0", "I8"))
    with pytest.raises(hoist.Unimplemented, match="of I8, which the gguf "
                       "package does not unpack.*gguf_file=.*hoist.attach"):
        load(tmp_path)
    assert hoistd.tier("HOST")["used_bytes"] == 0


def test_an_architecture_that_the_library_does_not_load_is_refused(
        hoistd, tmp_path):
    write_image(tmp_path / FILE, {"token_embd.weight": torch.zeros(64, 256)},
                lambda name, at: "Q8_0")
    with pytest.raises(hoist.Unimplemented, match="does not load a "
                       "LlamaForCausalLM.*gguf_file=.*hoist.attach"):
        hoist.load(make(), tmp_path / FILE)
    gemma = transformers.GemmaConfig(hidden_size=32, num_hidden_layers=1)
    write(tmp_path / FILE, FAMILIES["llama"], arch="gemma")
    with pytest.raises(hoist.Unimplemented, match="architecture gemma is not "
                       "supported.*gguf_file=.*hoist.attach"):
        hoist.load(lambda: transformers.GemmaForCausalLM(gemma),
                   tmp_path / FILE)
    write_image(tmp_path / FILE, {  # One module of several.
        "text_encoders.t5xxl.transformer.shared.weight": torch.zeros(64, 256)},
        lambda name, at: "Q8_0")
    with pytest.raises(hoist.Unimplemented, match="does not load a "
                       "T5EncoderModel.*gguf_file=.*hoist.attach"):
        hoist.load(make("t5encoder"), tmp_path / FILE)
    assert hoistd.tier("HOST")["used_bytes"] == 0


@pytest.mark.parametrize("act", LATE)
def test_a_load_that_fails_in_the_middle_leaves_nothing_there(
        make_hoistd, device, monkeypatch, folder, act):
    """No lease, and neither the file's model nor the groups before."""
    write(folder / FILE, family_of(folder), ("Q8_0",))
    daemon = make_hoistd()
    do, undo = LATE[act]
    dequantize, calls = gguf.dequantize, 0

    def late(data: Any, kind: Any) -> Any:
        nonlocal calls
        calls += len(data) > 1  # One asks for the type.
        if len(data) > 1 and calls == MIDDLE:
            do(daemon)
        return dequantize(data, kind)

    monkeypatch.setattr(gguf, "dequantize", late)
    with pytest.raises((hoist.HoistError, KeyboardInterrupt)) as raised:
        load(folder, deadline=1)
    assert MIDDLE <= calls <= WEIGHTS, raised.value
    before = calls
    undo(daemon)
    until(lambda: not models_in(daemon))
    assert int(daemon.status()["leases"]) == 0
    assert_all_may_go(daemon)
    loaded = load(folder)  # From the begin.
    assert calls == before + WEIGHTS
    assert_equal_outputs(run(loaded, device),
                         run(the_librarys(folder).to(device), device))


def test_what_the_library_fails_at_is_refused_by_name(hoistd, folder,
                                                      monkeypatch):
    processor = importlib.import_module(
        "transformers.modeling_gguf_pytorch_utils").LlamaTensorProcessor
    monkeypatch.setattr(processor, "_reverse_permute_weights", lambda *_: 1 / 0)
    with pytest.raises(hoist.Unimplemented, match="does not make model.layers.0"
                       ".self_attn.q_proj.weight of .*attn_q.*gguf_file="):
        load(folder)
