"""Bytes of files lie on the host once, whatever groups they are staged in."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from families import FAMILIES  # noqa: E402


def bytes_of(folder) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def preload(hoistd, folder, name) -> int:
    """As `hoistctl load` does, by hoistd's own grouping; the bytes it read."""
    with hoist.connect(hoistd.socket) as session:
        for group in session.register(folder, name=name):
            session.stage(group, deadline=30).release()
    return hoistd.counters()["file_read_bytes"]


def assert_stored_once(hoistd, folder, read) -> None:
    host = hoistd.tier("HOST")
    assert host["used_bytes"] <= 1.01 * bytes_of(folder) + 64 * 1024, (
        "each byte once; 64 KiB are the pages of tensors of a few bytes")
    assert hoistd.counters()["file_read_bytes"] == read


@pytest.mark.parametrize("name", ["llama", "bert", "mixtral"])
def test_what_is_there_serves_every_grouping(hoistd, device, tmp_path,
                                                    name):
    """mixtral's experts are joined; llama's head is read by its own name."""
    family = FAMILIES[name]
    resident = family.make().to(device)
    family.make().save_pretrained(tmp_path)
    read = preload(hoistd, tmp_path, "preloaded")
    assert read > 0
    loaded = {groups: hoist.load(family.build, tmp_path, budget=0.8,
                                 groups=groups)
              for groups in ("block", "leaf")}
    with torch.no_grad():
        expected = family.run(resident, device)
        for groups, model in loaded.items():
            for turn in range(3):
                assert_equal_outputs(family.run(model, device), expected,
                                     f"by {groups}, pass {turn}")
            hoist.check(model)
    assert_stored_once(hoistd, tmp_path, read)
    assert hoistd.tier("HOST")["shared_bytes"] > 0
    assert hoistd.tier("DEVICE")["doubled_bytes"] > 0, "and it is shown"


def test_a_tied_head_is_stored_once(hoistd, device, tmp_path):
    def build():
        import transformers
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, vocab_size=512,
            tie_word_embeddings=True)).eval()

    torch.manual_seed(4)
    resident = build()
    resident.save_pretrained(tmp_path)
    resident.to(device)
    ids = torch.arange(8, device=device)[None]
    read = preload(hoistd, tmp_path, "tied")
    with torch.no_grad():
        expected = resident(ids).logits
        for groups in ("block", "leaf"):
            model = hoist.load(build, tmp_path, budget=0.9, groups=groups)
            assert model.lm_head.weight is model.model.embed_tokens.weight
            assert torch.equal(model(ids).logits, expected)
            assert torch.equal(model(ids).logits, expected)
    assert_stored_once(hoistd, tmp_path, read)


def test_leaves_first_then_blocks_take_a_few_copies(hoistd, device, tmp_path):
    family = FAMILIES["bert"]
    family.make().save_pretrained(tmp_path)
    resident = family.make().to(device)
    with torch.no_grad():
        expected = family.run(resident, device)
        by_leaf = hoist.load(family.build, tmp_path, budget=0.8, groups="leaf")
        assert_equal_outputs(family.run(by_leaf, device), expected)
        by_block = hoist.load(family.build, tmp_path, budget=0.8)
        assert_equal_outputs(family.run(by_block, device), expected)
    host = hoistd.tier("HOST")
    assert host["used_bytes"] <= 1.01 * bytes_of(tmp_path) + 64 * 1024
    assert hoistd.counters()["file_read_bytes"] <= bytes_of(tmp_path)
