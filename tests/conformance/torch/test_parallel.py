"""Data-parallel wrappers over a base whose weights live in hoist."""

from __future__ import annotations

import sys
import types

import pytest

torch = pytest.importorskip("torch")
fsdp = pytest.importorskip("torch.distributed.fsdp")

import hoist  # noqa: E402
import ranks  # noqa: E402
from models import Stack  # noqa: E402
from passes import attached  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = [pytest.mark.usefixtures("hoistd"),
              pytest.mark.only_emulated("the ranks compute on the CPU"),
              pytest.mark.filterwarnings("ignore")]


def test_ddp_trains_adapters_over_an_attached_base(tmp_path):
    ranks.run_ranks(ranks.equals_resident, tmp_path, ranks.distributed)


@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"),
                    reason="this torch has no fully_shard")
def test_fully_shard_does(tmp_path):
    ranks.run_ranks(ranks.equals_resident, tmp_path, ranks.sharded)


def test_a_wrapper_that_takes_all_weights_is_refused_before_it_does(device):
    model = Stack(2)
    x = torch.randn(2, model.layers[0].up.in_features, device=device)
    with torch.no_grad(), attached(model, 0.9):
        before = model(x)
        for wrapped in model, nn.Sequential(model):
            with pytest.raises(hoist.FailedPrecondition,
                               match="FullySharded.*hoist.detach"):
                fsdp.FullyShardedDataParallel(wrapped)
        assert torch.equal(model(x), before)


def test_deepspeeds_engine_is_refused(monkeypatch):
    """Told by its name and constructor: not every machine has it."""
    made = []

    class DeepSpeedEngine:
        def __init__(self, args, model, **options):
            made.append(model)

    name = "deepspeed.runtime.engine"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[name], "DeepSpeedEngine", DeepSpeedEngine,
                        raising=False)
    model = Stack(2)
    with attached(model, 0.9):
        for args, options in (((None, model), {}),
                              ((None,), {"model": nn.Sequential(model)})):
            with pytest.raises(hoist.FailedPrecondition,
                               match="DeepSpeedEngine.*hoist.detach"):
                DeepSpeedEngine(*args, **options)
        plain = nn.Linear(2, 2)
        DeepSpeedEngine(None, model=plain)
    DeepSpeedEngine(None, model)
    assert made == [plain, model]


def test_wrappers_are_torchs_own_after_detach():
    """In a process that has no other attached module."""
    torch.multiprocessing.spawn(ranks.wrappers_are_torchs_own_after_detach)
