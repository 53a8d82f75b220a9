"""What a pass takes: device memory, bytes on the link, waits. All counted."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import WIDTH, Block, Stack, numbers  # noqa: E402
from passes import (assert_passes, attached, least_budget, make,  # noqa: E402
                    references, settled)

WHOLE = {"whole": ["layers"]}


def device_bytes(model: torch.nn.Module) -> int:
    stats = hoist.stats(model)
    return stats.pinned_bytes + stats.resident_bytes + stats.ring_bytes


def test_smaller_groups_need_less_of_the_device(hoistd, device):
    """Item 3: leaf <= block < 3 blocks < whole, by what hoistd has leased."""
    case, model = make("stack")
    expected = references(case, model, device)
    taken = []
    for groups in ("leaf", "block", ("block", 3), WHOLE):
        with attached(model, least_budget(model, groups=groups),
                      groups=groups):
            assert_passes(case, model, device, expected)
            stats = hoist.stats(model)
            leased = hoistd.tier("DEVICE")["leased_bytes"]
            assert leased == device_bytes(model) <= stats.budget_bytes
            taken.append(leased)
    leaf, block, three, whole = taken
    assert leaf <= block < three < whole
    assert whole >= sum(p.nbytes for p in model.parameters())
    assert block < 3 * sum(p.nbytes for p in model.layers[0].parameters())
    assert hoistd.tier("DEVICE")["leased_bytes"] == 0


def test_a_budget_that_goes_to_slots_is_told(hoistd, device, caplog):
    caplog.set_level(logging.INFO, logger="hoist.nn")
    _, model = make("stack")
    for budget, told in ((least_budget(model), True), (1.0, False)):
        caplog.clear()
        with attached(model, budget):
            said = [one for one in caplog.messages if "groups=" in one]
            assert bool(said) == told
            if told:
                assert str(hoist.stats(model).ring_bytes) in said[0]


@pytest.mark.parametrize("name", ["transformer", "image"])
def test_residents_and_slots_are_all_that_the_device_gives(hoistd, device,
                                                           name):
    """Item 3: at a budget between least and whole."""
    case, model = make(name)
    expected = references(case, model, device)
    least = least_budget(model)
    for budget in (least, least * 3 // 2, least * 3):
        with attached(model, budget):
            assert_passes(case, model, device, expected)
            leased = hoistd.tier("DEVICE")["leased_bytes"]
            assert leased == device_bytes(model) <= budget


@pytest.mark.only_cuda("torch's allocator counts a GPU's memory")
@pytest.mark.parametrize("groups", ["leaf", "block"])
def test_torch_takes_no_device_memory_for_weights(hoistd, device, groups):
    """Item 3: what the framework takes is activations."""
    model = Stack(6, 256).eval()
    x = numbers(2, 5, 256).to(device)
    with torch.no_grad(), attached(model, least_budget(model, groups=groups),
                                   groups=groups):
        model(x)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            model(x)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        # A pass's activations are 2 x 5 x 1,024 floats at the widest.
        assert torch.cuda.max_memory_allocated() - before < 1 << 20


@pytest.mark.parametrize("groups", ["leaf", "block", ("block", 2)], ids=str)
@pytest.mark.parametrize("name", ["stack", "transformer", "image", "shared"])
def test_a_pass_copies_the_streamed_bytes_and_nothing_else(hoistd, device,
                                                           name, groups):
    """Item 4: to the byte, over 5 passes; nothing from device to host."""
    case, model = make(name)
    expected = references(case, model, device, 5)
    least = least_budget(model, groups=groups)
    for budget in (least, least * 2):
        with attached(model, budget, groups=groups):
            assert_passes(case, model, device, expected)  # Learns the order.
            streamed = hoist.stats(model).streamed_bytes
            if budget == least:
                assert streamed > 0
            before = settled(hoistd)
            assert_passes(case, model, device, expected)
            after = settled(hoistd)
        moved = {key: after[key] - before[key] for key in before}
        assert moved["host_to_device_bytes"] == 5 * streamed
        assert moved["device_to_host_bytes"] == 0
        assert moved["file_read_bytes"] == moved["spill_read_bytes"] == 0
        assert moved["stages"] == 0  # No message asked for a group.


def test_what_is_resident_is_copied_once(hoistd, device):
    """Items 4 and 5: with all resident a pass copies and waits for nothing."""
    case, model = make("stack")
    expected = references(case, model, device)
    with attached(model):
        assert_passes(case, model, device, expected)
        before, stats = settled(hoistd), hoist.stats(model)
        assert_passes(case, model, device, expected)
        after, now = settled(hoistd), hoist.stats(model)
    assert after == before
    assert now.host_waits == stats.host_waits
    assert now.wake_ups == stats.wake_ups
    assert now.stages == stats.stages  # Nor does it ask for anything.
    assert now.bound_groups == now.groups == 6


def test_the_first_group_of_a_pass_is_there_before_it(hoistd, device):
    """Item 5: wrap-around. Between passes the ring is filled for the next; its
    first stage finds its bytes, and waits for nothing.

    On an emulated device the CPU waits wherever a GPU's stream would, so that
    waits of later stages, which copies race with, say nothing there.
    """
    case, model = make("stack")
    expected = references(case, model, device)
    seen = []

    def look(*_):
        seen.append(hoist.stats(model))

    with attached(model, least_budget(model)):
        assert_passes(case, model, device, expected)
        for _ in range(3):
            settled(hoistd)
            before = hoist.stats(model)
            with model.layers[0].up.register_forward_pre_hook(look):
                assert_passes(case, model, device, expected[:1])
            first = seen.pop()
            assert first.stages == before.stages + 1
            assert (first.ready_stages + first.resident_stages ==
                    before.ready_stages + before.resident_stages + 1)
            assert first.host_waits == before.host_waits


@pytest.mark.only_cuda("on an emulated device the CPU waits for copies")
@pytest.mark.parametrize("groups", ["leaf", "block"])
def test_no_stage_waits_on_the_host(hoistd, device, groups):
    """Item 5: over 20 passes at a small budget, the GPU alone waits."""
    case, model = make("stack")
    expected = references(case, model, device, 20)
    with attached(model, least_budget(model, groups=groups) * 2,
                  groups=groups):
        assert_passes(case, model, device, expected)
        torch.cuda.synchronize()
        before = hoist.stats(model)
        assert_passes(case, model, device, expected)
        after = hoist.stats(model)
        assert after.stages > before.stages
        assert after.host_waits == before.host_waits
        assert after.skipped == before.skipped


class SlowReader(Block):
    """Reads its weights before and after hoistd has had the time to copy
    whatever it thinks it may."""

    hoistd = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = super().forward(x)
        if self.hoistd is not None:
            settled(self.hoistd)
        after = super().forward(x)
        return torch.stack([before, after]).mean(0)


def test_a_slot_in_use_is_never_refilled(hoistd, device):
    """Item 6: with one slot, which the next groups are waiting for."""
    model = Stack(4).eval()
    for at in range(4):
        model.layers[at] = SlowReader().eval()
    case, _ = make("stack")
    expected = references(case, model, device, 1)
    with attached(model, least_budget(model)):
        assert_passes(case, model, device, expected)
        for layer in model.layers:
            layer.hoistd = hoistd
        assert_passes(case, model, device, expected)
        for layer in model.layers:
            layer.hoistd = None


class SlowKernel(Block):
    """Keeps the GPU busy before its weights are read."""

    cycles = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        return super().forward(x)


@pytest.mark.only_cuda("streams are a GPU's")
@pytest.mark.parametrize("slots", [1, 2])
def test_a_slow_kernel_keeps_its_weights(hoistd, device, slots):
    """Item 6: passes on side streams in turn, each of whose kernels starts
    long after the host has gone on."""
    model = Stack(6).eval()
    for at in range(6):
        model.layers[at] = SlowKernel().eval()
    x = numbers(2, 5, WIDTH).to(device)
    with torch.no_grad():
        whole = references(make("stack")[0], model, device, 1)[0]
        with attached(model, least_budget(model) * slots):
            assert_equal_outputs(model(x), whole)
            for layer in model.layers:
                layer.cycles = 5_000_000
            torch.cuda.synchronize()
            streams = [torch.cuda.Stream() for _ in range(2)]
            outputs = []
            for turn in range(6):
                with torch.cuda.stream(streams[turn % 2]):
                    outputs.append(model(x))
            torch.cuda.synchronize()
            hoist.check(model)
            for output in outputs:
                assert_equal_outputs(output, whole)
