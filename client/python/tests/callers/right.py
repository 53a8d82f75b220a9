"""What callers write, as the guide has it; test_types.py has it type-checked,
and nobody runs it."""

import pathlib

import torch
from torch import nn
from typing_extensions import assert_type

import hoist
from hoist import attach
from hoist.compat import (apply_group_offloading, apply_layerwise_casting,
                          cpu_offload, disk_offload,
                          load_checkpoint_and_dispatch,
                          remove_hook_from_submodules)
from hoist.nn import DEFAULT_SKIP, AttachStats, IdleTensor

FOLDER = pathlib.Path("/models/llama")


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2))


def budgets(model: nn.Sequential) -> None:
    by_number = {0: "8GiB", 1: "8GiB"}
    by_name = {"cuda:0": 0.5, "cuda:1": 0.5}
    assert_type(hoist.attach(model, "8GiB"), nn.Sequential)
    assert_type(attach(model, budget=0.5), nn.Sequential)
    for budget in (1 << 30, None):
        hoist.attach(model, budget)
    hoist.attach(model, by_number)
    hoist.attach(model, by_name)
    hoist.attach(model, {torch.device("cuda", 0): "1GiB", "cuda:1": None})
    hoist.set_budget(model, {0: 1 << 20, 1: None})
    hoist.set_budget(model, by_name)


def options(model: nn.Sequential, session: hoist.Session) -> None:
    hoist.attach(model, groups=("block", 2), order=["0", "1"], idle="slot",
                 exclude="head", skip=(*DEFAULT_SKIP, "head", nn.Linear),
                 storage_dtype=torch.float8_e4m3fn, name="llama",
                 device="cuda:1", session=session, exclude_kwargs=["mask"],
                 progress=False, deadline=30, weight=2, priority=-1)
    hoist.attach(model, groups={"a": ["0", "1"], "b": "2"}, device=0,
                 exclude=[model[0], nn.LayerNorm, r"^layers\.1$"],
                 skip=nn.Linear, exclude_kwargs="mask", order="learn")
    hoist.attach(model, groups=lambda name, module: name or None,
                 device=torch.device("cpu"), exclude=model[0], idle="meta")


def loads(model: nn.Sequential) -> None:
    assert_type(hoist.load(make, FOLDER), nn.Sequential)
    assert_type(hoist.load(lambda: make(), "/models/llama", "8GiB",
                           rename={"model.": ""}), nn.Sequential)
    assert_type(hoist.load(model, [FOLDER / "a.safetensors"], budget=0.5,
                           dtype=torch.bfloat16, groups="leaf",
                           rename=lambda name: [name + ".a", name + ".b"]),
                nn.Sequential)
    assert_type(hoist.load(nn.Identity, FOLDER, name="llama").eval(),
                nn.Identity)


def uses(model: nn.Sequential) -> None:
    stats = hoist.stats(model)
    assert_type(stats, AttachStats)
    assert_type(stats, hoist.AttachStats)
    assert_type(stats.streamed_bytes >> 20, int)
    with hoist.stage(model) as same:
        assert_type(same, nn.Sequential)
    with hoist.stage("llama/layers.0") as whole:
        assert_type(whole, nn.Module)
    hoist.check(model)
    assert_type(hoist.detach(model), nn.Sequential)
    assert isinstance(model[0].weight, IdleTensor)


def look_alikes(model: nn.Sequential) -> None:
    apply_group_offloading(
        model, onload_device="cuda", offload_type="block_level",
        num_blocks_per_group=2, use_stream=True, budget="8GiB")
    apply_group_offloading(model, torch.device("cuda"), torch.device("cpu"),
                           offload_type="leaf_level", exclude_kwargs=["k"],
                           block_modules=["a"], exclude="head")
    apply_layerwise_casting(model, torch.float8_e4m3fn, torch.bfloat16,
                            skip_modules_pattern=("norm",), device="cuda:0")
    assert_type(cpu_offload(model, 0, groups="leaf"), nn.Sequential)
    assert_type(disk_offload(model, FOLDER, "cuda:0", idle="meta"),
                nn.Sequential)
    assert_type(load_checkpoint_and_dispatch(
        model, FOLDER, max_memory={0: "8GiB", "cpu": "64GiB"},
        dtype="bfloat16", rename={"model.": ""}), nn.Sequential)
    remove_hook_from_submodules(model)
    hoist.compat.remove_hook_from_submodules(model)
    hoist.nn.detach(model)


def trains(model: nn.Sequential, x: torch.Tensor) -> None:
    with hoist.offload_activations(model, "8GiB", skip=nn.LayerNorm) as offload:
        assert_type(offload, hoist.Offload)
        with offload.layer(), hoist.keep():
            model(x)
        hoist.mark_keep(x, None)
        assert_type(offload.stats(), hoist.OffloadStats)
        assert_type(offload.stats().kept_bytes["keep"], int)

    @hoist.keep()
    def kept(value: torch.Tensor) -> torch.Tensor:
        return value

    assert_type(kept(x), torch.Tensor)
    with hoist.offload_activations([model], keep_last=1, arena="64GiB"):
        pass


def sessions() -> None:
    with hoist.connect("/run/hoist.sock", device_budget=2 << 30) as session:
        assert_type(session, hoist.Session)
        model = session.register(FOLDER, name="llama", groups={"a": ["b"]},
                                 joined={"b": hoist.Joined((2,), ["c"])})
        assert_type(model, hoist.Model)
        assert_type(model["layers.0"], hoist.Group)
        session.set_order(model.groups)
        for group in model:
            with session.stage(group, deadline=30) as lease:
                weights = {name: lease[name].torch() for name in lease}
                assert_type(weights, dict[str, torch.Tensor])
        plan = session.set_plan(model, budget=1 << 30, order=model.groups)
        with plan.use(model["layers.0"], stream=None) as tensors:
            assert_type(tensors["weight"], hoist.Tensor)
        assert_type(plan.stats, hoist.PlanStats)
        image = session.host_image(model.groups[0])
        assert_type(image, hoist.HostImage)
        image.load(deadline=60)
        assert_type(image["weight"].shape, tuple[int, ...])
    try:
        attach(make())
    except hoist.MissingExtra as error:
        assert_type(error.message, str)
    except hoist.ResourceExhausted as error:
        assert_type(error.code, int)
