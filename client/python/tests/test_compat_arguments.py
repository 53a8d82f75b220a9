"""How look-alikes' arguments become hoist.attach's and hoist.load's."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist import compat  # noqa: E402
from hoist.compat import _accelerate, _again, _diffusers  # noqa: E402

# hoistd's device is the CPU here; where there are GPUs the caller's word counts.
CPU_IS_OURS = not torch.cuda.is_available()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(2, 2)
        self.down = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.middle = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        self.up = nn.Linear(2, 2)
        self.norm_out = nn.Sequential(nn.Linear(2, 2))


@pytest.fixture
def attached(monkeypatch):
    """The options of each attach that was asked for; none happens."""
    found: list[dict] = []
    for where in (_accelerate, _diffusers):
        monkeypatch.setattr(where, "attach_with", lambda module, **options:
                            found.append(options))
    return found


@pytest.fixture
def loaded(monkeypatch):
    found: list[tuple] = []

    def load(model, path, **options):
        found.append((path, options))
        return model

    monkeypatch.setattr(_accelerate, "load", load)
    return found


# diffusers' apply_group_offloading.


def test_blocks_and_leaves_are_groups(attached):
    model = Model()
    compat.apply_group_offloading(model, torch.device("cuda"))
    compat.apply_group_offloading(model, "cuda", num_blocks_per_group=3)
    compat.apply_group_offloading(model, "cuda", "cpu", "leaf_level")
    kind = types.SimpleNamespace(value="leaf_level")  # diffusers' enumeration.
    compat.apply_group_offloading(model, "cuda", offload_type=kind)
    assert [one["groups"] for one in attached] == [
        ("block", 1), ("block", 3), "leaf", "leaf"]


def test_diffusers_own_enumeration_is_taken(attached):
    offloading = pytest.importorskip("diffusers.hooks.group_offloading")
    for kind in offloading.GroupOffloadingType:
        compat.apply_group_offloading(Model(), "cpu", offload_type=kind)
    assert {str(one["groups"]) for one in attached} == {"leaf",
                                                        "('block', 1)"}


def test_block_modules_become_groups_of_so_many(attached):
    model = Model()
    compat.apply_group_offloading(
        model, "cpu", block_modules=["down", "middle", "up"],
        num_blocks_per_group=2)
    assert attached[0]["groups"] == {
        "down.0": ["down.0", "down.1"], "down.2": ["down.2"],
        "middle.0": ["middle.0", "middle.1"], "up": ["up"]}
    from hoist.nn._tree.grouping import group_modules
    found = {one.name: len(one.owners) for one in group_modules(
        model, attached[0]["groups"], set())}
    assert found == {"patch_embed": 1, "down.0": 2, "down.2": 1,
                     "middle.0": 2, "up": 1, "norm_out.0": 1}


@pytest.mark.parametrize("options, said", [
    ({"block_modules": ["nowhere"]}, '"nowhere"'),
    ({"offload_type": "layer_level"}, "leaf_level"),
    ({"offload_device": "cuda"}, "offload_device"),
    ({"num_blocks_per_group": -1}, "num_blocks_per_group"),
    ({"num_blocks_per_group": 0}, "num_blocks_per_group")], ids=str)
def test_bad_arguments_are_refused_by_name(attached, options, said):
    with pytest.raises(hoist.InvalidArgument, match=said):
        compat.apply_group_offloading(Model(), "cpu", **options)
    assert not attached


def test_what_hoistd_does_anyway_is_accepted(attached, tmp_path):
    compat.apply_group_offloading(
        Model(), "cpu", torch.device("cpu"), "block_level", 1, True, True,
        True, True, str(tmp_path), None, ["a", "b"], budget="1GiB",
        idle="slot")
    assert attached == [{"budget": "1GiB", "groups": ("block", 1),
                         "device": None if CPU_IS_OURS else "cpu",
                         "exclude_kwargs": ["a", "b"], "idle": "slot"}]


def test_the_arguments_are_diffusers_in_their_order():
    hooks = pytest.importorskip("diffusers.hooks")
    for name in ("apply_group_offloading", "apply_layerwise_casting"):
        assert_same_arguments(getattr(compat, name), getattr(hooks, name))


def test_the_arguments_are_accelerates_in_their_order():
    accelerate = pytest.importorskip("accelerate")
    for name in ("cpu_offload", "disk_offload",
                 "load_checkpoint_and_dispatch"):
        assert_same_arguments(getattr(compat, name),
                              getattr(accelerate, name))


def assert_same_arguments(ours, theirs) -> None:
    import inspect

    def positional(function) -> list[str]:
        return [name for name, one in inspect.signature(
            function).parameters.items()
            if one.kind == one.POSITIONAL_OR_KEYWORD]

    assert positional(ours) == positional(theirs)


# diffusers' apply_layerwise_casting.


def cast(**options) -> set[str]:
    """The modules that are stored smaller."""
    model = Model()
    found: list[dict] = []
    before = _diffusers.attach_with
    _diffusers.attach_with = lambda module, **given: found.append(given)
    try:
        compat.apply_layerwise_casting(model, torch.float8_e4m3fn,
                                       torch.float32, **options)
    finally:
        _diffusers.attach_with = before
    assert found[0]["storage_dtype"] == torch.float8_e4m3fn
    assert "budget" not in found[0] or "budget" in options
    skipped = set(found[0]["skip"])
    return {name for name, one in model.named_modules() if one not in skipped}


ALL = {"patch_embed", "down.0", "down.1", "down.2", "middle.0", "up",
       "norm_out.0"}


def test_the_layers_are_those_that_diffusers_casts():
    assert cast() == ALL - {"patch_embed", "norm_out.0"}
    assert cast(skip_modules_pattern=()) == ALL
    assert cast(skip_modules_pattern="down") == ALL - {
        "down.0", "down.1", "down.2"}
    assert cast(skip_modules_pattern=("^up$", r"\.0$")) == {
        "patch_embed", "down.1", "down.2"}
    assert cast(skip_modules_pattern=None, skip_modules_classes=(
        nn.Sequential,)) == ALL - {"middle.0", "norm_out.0"}
    assert cast(budget=5) == ALL - {"patch_embed", "norm_out.0"}


def test_the_same_layers_as_diffusers_itself():
    hooks = pytest.importorskip("diffusers.hooks")
    for options in ({}, {"skip_modules_pattern": ()},
                    {"skip_modules_pattern": ("^up$", "middle")},
                    {"skip_modules_classes": (nn.Sequential,)}):
        model = Model()
        hooks.apply_layerwise_casting(model, torch.float8_e4m3fn,
                                      torch.float32, **options)
        theirs = {name for name, one in model.named_modules() if any(
            key.startswith("layerwise") for key in getattr(
                one, "_diffusers_hook", types.SimpleNamespace(hooks={})).hooks)}
        assert theirs == cast(**options), options


def test_where_nothing_is_skipped_the_whole_module_is_cast():
    everything = {name for name, _ in Model().named_modules()}
    assert cast(skip_modules_pattern=None) == everything
    hooks = pytest.importorskip("diffusers.hooks")
    model = Model()
    hooks.apply_layerwise_casting(model, torch.float8_e4m3fn, torch.float32,
                                  skip_modules_pattern=None)
    assert {value.dtype for value in model.parameters()} == {
        torch.float8_e4m3fn}


def test_another_type_becomes_the_value_that_is_computed_with(attached):
    model = Model().double()
    before = {name: value.clone() for name, value in
              model.named_parameters()}
    compat.apply_layerwise_casting(model, torch.float16, torch.float32)
    for name, value in model.named_parameters():
        if name.startswith(("patch_embed", "norm", "middle.1")):
            assert torch.equal(value, before[name])
        else:
            assert torch.equal(value, before[name].half().float())
            assert value.dtype == torch.float32


# accelerate's.


def test_cpu_offload_takes_a_device_and_no_state_dict(attached):
    model = Model()
    assert compat.cpu_offload(model, torch.device("cpu"), True,
                              budget=7) is model
    assert attached == [{"budget": 7, "device": (
        None if CPU_IS_OURS else torch.device("cpu"))}]
    with pytest.raises(hoist.Unimplemented, match="state_dict"):
        compat.cpu_offload(model, state_dict={})
    assert len(attached) == 1


def test_disk_offload_writes_nothing(attached, tmp_path):
    model = Model()
    assert compat.disk_offload(model, tmp_path, idle="meta") is model
    assert not list(tmp_path.iterdir())
    assert attached[0]["idle"] == "meta"


def test_a_device_is_the_callers_where_there_are_gpus(attached, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    compat.cpu_offload(Model(), "cuda:1")
    compat.apply_group_offloading(Model(), torch.device("cuda", 1))
    assert [str(one["device"]) for one in attached] == ["cuda:1", "cuda:1"]


def test_max_memory_is_the_budget_of_gpus(loaded):
    def options(**given):
        compat.load_checkpoint_and_dispatch(Model(), "folder", **given)
        path, found = loaded.pop()
        assert path == "folder"
        return found

    found = options(max_memory={0: "5GiB", "cpu": "20GiB", "disk": "1TiB"})
    assert (found["budget"], found["device"]) == ("5GiB", 0)
    found = options(max_memory={0: "5GiB", 1: "6GiB", "cpu": "9GiB"})
    assert found["budget"] == {0: "5GiB", 1: "6GiB"}
    assert "device" not in found
    assert options(max_memory={"cpu": "9GiB"})["budget"] is None
    assert options(max_memory={0: "5GiB"}, budget=3)["budget"] == 3
    assert options(max_memory={0: "5GiB"}, device=1)["device"] == 1


def test_types_and_keys_are_passed_on(loaded):
    compat.load_checkpoint_and_dispatch(
        Model(), "folder", "auto", dtype="float16", skip_keys="past",
        no_split_module_classes=["Block"], strict=True)
    compat.load_checkpoint_and_dispatch(Model(), "folder",
                                        dtype=torch.bfloat16,
                                        skip_keys=["a", "b"])
    assert [(one["dtype"], one["exclude_kwargs"]) for _, one in loaded] == [
        (torch.float16, "past"), (torch.bfloat16, ["a", "b"])]


@pytest.mark.parametrize("dtype", ["float17", "nn", "Tensor"])
def test_a_type_that_torch_has_not_is_refused(loaded, dtype):
    with pytest.raises(hoist.InvalidArgument, match=dtype):
        compat.load_checkpoint_and_dispatch(Model(), "folder", dtype=dtype)
    assert not loaded


def test_removing_from_a_module_that_is_not_attached_does_nothing():
    model = Model()
    compat.remove_hook_from_submodules(model)
    assert list(model.state_dict())


# Several calls.


def test_what_was_asked_for_before_is_kept(monkeypatch):
    """Casting and offloading in either order."""
    class Played:
        """An attachment, with what was wanted of it."""

    calls: list[tuple] = []
    model = Model()

    def attach(module, **options):
        calls.append(("attach", options))
        vars(module)["_hoist"] = Played()
        vars(module)["_hoist"].wanted = types.SimpleNamespace(**{
            **dict.fromkeys(_again._KEPT), **options})

    def detach(module, without_loss):
        assert without_loss
        calls.append(("detach", {}))
        del vars(module)["_hoist"]

    monkeypatch.setattr(_again, "attach", attach)
    monkeypatch.setattr(_again, "detach_module", detach)
    compat.apply_layerwise_casting(model, torch.float8_e4m3fn, torch.float32)
    compat.apply_group_offloading(model, "cpu", num_blocks_per_group=2,
                                  budget=9)
    assert [name for name, _ in calls] == ["attach", "detach", "attach"]
    options = calls[-1][1]
    assert options["groups"] == ("block", 2) and options["budget"] == 9
    assert options["storage_dtype"] == torch.float8_e4m3fn
    assert options["skip"] == calls[0][1]["skip"]
    compat.apply_layerwise_casting(model, torch.float16, torch.float32)
    options = calls[-1][1]
    assert options["storage_dtype"] == torch.float16
    assert options["groups"] == ("block", 2) and options["budget"] == 9
