"""Modules that are built on the meta device for hoist.load."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from torch import nn  # noqa: E402
from hoist.nn._store.building import build_on_meta  # noqa: E402


def places(module: nn.Module) -> set[str]:
    return {value.device.type for value in module.parameters()}


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_parameters_are_on_meta_and_buffers_are_real():
    model = build_on_meta(lambda: nn.Sequential(nn.Linear(2, 2),
                                                nn.BatchNorm1d(2)))
    assert places(model) == {"meta"}
    assert torch.equal(model[1].running_var, torch.ones(2))
    assert places(nn.Linear(2, 2)) == {"cpu"}


def test_a_factory_that_fails_leaves_torch_as_it_was():
    register = nn.Module.register_parameter
    with pytest.raises(ZeroDivisionError):
        build_on_meta(lambda: 1 / 0)
    with pytest.raises(hoist.InvalidArgument, match="int, not a module"):
        build_on_meta(lambda: 3)
    assert nn.Module.register_parameter is register


def test_another_threads_modules_are_not_touched_meanwhile():
    found: list[set[str]] = []

    def factory() -> nn.Module:
        thread = in_thread(lambda: found.append(places(nn.Linear(3, 3))))
        thread.join(60)
        return nn.Linear(2, 2)

    assert places(build_on_meta(factory)) == {"meta"}
    assert found == [{"cpu"}]


def test_two_threads_that_build_leave_torch_as_it_was():
    register = nn.Module.register_parameter
    inside, go_on = threading.Event(), threading.Event()
    made: list[nn.Module] = []

    def slow() -> nn.Module:
        inside.set()
        assert go_on.wait(60)
        return nn.Linear(2, 2)

    first = in_thread(lambda: made.append(build_on_meta(slow)))
    assert inside.wait(60)
    second = in_thread(lambda: made.append(build_on_meta(
        lambda: nn.Linear(2, 2))))
    second.join(0.2)  # It waits for the first, or does not: both are right.
    go_on.set()
    first.join(60)
    second.join(60)
    assert [places(one) for one in made] == [{"meta"}] * 2
    assert nn.Module.register_parameter is register


def test_a_factory_may_build_another_module_on_meta():
    done: list[nn.Module] = []
    thread = in_thread(lambda: done.append(build_on_meta(
        lambda: nn.Sequential(build_on_meta(lambda: nn.Linear(2, 2)),
                              nn.Linear(2, 2)))))
    thread.join(60)
    assert done, "it waits for itself"
    assert places(done[0]) == {"meta"}
    assert places(nn.Linear(2, 2)) == {"cpu"}


def test_a_parameter_larger_than_memory_costs_nothing():
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up = nn.Parameter(torch.empty(1 << 20, 1 << 12, 1 << 12))
            self.bias = nn.Parameter(torch.zeros(1 << 44))
            nn.init.normal_(self.gate_up)

    model = build_on_meta(Experts)
    assert places(model) == {"meta"}
    assert model.gate_up.shape == (1 << 20, 1 << 12, 1 << 12)


class Causal(nn.Module):
    """A large buffer, and a large tensor that is no buffer."""

    def __init__(self, keep) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        keep(self, torch.ones(600, 600))


def as_buffer(module: nn.Module, mask: torch.Tensor) -> None:
    module.register_buffer("mask", mask.tril(), persistent=False)


def as_attribute(module: nn.Module, mask: torch.Tensor) -> None:
    module.mask = mask


def as_number(module: nn.Module, mask: torch.Tensor) -> None:
    module.mask = torch.full((600, 600), mask.sum().item())


@pytest.mark.parametrize("keep", [as_buffer, as_attribute, as_number])
def test_large_tensors_that_are_no_parameters_are_real(monkeypatch, keep):
    monkeypatch.setattr("hoist.nn._store.building.LARGE_BYTES", 1 << 20)
    model = build_on_meta(lambda: Causal(keep))
    assert torch.equal(model.mask, Causal(keep).mask)
    assert places(model) == {"meta"}
