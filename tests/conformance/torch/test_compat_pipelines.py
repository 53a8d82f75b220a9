"""hoist.compat in the place of what pipelines and models of diffusers call."""

from __future__ import annotations

import functools
import gc
import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import diffusers.hooks  # noqa: E402
import hoist  # noqa: E402
from equal import same_bytes  # noqa: E402
from hoist import compat  # noqa: E402
from hoist.nn._api.attachment import attachment_of  # noqa: E402
from models import Stack  # noqa: E402
from pipelines import KINDS  # noqa: E402
from torch import nn  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
MIB = 1 << 20
FLUX = KINDS["flux"]
FP8 = torch.float8_e4m3fn


# Nothing is attached yet.
REPLACED = [(diffusers.DiffusionPipeline, "enable_group_offload"),
            (diffusers.DiffusionPipeline, "enable_model_cpu_offload"),
            (diffusers.hooks, "apply_group_offloading")]
OWN = [vars(owner)[name] for owner, name in REPLACED]


def assert_diffusers_has_its_own() -> None:
    """After the last detach."""
    for (owner, name), own in zip(REPLACED, OWN):
        assert vars(owner)[name] is own, name


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    gc.collect()  # What earlier tests left attached.


@pytest.fixture
def expected(device: torch.device) -> bytes:
    return FLUX.run(FLUX.make().to(device)).tobytes()


def attached(pipe: Any) -> set[str]:
    return {name for name, one in pipe.components.items()
            if isinstance(one, nn.Module) and attachment_of(one) is not None}


ALL = {"vae", "text_encoder", "text_encoder_2", "transformer"}


@pytest.mark.parametrize("options", [
    {"num_blocks_per_group": 2, "use_stream": True},
    {"offload_type": "leaf_level", "offload_to_disk_path": "/nowhere"}])
def test_group_offloading_of_a_pipeline(hoistd, device, expected, options):
    pipe = FLUX.make()
    compat.enable_group_offload(pipe, torch.device(KIND), budget=5 * MIB,
                                **options)
    assert attached(pipe) == ALL
    assert FLUX.run(pipe).tobytes() == expected
    stats = hoist.stats(pipe)
    assert stats.budget_bytes == 5 * MIB
    groups = stats.components["transformer"].groups
    assert groups > 20 if "offload_type" in options else groups < 10
    hoist.detach(pipe)


def test_excluded_modules_are_moved_to_the_device(hoistd, device, expected):
    pipe = FLUX.make()
    compat.enable_group_offload(pipe, device, exclude_modules=["vae"],
                                num_blocks_per_group=1, budget=4 * MIB)
    assert attached(pipe) == ALL - {"vae"}
    assert next(pipe.vae.parameters()).device.type == KIND
    assert FLUX.run(pipe).tobytes() == expected


def test_model_offloading_of_a_pipeline(hoistd, device, expected):
    pipe = FLUX.make()
    compat.enable_model_cpu_offload(pipe, device=KIND)
    assert attached(pipe) == ALL
    assert FLUX.run(pipe).tobytes() == expected
    with pytest.raises(hoist.InvalidArgument, match="say it once"):
        compat.enable_model_cpu_offload(FLUX.make(), 1, "cuda:0")


def test_bad_arguments_are_refused_before_anything_is_attached(hoistd):
    pipe = FLUX.make()
    for options in ({"offload_type": "blocks"}, {"num_blocks_per_group": 0},
                    {"offload_device": "cuda"}):
        with pytest.raises(hoist.InvalidArgument):
            compat.enable_group_offload(pipe, KIND, **options)
    assert not attached(pipe)


def test_one_call_makes_diffusers_own_calls_ours(hoistd, device, expected):
    with compat.use_in_diffusers(budget=4 * MIB):
        pipe = FLUX.make()
        pipe.enable_group_offload(device, num_blocks_per_group=1)
        assert hoist.stats(pipe).budget_bytes == 4 * MIB
        assert FLUX.run(pipe).tobytes() == expected
        with pytest.raises(hoist.FailedPrecondition, match="hoist.detach"):
            pipe.enable_model_cpu_offload(device=KIND)
        hoist.detach(pipe)
        pipe.enable_model_cpu_offload(device=KIND)
        assert FLUX.run(pipe).tobytes() == expected
        hoist.detach(pipe)
        pipe.transformer.enable_group_offload(device, num_blocks_per_group=1)
        assert attached(pipe) == {"transformer"}
    hoist.detach(pipe.transformer)
    assert_diffusers_has_its_own()


def test_it_can_begin_and_end_while_something_is_attached(hoistd, device):
    block = hoist.attach(Stack().eval(), device=device)
    with compat.use_in_diffusers(budget=4 * MIB):
        pipe = FLUX.make()
        pipe.enable_group_offload(device, num_blocks_per_group=1)
        assert attached(pipe) == ALL
        hoist.detach(pipe)
    with pytest.raises(hoist.FailedPrecondition, match="hoist stages"):
        diffusers.hooks.apply_group_offloading(
            block, torch.device("cpu"), offload_type="leaf_level")
    with compat.use_in_diffusers(budget=4 * MIB):
        hoist.detach(block)
        pipe.enable_group_offload(device, num_blocks_per_group=1)
        hoist.detach(pipe)
    assert_diffusers_has_its_own()
    hoist.attach_pipeline(pipe, 4 * MIB, device=device)
    with pytest.raises(hoist.FailedPrecondition, match="diffusers' enable"):
        pipe.enable_group_offload(device)
    hoist.detach(pipe)
    assert_diffusers_has_its_own()


def test_what_is_undone_while_attached_is_theirs_again(hoistd, device):
    put = compat.use_in_diffusers(budget=4 * MIB)
    pipe = FLUX.make()
    pipe.enable_group_offload(device, num_blocks_per_group=1)
    put.undo()
    hoist.detach(pipe)
    pipe.text_encoder_2.to("cpu")
    diffusers.hooks.apply_group_offloading(
        pipe.text_encoder_2, torch.device("cpu"), offload_type="leaf_level")
    assert not attached(pipe)
    assert diffusers.hooks.group_offloading._is_group_offload_enabled(
        pipe.text_encoder_2)


def test_one_assignment_makes_models_calls_ours(hoistd, device, expected,
                                                monkeypatch):
    monkeypatch.setattr(
        diffusers.hooks, "apply_group_offloading", functools.partial(
            compat.apply_group_offloading, budget=0.9))
    pipe = FLUX.make()
    pipe.enable_group_offload(torch.device(KIND), num_blocks_per_group=1)
    assert attached(pipe) == ALL
    assert FLUX.run(pipe).tobytes() == expected


# Several calls.


def stack(device: torch.device) -> nn.Module:
    torch.manual_seed(5)
    return Stack(blocks=6).to(device)


def test_a_second_call_that_is_refused_leaves_the_module_as_it_was(
        hoistd, device):
    module, x = stack(device), torch.randn(2, 64, device=device)
    with torch.no_grad():
        plain = module(x)
        compat.apply_layerwise_casting(module, FP8, torch.float32,
                                       budget=0.8, device=device)
        before, cast = attachment_of(module), module(x)
        assert not same_bytes(cast, plain)
        budget = hoist.stats(module).budget_bytes
        for refused in (
                lambda: compat.apply_group_offloading(module, budget=64),
                lambda: compat.cpu_offload(module, idle="nowhere"),
                lambda: compat.apply_layerwise_casting(
                    module, torch.int8, torch.float32)):
            with pytest.raises(hoist.HoistError):
                refused()
            assert same_bytes(module(x), cast)
            stats = hoist.stats(module)
            assert stats.budget_bytes == budget
            assert stats.model == before.model.name
        hoist.detach(module)
        assert same_bytes(module(x), plain)


def test_a_first_call_that_is_refused_leaves_the_module_as_it_was(
        hoistd, device):
    module, x = stack(device).double(), torch.randn(2, 64, device=device)
    plain = {name: one.clone() for name, one in module.state_dict().items()}
    with pytest.raises(hoist.ResourceExhausted):
        compat.apply_layerwise_casting(module, FP8, torch.float32, budget=64)
    assert attachment_of(module) is None
    for name, one in module.state_dict().items():
        assert same_bytes(one, plain[name]), name


@pytest.mark.parametrize("casts_first", [False, True])
def test_a_fraction_is_one_of_the_module_as_it_was_given(hoistd, device,
                                                         casts_first):
    whole = hoist.stats(hoist.attach(stack(device))).model_bytes
    module = stack(device)
    calls = [
        lambda: compat.apply_group_offloading(module, device, budget=0.5,
                                              num_blocks_per_group=1),
        lambda: compat.apply_layerwise_casting(module, FP8, torch.float32)]
    for call in reversed(calls) if casts_first else calls:
        call()
    assert hoist.stats(module).model_bytes < whole / 2
    assert hoist.stats(module).budget_bytes == whole // 2
    together = stack(device)
    compat.apply_layerwise_casting(together, FP8, torch.float32, budget=0.5)
    assert abs(hoist.stats(together).budget_bytes - whole // 2) < 64 << 10


def test_a_component_that_is_cast_stays_under_the_pipelines_budget(hoistd,
                                                                   device):
    """As diffusers' users do it: offloading first, then one call a model."""
    plain = FLUX.make().to(device)
    plain.transformer.enable_layerwise_casting(FP8, torch.float32)
    expected = FLUX.run(plain).tobytes()
    pipe = FLUX.make()
    compat.enable_model_cpu_offload(pipe, budget=3 * MIB)
    FLUX.run(pipe)
    before = hoist.stats(pipe).components
    compat.apply_layerwise_casting(pipe.transformer, FP8, torch.float32)
    compat.apply_group_offloading(pipe.vae, device, offload_type="leaf_level")
    with pytest.raises(hoist.FailedPrecondition, match="pipeline's budget"):
        compat.apply_group_offloading(pipe.vae, device, budget=MIB)
    for _ in range(2):
        assert FLUX.run(pipe).tobytes() == expected
        tier = hoistd.tier("DEVICE")
        assert tier["leased_bytes"] + tier["pinned_bytes"] <= 3 * MIB
    now = hoist.stats(pipe).components
    assert set(now) == set(before)
    assert (now["transformer"].model_bytes
            < before["transformer"].model_bytes)
    assert now["vae"].groups > before["vae"].groups
    hoist.detach(pipe)
    assert not attached(pipe)


def test_a_component_that_cannot_be_cast_stays_as_it_was(hoistd, device,
                                                         expected):
    pipe = FLUX.make()
    compat.enable_model_cpu_offload(pipe, budget=3 * MIB)
    with pytest.raises(hoist.HoistError):
        compat.apply_group_offloading(pipe.transformer, device,
                                      storage_dtype=torch.int8)
    assert attached(pipe) == ALL
    assert FLUX.run(pipe).tobytes() == expected
    assert set(hoist.stats(pipe).components) == ALL
    hoist.detach(pipe)
    assert not attached(pipe)


def test_casting_to_the_type_that_it_computes_in_is_nothing(hoistd, device):
    module, x = stack(device), torch.randn(2, 64, device=device)
    with torch.no_grad():
        expected = module(x)
        compat.apply_layerwise_casting(module, torch.float32, torch.float32)
        assert attachment_of(module) is None
        assert same_bytes(module(x), expected)
        compat.apply_group_offloading(module, device, budget=0.6)
        before = attachment_of(module)
        compat.apply_layerwise_casting(module, torch.float32, torch.float32)
        assert attachment_of(module) is before
        assert same_bytes(module(x), expected)
        hoist.detach(module)
        compat.apply_layerwise_casting(module, torch.float32, torch.float32,
                                       budget=0.6)
        assert attachment_of(module) is not None
        assert same_bytes(module(x), expected)


def test_hooks_are_removed_from_what_is_in_a_module(hoistd, device):
    model = Stack(3)
    inner = model.layers[0]
    compat.cpu_offload(inner, device)
    compat.remove_hook_from_submodules(model)
    assert attachment_of(inner) is None
    compat.cpu_offload(model, device)
    compat.remove_hook_from_submodules(model)
    assert attachment_of(model) is None
