"""What an attach that fails gives back, by what was asked of it: pipelines,
look-alikes, hand-over by group, and what hoistd has damaged."""

from __future__ import annotations

import json
import weakref
from typing import Any, Iterator

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs, same_bytes  # noqa: E402
from failing import (Belongings, Calls, Pipe, drain, fail,  # noqa: E402
                     is_given_back, watched)
from hoist import compat  # noqa: E402
from models import WIDTH, Stack, numbers  # noqa: E402
from real_daemon import MIB, RealDaemon, until  # noqa: E402
from sampled import sampled  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.only_emulated("where a module lies is the host's")


def stack(blocks: int = 4, seed: int = 1) -> Stack:
    torch.manual_seed(seed)
    return Stack(blocks).eval()


@torch.no_grad()
def run(model: nn.Module) -> torch.Tensor:
    return model(numbers(2, WIDTH))


@pytest.fixture
def calls(monkeypatch) -> Iterator[Calls]:
    with watched(monkeypatch) as found:
        yield found


# Pipelines.


def pipe_of(count: int) -> Pipe:
    return Pipe(**{f"part{at}": stack(3, seed=at) for at in range(count)})


def end_by(daemon: RealDaemon, how: str) -> None:
    if how == "error":
        fail()
    elif how == "drain":
        drain(daemon)
    else:
        daemon.kill()


# While a node drains, a session goes on with the models that it has found.
@pytest.mark.parametrize(("call", "how"), sampled(
    [("find_content", "drain"),
     *((call, how) for call in ("find_content", "host_image_create", "set_plan")
       for how in ("error", "kill"))],
    ("find_content", "drain"), ("host_image_create", "kill"),
    ("set_plan", "error")))
def test_all_of_a_pipelines_modules_are_attached_or_none(make_hoistd, calls,
                                                         how, call):
    """The last one fails, at its last such call; those before it have their
    very tensors."""
    daemon = make_hoistd()
    pipe = pipe_of(3)
    expected = [run(one) for one in pipe.components.values()]
    hoist.detach(hoist.attach_pipeline(pipe, 500_000))
    calls.act_at(0, lambda: None)
    hoist.attach_pipeline(pipe, 500_000)
    last = calls.names.count(f"hoist_{call}")
    hoist.detach(pipe)
    pipe = pipe_of(3)
    own = [Belongings(one) for one in pipe.components.values()]
    calls.act_at((f"hoist_{call}", last), lambda: end_by(daemon, how))
    with pytest.raises(hoist.HoistError):
        hoist.attach_pipeline(pipe, 500_000, stage_deadline=1)
    for one in own:
        one.assert_all_there()
    for one, wanted in zip(pipe.components.values(), expected):
        assert_equal_outputs(run(one), wanted)
    assert not hasattr(pipe, "_hoist")
    if how == "kill":
        make_hoistd()
    elif how == "drain":
        until(lambda: is_given_back(daemon))
        daemon.ctl("drain", "--resume")
    hoist.attach_pipeline(pipe, 500_000)
    for one, wanted in zip(pipe.components.values(), expected):
        assert_equal_outputs(run(one), wanted)
    hoist.detach(pipe)


def test_a_pipelines_modules_are_let_go_of_once_all_are_attached(hoistd):
    pipe = pipe_of(2)
    kept = [weakref.ref(value) for one in pipe.components.values()
            for value in one.parameters()]
    hoist.attach_pipeline(pipe, 500_000)
    assert not any(ref() for ref in kept)


def test_what_joined_a_pipeline_that_failed_runs_as_before(hoistd, calls):
    pipe = pipe_of(3)
    expected = [run(one) for one in pipe.components.values()]
    hoist.attach(pipe.components["part1"], 300_000)
    others = [Belongings(pipe.components[name]) for name in ("part0", "part2")]
    with pytest.raises(hoist.ResourceExhausted):
        hoist.attach_pipeline(pipe, 100_000)
    for one in others:
        one.assert_all_there()
    for one, wanted in zip(pipe.components.values(), expected):
        assert_equal_outputs(run(one), wanted)
    hoist.detach(pipe.components["part1"])


# Look-alikes.


@pytest.mark.parametrize("drained", [False, True])
def test_a_cast_that_is_refused_gives_the_very_weights_back(hoistd, drained):
    model = stack().half()
    own = Belongings(model)
    if drained:
        drain(hoistd)
    with pytest.raises(hoist.HoistError):
        compat.apply_layerwise_casting(
            model, torch.float8_e4m3fn, torch.float32,
            skip_modules_pattern=None, budget=1)
    own.assert_all_there()
    if drained:
        hoistd.ctl("drain", "--resume")


class Refuses(nn.Linear):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.weight = nn.Parameter(self.weight.detach().clone())
        raise torch.OutOfMemoryError("none left")


def test_a_pipeline_whose_other_modules_do_not_fit_is_as_it_was(
        hoistd, monkeypatch):
    pipe = Pipe(one=stack(), other=Refuses(4, 4))
    own = [Belongings(one) for one in pipe.components.values()]
    with pytest.raises(torch.OutOfMemoryError):
        compat.enable_group_offload(pipe, "cpu", exclude_modules="other",
                                    budget=300_000)
    for one in own:
        one.assert_all_there()
    assert not hasattr(pipe, "_hoist")
    until(lambda: is_given_back(hoistd))


def test_other_options_do_not_detach_what_would_be_lost(make_hoistd):
    """hoistd has died with weights that it alone had: a call that is refused
    leaves the module attached, and it goes on where it can."""
    daemon = make_hoistd()
    model = stack()
    hoist.attach(model, 300_000, stage_deadline=0.5)
    daemon.kill()
    with pytest.raises(hoist.DataLoss):
        compat.apply_group_offloading(model, "cpu", offload_type="leaf_level")
    assert not any(value.is_meta for value in model.parameters())
    assert hoist.stats(model).groups == 4
    with pytest.raises(hoist.DataLoss):
        hoist.detach(model)


# By group.


@pytest.mark.parametrize("hand_over", ["whole", "by_group"])
def test_weights_are_let_go_of_at_once_or_by_group(hoistd, calls, hand_over):
    model = stack()
    expected = run(model)
    kept = [weakref.ref(value) for value in model.parameters()]
    there: list[bool] = []
    calls.act_at("hoist_set_plan", lambda: there.extend(
        ref() is not None for ref in kept))
    hoist.attach(model, 300_000, hand_over=hand_over)
    assert there == [hand_over == "whole"] * len(kept)
    assert not any(ref() for ref in kept)
    assert_equal_outputs(run(model), expected)
    hoist.detach(model)


@pytest.mark.parametrize("how", ["error", "kill"])
def test_by_group_what_was_given_up_comes_back_or_is_named(make_hoistd, calls,
                                                           how):
    daemon = make_hoistd()
    model = stack()
    values = {key: value.clone() for key, value in model.state_dict().items()}
    calls.act_at("hoist_set_plan", lambda: end_by(daemon, how))
    with pytest.raises(hoist.HoistError) as raised:
        hoist.attach(model, 300_000, hand_over="by_group", stage_deadline=0.5)
    found = model.state_dict()
    lost = {key for key, value in found.items() if value.is_meta}
    if how == "error":
        assert type(raised.value) is hoist.ResourceExhausted and not lost
    else:
        assert type(raised.value) is hoist.DataLoss
        assert "4 of its 4 groups" in str(raised.value)
        assert lost == {*values}
    for key in {*values} - lost:
        assert same_bytes(found[key], values[key]), key
    assert all(type(value) is nn.Parameter and value.requires_grad
               for value in model.parameters())


def test_hand_over_is_one_of_two(hoistd):
    with pytest.raises(hoist.InvalidArgument, match="hand_over='half'"):
        hoist.attach(stack(), hand_over="half")  # type: ignore[arg-type]


# What hoistd has damaged.


def damage(daemon: RealDaemon, path: Any) -> int:
    """A byte of each spilled group; how many."""
    for one in json.loads(daemon.ctl("models", "--json"))["models"]:
        daemon.ctl("evict", one["name"])
    images = [one for one in (path / "images").iterdir() if one.is_file()]
    for one in images:
        with open(one, "r+b") as file:
            file.seek(one.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(one.stat().st_size // 2)
            file.write(bytes([byte ^ 1]))
    return len(images)


@pytest.mark.parametrize("options", [
    {"budget": 1.0}, {"budget": 1.0, "name": "mine"}, {"budget": 300_000},
    {"budget": 300_000, "storage_dtype": torch.float16, "skip": ()}],
    ids=["by content", "by name", "streamed", "cast"])
def test_what_hoistd_has_damaged_is_taken_from_the_module(
        make_hoistd, tmp_path, options):
    path = tmp_path / "spill"
    daemon = make_hoistd(pool=16 * MIB, host=32 * MIB,
                         extra=f'[disk]\nspill_dir = "{path}"\n')
    model = stack()
    hoist.attach(model, **options)
    expected = run(model)
    hoist.detach(model)
    until(lambda: daemon.tier("DISK")["used_bytes"] > 0)
    assert damage(daemon, path) >= 4
    model = stack()
    hoist.attach(model, **options)
    assert_equal_outputs(run(model), expected)
    for key, value in stack().state_dict().items():
        assert same_bytes(model.state_dict()[key], value), key
    hoist.detach(model)
    for key, value in stack().state_dict().items():
        assert same_bytes(model.state_dict()[key], value), key


def test_damage_that_a_module_without_bytes_finds_leaves_it_as_it_was(
        make_hoistd, tmp_path):
    path = tmp_path / "spill"
    daemon = make_hoistd(pool=16 * MIB, host=32 * MIB,
                         extra=f'[disk]\nspill_dir = "{path}"\n')
    hoist.detach(hoist.attach(stack(), 1.0, name="mine"))
    until(lambda: daemon.tier("DISK")["used_bytes"] > 0)
    assert damage(daemon, path)
    with torch.device("meta"):
        empty = Stack(4).eval()
    kept = list(empty.parameters())
    with pytest.raises(hoist.DataLoss):
        hoist.attach(empty, 1.0, name="mine")
    assert all(one is other for one, other in zip(empty.parameters(), kept))
