"""Mistakes; test_types.py holds that each is refused at its line, and that
nothing else is. "torch" marks those which no checker sees without torch."""

import torch
from torch import nn

import hoist
from hoist.compat import (apply_group_offloading, apply_layerwise_casting,
                          cpu_offload, load_checkpoint_and_dispatch)


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2))


def mistakes(model: nn.Sequential, session: hoist.Session) -> None:
    hoist.atach(model)  # attr-defined
    hoist.compat.offload(model)  # attr-defined
    hoist.attach()  # call-arg
    hoist.attach(model, bugdet="8GiB")  # call-arg
    hoist.attach(model, "8GiB", "leaf")  # call-arg
    hoist.attach(model, budget=[8])  # arg-type
    hoist.attach(model, idle="gpu")  # arg-type
    hoist.attach(model, groups="blocks")  # arg-type
    hoist.attach(model, groups=("block", "2"))  # arg-type
    hoist.attach(model, exclude=1)  # arg-type, torch
    hoist.attach(model, exclude=[1])  # list-item, torch
    hoist.attach(model, exclude_kwargs=1)  # arg-type
    hoist.attach(model, name=1)  # arg-type
    hoist.attach(model, deadline="60")  # arg-type
    hoist.attach(model, weight="1")  # arg-type
    hoist.attach(model, wieght=1)  # call-arg
    hoist.attach(model, session="hoistd.sock")  # arg-type
    hoist.attach("model")  # type-var, torch
    hoist.attach(model, device=1.5)  # arg-type, torch
    hoist.attach(model, storage_dtype="float8")  # arg-type, torch
    answer: int = hoist.attach(model)  # assignment, torch
    hoist.load(make)  # call-overload
    hoist.load(make, 1)  # call-overload
    hoist.load(make, "a", rename=1)  # call-overload
    hoist.load(make, "a", bugdet="8GiB")  # call-overload
    hoist.load(make, "a", dtype="bfloat16")  # call-overload, torch
    hoist.detach()  # call-arg
    hoist.set_budget(model)  # call-arg
    hoist.stage()  # call-overload
    size: str = hoist.stats(model).model_bytes  # assignment
    hoist.stats(model).bytes  # attr-defined
    apply_group_offloading(model, offload_type="block")  # arg-type
    apply_group_offloading(model, "cuda", bugdet="8GiB")  # call-arg
    apply_group_offloading(model, "cuda", groups="leaf")  # call-arg
    apply_layerwise_casting(model, torch.float16)  # call-arg
    cpu_offload(model, "cuda", budget=[8])  # arg-type
    load_checkpoint_and_dispatch(model)  # call-arg
    load_checkpoint_and_dispatch(model, "a", rename=1)  # arg-type
    hoist.connect(deadline=1)  # call-arg
    session.register("a", groups="blocks")  # arg-type
    session.stage("layers.0")  # arg-type
    session.set_plan(session.model("a"), budget="8GiB")  # arg-type
    session.set_plan(session.model("a"), stage_deadline="1")  # arg-type
    session.set_plan(session.model("a"), cap=1)  # call-arg
    hoist.Joined(2, ["a"])  # arg-type
