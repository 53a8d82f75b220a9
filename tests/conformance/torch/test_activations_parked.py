"""Activations that are told to be cold: on hoistd's disk until they are needed."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from real_daemon import MIB, until  # noqa: E402

from activations import Blocks, batch, gradients, same  # noqa: E402

pytestmark = pytest.mark.real_time
SIZES = {"pool": 32 * MIB, "host": 32 * MIB, "in_place": 64 * MIB}


@pytest.fixture
def hoistd(make_hoistd, tmp_path):
    return make_hoistd(
        **SIZES, extra=f'[disk]\nspill_dir = "{tmp_path / "spill"}"\n')


@pytest.fixture
def model(device):
    torch.manual_seed(3)
    return Blocks(8).to(device)


def backward(outputs):
    """Last pass first, as a pipeline's last stage has them."""
    for output in reversed(outputs):
        output.square().mean().backward()


@pytest.fixture
def wanted(model, device):
    torch.manual_seed(7)
    backward([model(batch(device, seed)) for seed in range(3)])
    found = gradients(model)
    model.zero_grad()
    return found


def on_disk(hoistd):
    return hoistd.tier("DISK")["used_bytes"]


def test_what_is_parked_is_on_the_disk_alone_and_comes_back(
        hoistd, device, model, wanted):
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        outputs = [model(batch(device, seed)) for seed in range(3)]
        went = offload.park()
        stats = offload.stats()
        assert stats.parked_bytes == went >= stats.moved_out_bytes > MIB
        assert stats.arena_bytes == 0
        until(lambda: on_disk(hoistd) >= went)
        until(lambda: hoistd.tier("HOST")["used_bytes"] == 0)
        assert hoistd.tier("DEVICE", 1)["used_bytes"] == 0
        backward(outputs)
        assert same(gradients(model), wanted)
        del outputs
        gc.collect()
        assert offload.park() == 0  # It has a look at what is over.
        assert offload.stats().parked_bytes == 0
        until(lambda: on_disk(hoistd) == 0)


def test_it_is_read_ahead_in_the_step_before(hoistd, device, model, wanted):
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        offload.step()
        outputs = [model(batch(device, seed)) for seed in range(3)]
        went = offload.park(until=3)
        until(lambda: hoistd.tier("HOST")["used_bytes"] == 0)
        offload.step()
        assert hoistd.counters()["spill_read_bytes"] == 0
        offload.step()  # Step 2.
        until(lambda: hoistd.tier("HOST")["used_bytes"] >= went)
        backward(outputs)
        assert same(gradients(model), wanted)


def test_what_came_back_may_be_parked_no_more_and_later_passes_may(
        hoistd, device, model, wanted):
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        first = model(batch(device, 0))
        went = offload.park()
        assert offload.park() == 0
        second = model(batch(device, 1))
        assert offload.park() == went
        third = model(batch(device, 2))
        backward([first, second, third])
        assert same(gradients(model), wanted)


def test_a_graph_that_is_retained_reads_it_twice(hoistd, device, model):
    torch.manual_seed(7)
    plain = model(batch(device)).square().mean()
    for _ in range(2):
        plain.backward(retain_graph=True)
    twice = gradients(model)
    model.zero_grad()
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        loss = model(batch(device)).square().mean()
        offload.park()
        for _ in range(2):
            loss.backward(retain_graph=True)
    assert same(gradients(model), twice)


def test_without_a_disk_it_stays_where_it_is_and_says_so(make_hoistd, device,
                                                         model, wanted):
    hoistd = make_hoistd(**SIZES)
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        outputs = [model(batch(device, seed)) for seed in range(3)]
        with pytest.raises(hoist.FailedPrecondition, match="disk.spill_dir"):
            offload.park()
        assert offload.stats().parked_bytes == 0
        assert hoistd.tier("HOST")["used_bytes"] == 0
        backward(outputs)
        assert same(gradients(model), wanted)


def test_what_ends_after_close_is_forgotten_by_another(hoistd, device, model,
                                                       wanted):
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0, keep_last=0) as offload:
        outputs = [model(batch(device, seed)) for seed in range(3)]
        went = offload.park()
    backward(outputs)
    assert same(gradients(model), wanted)
    outputs.clear()
    gc.collect()
    assert on_disk(hoistd) >= went
    with hoist.offload_activations(model, min_bytes=0) as offload:
        model(batch(device))
        assert on_disk(hoistd) == 0


def test_within_a_pass_it_is_refused(hoistd, device, model):
    with hoist.offload_activations(model, min_bytes=0) as offload:
        model.layers[3].register_forward_pre_hook(
            lambda *_: offload.park() and None)
        with pytest.raises(hoist.FailedPrecondition, match="between passes"):
            model(batch(device))


def test_it_outlives_hoistd_with_its_session(make_hoistd, hoist_keeper,
                                             tmp_path, device, model, wanted):
    hoistd = make_hoistd(
        **SIZES, keeper=hoist_keeper,
        extra=f'[disk]\nspill_dir = "{tmp_path / "spill"}"\n')
    torch.manual_seed(7)
    with hoist.offload_activations(model, min_bytes=0) as offload:
        outputs = [model(batch(device, seed)) for seed in range(3)]
        went = offload.park()
        until(lambda: on_disk(hoistd) >= went)
        hoistd.kill_kept()
        assert on_disk(hoistd) >= went
        backward(outputs)
        assert same(gradients(model), wanted)


def test_a_worker_that_is_gone_leaves_nothing_on_the_disk(hoistd, device,
                                                          model):
    session = hoist.connect(hoistd.socket)
    offload = hoist.offload_activations(model, min_bytes=0, session=session)
    output = model(batch(device))
    assert offload.park() > 0
    until(lambda: on_disk(hoistd) > 0)
    session.close()
    # What was being written is on the host until that has ended.
    until(lambda: hoistd.tier("HOST")["used_bytes"] == 0
          and on_disk(hoistd) == 0)
    with pytest.raises(hoist.HoistError):
        output.square().mean().backward()
    offload.close()
