"""What is staged around decoder layers, and passes in which nothing is."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

import hoist  # noqa: E402
import torch  # noqa: E402
from hoist.vllm._code_key import code_factors  # noqa: E402
from hoist.vllm._offload import PlanOffloader  # noqa: E402
from hoist.vllm._plugin import register  # noqa: E402
from torch import nn  # noqa: E402
from vllm.config.load import LoadConfig  # noqa: E402
from vllm.model_executor.offloader import set_offloader  # noqa: E402


class Plan:
    """Notes what it is asked; all groups are streamed, but for `resident`."""

    device_kind = 1

    def __init__(self, resident=()):
        self.resident = resident
        self.staged, self.ended = [], []

    def kind(self, group):
        return "resident" if group in self.resident else "streamed"

    def stage(self, group, stream):
        self.staged.append(group)

    def done(self, group, stream):
        self.ended.append(group)


class Stack(nn.Module):
    """Layers; `compiled` is code that was made of them without operators."""

    def __init__(self, offloader, count=3):
        super().__init__()
        self.layers = nn.ModuleList(offloader.wrap_modules(
            nn.Linear(4, 4) for _ in range(count)))
        self.compiled = False

    def forward(self, x):
        for layer in self.layers:
            x = (nn.functional.linear(x, layer.weight, layer.bias)
                 if self.compiled else layer(x))
        return x


class Model(nn.Module):
    def __init__(self, offloader, stacks=1):
        super().__init__()
        self.stacks = nn.ModuleList(Stack(offloader) for _ in range(stacks))
        self.runs = list(range(stacks))

    def forward(self, x):
        for number in self.runs:
            x = self.stacks[number](x)
        return x


@pytest.fixture
def offloader():
    made = PlanOffloader()
    set_offloader(made)
    yield made
    set_offloader(None)


def parts_of(layer):
    return [f"{layer}/1", f"{layer}/2"]


def follow(offloader, model, plan=None):
    plan = plan or Plan()
    layers = offloader.layers_of(model)
    offloader.follow(model, plan, {one: parts_of(one) for one in layers},
                     torch.device("cpu"))
    return plan


def test_each_layer_is_staged_and_done_in_a_pass(offloader):
    model = Model(offloader)
    plan = follow(offloader, model)
    model(torch.ones(1, 4))
    assert plan.staged == plan.ended == [
        part for n in range(3) for part in parts_of(f"stacks.0.layers.{n}")]


def test_a_layer_that_is_partly_resident_must_be_staged(offloader):
    model = Model(offloader)
    follow(offloader, model, Plan(["stacks.0.layers.0/1"]))
    model.stacks[0].compiled = True
    with pytest.raises(hoist.FailedPrecondition, match="0 of its 3 streamed"):
        model(torch.ones(1, 4))


def test_code_that_stages_nothing_is_refused_before_its_results_are_used(
        offloader):
    model = Model(offloader)
    follow(offloader, model)
    model(torch.ones(1, 4))
    model.stacks[0].compiled = True
    for _ in range(2):
        with pytest.raises(hoist.FailedPrecondition,
                           match="0 of its 3 streamed.*torch_compile_cache"):
            model(torch.ones(1, 4))
    model.stacks[0].compiled = False
    model(torch.ones(1, 4))


def test_code_that_stages_some_layers_is_refused(offloader):
    model = Model(offloader)
    follow(offloader, model)
    model.stacks[0].layers[1].forward = lambda x: x
    with pytest.raises(hoist.FailedPrecondition, match="2 of its 3 streamed"):
        model(torch.ones(1, 4))


def test_what_the_plan_keeps_on_the_device_may_be_read_at_any_time(offloader):
    model = Model(offloader)
    follow(offloader, model, Plan([
        part for n in range(3) for part in parts_of(f"stacks.0.layers.{n}")]))
    model.stacks[0].compiled = True
    model(torch.ones(1, 4))


def test_a_stack_of_several_may_have_no_part_in_a_pass(offloader):
    model = Model(offloader, stacks=2)
    plan = follow(offloader, model)
    model.runs = [1]
    model(torch.ones(1, 4))
    assert len(plan.staged) == 6
    model.runs = []
    with pytest.raises(hoist.FailedPrecondition, match="0 of its 6"):
        model(torch.ones(1, 4))


def test_a_draft_beside_the_model_is_staged_by_its_own_plan(offloader):
    models = [Model(offloader), Model(offloader)]
    plans = [follow(offloader, model) for model in models]
    for model in models:
        model(torch.ones(1, 4))
    assert [len(plan.staged) for plan in plans] == [6, 6]


def test_a_model_whose_calls_cannot_be_seen_takes_no_budget(offloader):
    class Whole(Model):
        def __call__(self, x):
            return self.forward(x)

    with pytest.raises(hoist.Unimplemented, match="Whole takes no budget"):
        follow(offloader, Whole(offloader))


def test_the_key_of_the_compile_cache_tells_a_budget():
    register()
    register()  # vLLM may, and the factors are there once.
    plain = LoadConfig().compute_hash()
    with_budget = LoadConfig(load_format="hoist",
                             model_loader_extra_config={"budget": 0.5})
    assert with_budget.compute_hash() != plain
    assert plain == LoadConfig(load_format="auto").compute_hash()
    assert with_budget.compute_hash() == LoadConfig(
        load_format="hoist",
        model_loader_extra_config={"budget": 0.7}).compute_hash()
    assert code_factors("hoist", {}, False) == {}
