"""LoRA adapters come, change and go over a base whose weights live in hoist."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from families import FAMILIES  # noqa: E402
from hoist.nn import IdleTensor  # noqa: E402
from torch import nn  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
TARGETS = {"first": (4, ["q_proj", "v_proj"]),
           "second": (2, ["q_proj", "up_proj", "down_proj"])}


def a_base(device: torch.device) -> nn.Module:
    return FAMILIES["llama"].make().to(device).requires_grad_(False)


def run(module: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return FAMILIES["llama"].ways["forward"](
            module, torch.device(KIND)).logits


def a_config(name: str) -> Any:
    rank, targets = TARGETS[name]
    # Not peft's own start, which changes nothing.
    return peft.LoraConfig(r=rank, target_modules=targets,
                           init_lora_weights=False)


def with_adapters(base: nn.Module) -> Any:
    """The same adapters on each base, the first one active."""
    torch.manual_seed(7)
    with_first = peft.get_peft_model(base, a_config("first"),
                                     adapter_name="first")
    with_first.add_adapter("second", a_config("second"))
    return with_first.eval()


@pytest.fixture
def references(device: torch.device) -> dict[str, torch.Tensor]:
    """Outputs of the resident model: without, and with each adapter."""
    found = {"base": run(a_base(device))}
    model = with_adapters(a_base(device))
    for name in TARGETS:
        model.set_adapter(name)
        found[name] = run(model)
    assert not torch.equal(found["first"], found["base"])
    assert not torch.equal(found["first"], found["second"])
    return found


def what_hoistd_has(hoistd: Any) -> Any:
    models = json.loads(hoistd.ctl("models", "--json"))["models"]
    assert models
    return ([(one["name"], one["fingerprint"], one["groups"],
              one["image_bytes"]) for one in models],
            hoistd.tier("HOST")["used_bytes"])


@pytest.mark.parametrize("idle", ["cpu", "slot"])
@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_adapters_load_swap_and_unload_as_on_the_resident(
        hoistd, device, references, groups, idle):
    base = a_base(device)
    hoist.attach(base, 0.8, groups=groups, idle=idle)
    assert_equal_outputs(run(base), references["base"])
    model = with_adapters(base)
    for name in ("first", "second", "first", "first", "second"):
        model.set_adapter(name)
        assert_equal_outputs(run(model), references[name], name)
    with model.disable_adapter():
        assert_equal_outputs(run(model), references["base"], "disabled")
    assert model.unload() is base
    for _ in range(2):
        assert_equal_outputs(run(base), references["base"], "unloaded")
    hoist.check(base)
    hoist.detach(base)
    assert_equal_outputs(run(base), references["base"], "detached")


def test_the_base_is_neither_copied_nor_handed_over_again(
        hoistd, device, references):
    base = a_base(device)
    hoist.attach(base, 0.8)
    run(base)
    run(base)
    names = [name for name, _ in base.named_parameters()]
    before, moved = what_hoistd_has(hoistd), hoistd.counters()
    published = hoist.stats(base)
    model = with_adapters(base)
    for name in ("first", "second"):
        model.set_adapter(name)
        run(model)
    model.unload()
    run(base)
    after = hoist.stats(base)
    assert what_hoistd_has(hoistd) == before
    assert (after.model, after.groups, after.model_bytes) == (
        published.model, published.groups, published.model_bytes)
    assert after.unplanned == published.unplanned
    now = hoistd.counters()
    assert now["device_to_host_bytes"] == moved["device_to_host_bytes"]
    streamed = now["host_to_device_bytes"] - moved["host_to_device_bytes"]
    # Three passes, and what is on its way for the next one.
    assert streamed <= 4 * after.streamed_bytes
    assert [name for name, _ in base.named_parameters()] == names
    assert all(isinstance(one, IdleTensor) for one in base.parameters())


def test_merging_is_refused_and_leaves_all_as_it_was(hoistd, device,
                                                     references):
    base = a_base(device)
    hoist.attach(base, 0.8)
    model = with_adapters(base)
    weights = {name: one.clone() for name, one in model.named_parameters()
               if "base_layer" in name}
    assert weights
    for merge in (model.merge_adapter, model.merge_and_unload):
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            merge()
    model.set_adapter("first")
    assert_equal_outputs(run(model), references["first"])
    for name, one in model.named_parameters():
        if name in weights:
            assert same_bytes(one, weights[name]), name


@pytest.mark.parametrize("budget", [0.8, 1.0])
def test_unmerging_is_refused_and_leaves_all_as_it_was(hoistd, device,
                                                       budget):
    """Also where peft does it by itself, as adapters are disabled."""
    model = with_adapters(a_base(device))
    model.merge_adapter()
    expected = run(model)
    hoist.attach(model, budget)
    for _ in range(2):
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            model.unmerge_adapter()
        assert_equal_outputs(run(model), expected)
        with model.disable_adapter(), pytest.raises(
                hoist.FailedPrecondition, match="hoist.detach"):
            run(model)
        assert_equal_outputs(run(model), expected)
    hoist.detach(model)
    assert_equal_outputs(run(model), expected)
    model.unmerge_adapter()
    run(model)


def test_after_detach_merging_works(hoistd, device, references):
    base = a_base(device)
    hoist.attach(base, 0.8)
    model = with_adapters(base)
    run(model)
    hoist.detach(base)
    assert_equal_outputs(run(model), references["first"])
    merged = run(model.merge_and_unload())
    resident = run(with_adapters(a_base(device)).merge_and_unload())
    assert_equal_outputs(merged, resident)


def test_adapters_are_saved_and_loaded_from_files(hoistd, device, references,
                                                  tmp_path):
    base = a_base(device)
    hoist.attach(base, 0.8)
    model = with_adapters(base)
    model.save_pretrained(tmp_path)
    size = sum(one.stat().st_size for one in tmp_path.rglob("*.safetensors"))
    assert 0 < size < hoist.stats(base).model_bytes
    assert model.unload() is base
    again = peft.PeftModel.from_pretrained(
        base, tmp_path / "first", adapter_name="first").eval()
    assert_equal_outputs(run(again), references["first"])
    again.load_adapter(tmp_path / "second", "second")
    again.set_adapter("second")
    assert_equal_outputs(run(again.eval()), references["second"])
    again.delete_adapter("second")
    again.set_adapter("first")
    assert_equal_outputs(run(again), references["first"])
    assert_equal_outputs(run(again.unload()), references["base"])


@pytest.mark.parametrize("budget", [0.8, 1.0])
def test_an_adapter_that_was_there_at_attach_is_swapped_in_place(
        hoistd, device, references, tmp_path, budget):
    """It is the worker's own, wherever it was."""
    hotswap = pytest.importorskip("peft.utils.hotswap")
    torch.manual_seed(11)
    other = peft.get_peft_model(a_base(device), a_config("first"),
                                adapter_name="first").eval()
    other.save_pretrained(tmp_path)
    expected = run(other)
    model = peft.get_peft_model(a_base(torch.device("cpu")), a_config("first"),
                                adapter_name="first").eval()
    before = run(copy.deepcopy(model).to(device))
    assert not torch.equal(before, expected)
    hoist.attach(model, budget, device=device)
    assert_equal_outputs(run(model), before)
    hotswap.hotswap_adapter(model, str(tmp_path / "first"),
                            adapter_name="first",
                            torch_device=str(device))
    for _ in range(2):
        assert_equal_outputs(run(model), expected)
    hoist.check(model)
    hoist.detach(model)


@pytest.mark.parametrize("groups", ["block", "leaf"])
def test_a_model_attached_with_its_adapters_swaps_them(hoistd, device,
                                                       references, groups):
    model = with_adapters(a_base(device))
    hoist.attach(model, 0.8, groups=groups)
    for name in ("first", "second", "first"):
        model.set_adapter(name)
        assert_equal_outputs(run(model), references[name], name)
    with model.disable_adapter():
        assert_equal_outputs(run(model), references["base"], "disabled")
    hoist.detach(model)
    assert_equal_outputs(run(model), references["first"], "detached")
