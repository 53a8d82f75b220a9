"""What users do with a pipeline under hoist: adapters, conversions, saving; and
what diffusers and accelerate are told of its modules."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
accelerate = pytest.importorskip("accelerate")
safetensors = pytest.importorskip("safetensors.torch")

import hoist  # noqa: E402
from diffusers.hooks import group_offloading  # noqa: E402
from equal import same_bytes  # noqa: E402
from hoist.nn._api import libraries  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from pipelines import KINDS  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
MIB = 1 << 20
FLUX = KINDS["flux"]


@pytest.fixture
def pipe(hoistd: Any, device: torch.device) -> Any:
    return hoist.attach_pipeline(FLUX.make(), 4 * MIB, device=device)


@pytest.fixture
def resident(device: torch.device) -> Any:
    return FLUX.make().to(device)


@pytest.fixture
def adapters(tmp_path: Any) -> dict[str, str]:
    """Two, as diffusers saves them, by name."""
    found = {}
    for seed, name in enumerate(("formal", "brief")):
        torch.manual_seed(seed)
        pipe = FLUX.make()
        pipe.transformer.add_adapter(peft.LoraConfig(
            r=4, target_modules=["to_q", "to_v", "proj_out"],
            init_lora_weights=False))
        found[name] = str(tmp_path / name)
        diffusers.FluxPipeline.save_lora_weights(
            found[name], transformer_lora_layers=(
                peft.get_peft_model_state_dict(pipe.transformer)))
    return found


def load(pipe: Any, adapters: dict[str, str]) -> None:
    for name, path in adapters.items():
        pipe.load_lora_weights(path, adapter_name=name)


def same_image(pipe: Any, other: Any) -> bool:
    ours, theirs = FLUX.run(pipe), FLUX.run(other)
    assert len(set(theirs.tobytes())) > 100  # A picture, not one colour.
    return bool(ours.tobytes() == theirs.tobytes())


def modules_of(pipe: Any) -> list[nn.Module]:
    return [one for one in pipe.components.values()
            if isinstance(one, nn.Module)]


def assert_as_it_was(pipe: Any, resident: Any) -> None:
    """Attached, no hooks of others, and right."""
    for module in modules_of(pipe):
        assert attachment_of(module) is not None
        for one in module.modules():
            assert not hasattr(one, "_hf_hook")
            registry = getattr(one, "_diffusers_hook", None)
            assert registry is None or not registry.hooks
    assert same_image(pipe, resident)


# Adapters.


def test_adapters_are_loaded_set_weighted_and_unloaded(pipe, resident,
                                                       adapters):
    base = FLUX.run(resident)
    load(pipe, adapters)
    load(resident, adapters)
    seen = {base.tobytes()}
    for names, weights in (("formal", None), ("brief", 0.5),
                           (["formal", "brief"], [0.3, 0.9])):
        for one in pipe, resident:
            one.set_adapters(names, weights)
        assert same_image(pipe, resident), names
        seen.add(FLUX.run(pipe).tobytes())
    assert len(seen) == 4
    for change in ("disable_lora", "enable_lora", "unload_lora_weights"):
        for one in pipe, resident:
            getattr(one, change)()
        assert same_image(pipe, resident), change
    assert FLUX.run(pipe).tobytes() == base.tobytes()
    granted = hoist.stats(pipe).components.values()
    assert sum(one.budget_bytes for one in granted) <= 4 * MIB


def test_adapters_are_swapped_in_place(pipe, resident, adapters):
    FLUX.run(pipe)  # So that the denoiser is watched for being called.
    images = []
    for one in pipe, resident:
        one.enable_lora_hotswap(target_rank=8)
        for path, again in zip(adapters.values(), (False, True)):
            one.load_lora_weights(path, adapter_name="one", hotswap=again)
            images.append(FLUX.run(one).tobytes())
    assert images[:2] == images[2:]
    assert images[0] != images[1]


def test_adapters_that_were_there_before_work(hoistd, device, resident,
                                              adapters):
    pipe = FLUX.make()
    for one in pipe, resident:
        load(one, adapters)
        one.set_adapters("brief")
    hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    assert same_image(pipe, resident)
    for one in pipe, resident:
        one.set_adapters("formal")
    assert same_image(pipe, resident)
    hoist.detach(pipe)
    assert same_image(pipe.to(device), resident)


@pytest.mark.parametrize("scale", sampled([1.0, 0.5], 0.5))
def test_fusing_is_refused_and_changes_nothing(pipe, resident, adapters,
                                               scale):
    for one in pipe, resident:
        load(one, adapters)
        one.set_adapters(["formal", "brief"])
    for fuse in (lambda: pipe.fuse_lora(lora_scale=scale),
                 lambda: pipe.transformer.fuse_lora(lora_scale=scale),
                 lambda: pipe.unfuse_lora(),
                 lambda: pipe.transformer.unfuse_lora()):
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            fuse()
    assert not pipe.fused_loras
    assert same_image(pipe, resident)
    hoist.detach(pipe)
    for one in pipe, resident:
        one.to(KIND).fuse_lora(lora_scale=scale)
    assert same_image(pipe, resident)


def test_unfusing_what_was_fused_before_is_refused(hoistd, device, resident,
                                                   adapters):
    pipe = FLUX.make()
    resident.to("cpu")  # Fused on one device, they are the same weights.
    for one in pipe, resident:
        load(one, adapters)
        one.fuse_lora(adapter_names=["formal"])
    resident.to(device)
    hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    assert same_image(pipe, resident)
    with pytest.raises(hoist.FailedPrecondition, match="unfuse_lora writes"):
        pipe.unfuse_lora()
    assert same_image(pipe, resident)


# Conversions, and where it is.


def test_moving_to_where_it_computes_is_nothing(pipe, resident, device):
    assert pipe.to(device) is pipe
    assert pipe.to(device, torch.float32) is pipe
    assert pipe.transformer.to(device) is pipe.transformer
    assert_as_it_was(pipe, resident)


@pytest.mark.parametrize("arguments", [
    pytest.param((torch.float16,)),
    *(pytest.param(one, marks=pytest.mark.nightly) for one in (
        ("meta",), ("cpu" if KIND == "cuda" else "meta", torch.float32)))])
def test_a_refused_conversion_leaves_all_as_it_was(pipe, resident, arguments):
    with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
        pipe.to(*arguments)
    with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
        pipe.to(**dict(zip(("dtype",) if isinstance(
            arguments[0], torch.dtype) else ("device", "dtype"), arguments)))
    for module in pipe.text_encoder, pipe.transformer:
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            module.to(*arguments)
    assert_as_it_was(pipe, resident)


def test_a_pipeline_that_casts_its_vae_in_each_call_is_refused_at_once(
        hoistd, device):
    pipe = KINDS["sdxl"].make(torch.float16)
    before = {name: one for name, one in pipe.vae.named_parameters()}
    assert pipe.vae.config.force_upcast
    with pytest.raises(hoist.FailedPrecondition, match="force_upcast"):
        hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    assert all(one is before[name]
               for name, one in pipe.vae.named_parameters())
    pipe.vae.register_to_config(force_upcast=False)
    hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    hoist.detach(pipe)


def test_of_a_pipeline_with_one_attached_module_none_is_converted(
        hoistd, device, resident):
    pipe = FLUX.make()
    hoist.attach(pipe.transformer, 4 * MIB, device=device)
    with pytest.raises(hoist.FailedPrecondition, match="float16"):
        pipe.to(torch.float16)
    assert pipe.vae.dtype == torch.float32
    assert next(pipe.vae.parameters()).device.type == "cpu"
    pipe.to(device)
    assert next(pipe.vae.parameters()).device.type == KIND
    assert same_image(pipe, resident)


def test_its_device_is_the_one_that_computes(hoistd, device):
    for left in [*libraries._attached]:  # By a test that failed, or leaked.
        with contextlib.suppress(hoist.HoistError):
            hoist.detach(left)
    other = FLUX.make()
    classes = [cls for module in modules_of(other)
               for cls in type(module).__mro__ if "device" in vars(cls)]
    assert len({*classes}) == 2  # transformers' and diffusers'.
    before = [vars(one)["device"] for one in classes]
    pipe = hoist.attach_pipeline(FLUX.make(), 4 * MIB, device=device)
    assert pipe._execution_device.type == KIND
    assert pipe.device.type == KIND
    for module in modules_of(pipe):
        assert module.device.type == KIND
    assert pipe.text_encoder_2.encoder.device.type == KIND
    assert group_offloading._is_group_offload_enabled(pipe.transformer)
    assert other.transformer.device.type == "cpu"
    assert not group_offloading._is_group_offload_enabled(other.transformer)
    torch.Generator(pipe._execution_device)
    hoist.detach(pipe)
    after = [vars(one)["device"] for one in classes]
    # It was ours before, if a test left a module attached that was let go of since.
    assert after == before or not any(
        one.fget.__module__.startswith("hoist") for one in after)
    assert not group_offloading._is_group_offload_enabled(pipe.transformer)
    for module in modules_of(pipe):
        assert module.device.type == "cpu"
        assert "_hoist_device" not in vars(module)


def test_what_it_saves_are_its_true_weights(pipe, resident, tmp_path):
    for when in "before", "after":
        pipe.save_pretrained(tmp_path / when)
        FLUX.run(pipe)
    resident.to("cpu").save_pretrained(tmp_path / "resident")
    files = list((tmp_path / "resident").rglob("*.safetensors"))
    assert len(files) == 4
    for file in files:
        expected = safetensors.load_file(file)
        for when in "before", "after":
            found = safetensors.load_file(
                tmp_path / when / file.relative_to(tmp_path / "resident"))
            assert found.keys() == expected.keys()
            for name, one in expected.items():
                assert same_bytes(found[name], one), name
    again = diffusers.FluxPipeline.from_pretrained(tmp_path / "after")
    again.set_progress_bar_config(disable=True)
    assert FLUX.run(again.to(KIND)).tobytes() == FLUX.run(pipe).tobytes()


# What others would do to its modules.

OTHERS: dict[str, Callable[[Any], Any]] = {
    "diffusers' group offloading": lambda pipe: (
        group_offloading.apply_group_offloading(
            pipe.text_encoder_2, torch.device("cpu"),
            offload_type="leaf_level")),
    "of a model": lambda pipe: pipe.transformer.enable_group_offload(
        torch.device("cpu"), num_blocks_per_group=1),
    "of a part": lambda pipe: group_offloading.apply_group_offloading(
        pipe.transformer.transformer_blocks, torch.device("cpu"),
        offload_type="leaf_level"),
    "of the pipeline": lambda pipe: pipe.enable_group_offload(
        torch.device("cpu"), num_blocks_per_group=1),
    "layerwise casting": lambda pipe: (
        pipe.transformer.enable_layerwise_casting(
            torch.float8_e4m3fn, torch.float32)),
    "model offload": lambda pipe: pipe.enable_model_cpu_offload(device="cpu"),
    "sequential offload": lambda pipe: pipe.enable_sequential_cpu_offload(
        device="cpu"),
    "accelerate's cpu_offload": lambda pipe: accelerate.cpu_offload(
        pipe.vae, torch.device("cpu")),
    "accelerate's cpu_offload_with_hook": lambda pipe: (
        accelerate.cpu_offload_with_hook(pipe.text_encoder, "cpu")),
    "accelerate's dispatch_model": lambda pipe: accelerate.dispatch_model(
        pipe.transformer, {"": "cpu"}, force_hooks=True),
}


@pytest.mark.parametrize("what", sampled(
    OTHERS, "diffusers' group offloading", "model offload",
    "accelerate's dispatch_model"))
def test_others_offloading_is_refused_and_changes_nothing(pipe, resident,
                                                          what):
    with pytest.raises(hoist.FailedPrecondition,
                       match="hoist.detach it first"):
        OTHERS[what](pipe)
    assert_as_it_was(pipe, resident)


def test_after_detach_others_may_offload_it(pipe, resident):
    hoist.detach(pipe)
    group_offloading.apply_group_offloading(
        pipe.text_encoder_2, torch.device("cpu"), offload_type="leaf_level")
    assert group_offloading._is_group_offload_enabled(pipe.text_encoder_2)
    accelerate.cpu_offload(pipe.vae, torch.device(KIND))
    assert hasattr(pipe.vae, "_hf_hook")
