"""MiniLM with its real weights, end to end: sentences to vectors."""

from __future__ import annotations

import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hoist  # noqa: E402
from compiling import CountingBackend, fresh_compiler  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from torch import nn  # noqa: E402

MIB = 1 << 20
FOLDER = pathlib.Path(__file__).resolve().parents[3] / "build/models/minilm"
SENTENCES = ["A cat sits on the mat.", "The cat is sitting on a rug.",
             "Interest rates rose by half a percent."]

pytestmark = [
    pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(),
                       reason=f"{FOLDER} is not there; scripts/setup.sh"),
    # Less device memory than the model has weights.
    pytest.mark.hoistd(pool=80 * MIB, host=256 * MIB)]


def resident(device: torch.device) -> nn.Module:
    model = transformers.AutoModel.from_pretrained(
        FOLDER, dtype=torch.float32)
    return model.to(device).eval().requires_grad_(False)


def from_config() -> nn.Module:
    config = transformers.AutoConfig.from_pretrained(FOLDER)
    return transformers.AutoModel.from_config(config).eval()


def embed(model: nn.Module, device: torch.device) -> torch.Tensor:
    """As sentence-transformers does: the mean over tokens, of length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt").to(device)
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))


@pytest.fixture
def expected(device: torch.device) -> torch.Tensor:
    found = embed(resident(device), device)
    alike = found @ found.T
    assert alike[0, 1] > 0.7 > 0.3 > alike[0, 2]  # These are real weights.
    return found


def mixed(name: str, module: nn.Module) -> str | None:
    if name.startswith("encoder.layer.") and name.count(".") == 2:
        return f"layers {int(name.rpartition('.')[2]) // 3}"
    return None


@pytest.mark.parametrize("groups", ["block", "leaf", mixed],
                         ids=["block", "leaf", "mixed"])
def test_attached_minilm_equals_the_resident(hoistd, device, expected,
                                             groups):
    model = resident(device)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    hoist.attach(model, groups=groups)
    for _ in range(3):
        assert_equal_outputs(embed(model, device), expected)
    hoist.check(model)
    stats = hoist.stats(model)
    assert stats.budget_bytes < stats.model_bytes and stats.streamed_bytes
    for name, one in model.state_dict().items():
        assert same_bytes(one, before[name]), name
    hoist.detach(model)
    assert_equal_outputs(embed(model, device), expected)


@pytest.mark.parametrize("groups", ["block", "leaf", mixed],
                         ids=["block", "leaf", "mixed"])
def test_loaded_minilm_equals_the_resident(hoistd, device, expected, groups):
    model = hoist.load(from_config, FOLDER, groups=groups)
    for _ in range(3):
        assert_equal_outputs(embed(model, device), expected)
    hoist.check(model)
    kept = resident(device)
    for name, one in kept.state_dict().items():
        assert same_bytes(model.state_dict()[name], one), name


@pytest.mark.hoistd(pool=160 * MIB, host=256 * MIB)
def test_two_loads_of_minilm_are_one_model_in_hoistd(hoistd, device,
                                                     expected):
    first = hoist.load(from_config, FOLDER, 60 * MIB)
    embed(first, device)  # All of it is on the host by then.
    used = hoistd.tier("HOST")["used_bytes"]
    second = hoist.load(from_config, FOLDER / "model.safetensors", 60 * MIB,
                        name=hoist.stats(first).model)
    assert hoistd.tier("HOST")["used_bytes"] == used
    for model in (first, second, first):
        assert_equal_outputs(embed(model, device), expected)


@pytest.mark.nightly
def test_compiled_minilm_equals_the_compiled_resident(hoistd, device):
    with fresh_compiler():
        compiled = torch.compile(resident(device), backend="aot_eager")
        expected = embed(compiled, device)
    with fresh_compiler():
        model, counting = resident(device), CountingBackend()
        hoist.attach(model, idle="slot")
        compiled = torch.compile(model, backend=counting)
        for _ in range(2):
            assert_equal_outputs(embed(compiled, device), expected)
        warm = counting.compilations
        for _ in range(2):
            assert_equal_outputs(embed(compiled, device), expected)
        assert counting.compilations == warm > 0
