"""Tensors that are published come back from the device bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist._publish import group_content  # noqa: E402

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
          torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64, torch.complex64, torch.float8_e4m3fn,
          torch.float8_e5m2]


def random_bytes_as(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    plain = torch.empty(shape, dtype=dtype)
    raw = plain.view(torch.uint8)
    raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8))
    return plain


def assert_same_bytes(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """NaNs included, which no tensor is equal to."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    flat = (one.cpu().contiguous().reshape(-1).view(torch.uint8)
            for one in (ours, theirs))
    assert torch.equal(*flat)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_published_tensor_is_staged_bit_for_bit(session, device, dtype):
    weight = random_bytes_as(dtype, 33, 7)
    model = session.publish("model", "group", {"weight": weight})
    with session.stage(model["group"], deadline=30) as lease:
        staged = lease["weight"].torch()
        assert staged.device.type == device.type
        assert_same_bytes(staged, weight)


def test_a_group_has_tensors_of_the_device_and_of_the_host(session, device):
    here, there = torch.randn(5), torch.randn(1 << 20, 3).to(device)
    given = {"here": here, "there": there, "turned": there.t(),
             "few": torch.randn(3).to(device)}
    model = session.publish("model", "group", given)
    assert model["group"].content == group_content(
        "group", {name: one.cpu() for name, one in given.items()} | {
            "turned": there.cpu().t()})
    with session.stage(model["group"], deadline=30) as lease:
        for name, one in given.items():
            assert_same_bytes(lease[name].torch(), one)


def test_tensors_without_bytes_here_are_refused(session):
    with pytest.raises(hoist.InvalidArgument, match='"w" is on meta; publish'):
        session.publish("model", "group", {"w": torch.empty(3, device="meta")})


def test_strides_ties_and_empty_tensors_are_kept(session):
    weight = torch.randn(6, 4)
    model = session.publish("model", "group", {
        "plain": weight, "tied": weight, "turned": weight.t(),
        "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3)})
    with session.stage(model["group"], deadline=30) as lease:
        turned = lease["turned"].torch()
        assert turned.stride() == weight.t().stride()
        assert_same_bytes(turned, weight.t())
        assert lease["tied"].address == lease["plain"].address
        assert lease["scalar"].torch().shape == ()
        assert lease["empty"].torch().shape == (0, 3)


def test_a_pass_moves_the_groups_bytes_and_nothing_else(hoistd, session):
    for index in range(3):
        model = session.publish("model", f"g{index}",
                                {"w": torch.randn(1 << 16)})
    before = hoistd.counters()
    for group in model:
        with session.stage(group, deadline=30):
            pass
    after = hoistd.counters()
    moved = {name: after[name] - before[name] for name in before}
    assert moved["host_to_device_bytes"] == sum(g.image_bytes for g in model)
    assert moved["device_to_host_bytes"] == 0


def test_without_a_hoistd_the_error_says_so():
    with pytest.raises(hoist.Unavailable, match="no-hoistd.sock"):
        hoist.connect()


def test_no_address_is_that_of_a_void_image(make_hoistd):
    """0 would be taken for one: its first tensor's."""
    daemon = make_hoistd()
    with hoist.connect(daemon.socket) as session:
        model = session.publish("model", "group", {
            "weight": torch.randn(6, 4)})
        lease = session.stage(model["group"], deadline=30)
        assert lease.address
        daemon.kill()
        with pytest.raises(hoist.Unavailable):
            lease.check()
        with pytest.raises(hoist.Unavailable):
            lease.address


def test_a_killed_hoistd_is_unavailable(make_hoistd):
    daemon = make_hoistd()
    with hoist.connect() as session:
        model = session.publish("model", "group", {"w": torch.ones(3)})
        daemon.kill()
        with pytest.raises(hoist.Unavailable):
            session.stage(model["group"], deadline=30)
