"""device.headroom: the pool shrinks for other programs, and grows again."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from models import Stack  # noqa: E402
from real_daemon import MIB, until  # noqa: E402

# A Stack of width 256 has 12.7 MiB.
SIZES = {"pool": 24 * MIB, "host": 128 * MIB}
WIDTH = 256
pytestmark = pytest.mark.real_time


@pytest.fixture
def x(device):
    if device.type != "cpu":
        pytest.skip("only an emulated device's other programs are made up")
    return torch.randn(2, WIDTH, device=device)


class Others:
    """Other programs of hoistd's device, which leave 2 MiB free."""

    def __init__(self, hoistd) -> None:
        self.hoistd = hoistd
        self._file = hoistd.path / "hoistd.toml"
        self._text = self._file.read_text()
        self.take(0)

    def take(self, mib: int, headroom: int = 2) -> None:
        self._file.write_text(self._text.replace(
            "[host]", f"headroom = \"{headroom}MiB\"\n[device.emulated]\n"
            f"others = \"{mib}MiB\"\n[host]"))
        self.hoistd.ctl("reload")
        left = 24 - (headroom and headroom + mib)
        until(lambda: self.tier("capacity_bytes") == left * MIB)
        until(lambda: self.withheld() == (24 - left, headroom))

    def withheld(self) -> tuple[float, float]:
        """What the device lacks of its pool, and the headroom, in MiB."""
        return next(((int(one["bytes"]) / MIB, int(one["headroom_bytes"]) / MIB)
                     for one in self.hoistd.status()["withheld"]), (0, 0))

    def tier(self, field: str) -> int:
        return next(int(tier.get(field, 0))
                    for tier in self.hoistd.status()["tiers"]
                    if tier["tier"] == "TIER_DEVICE")


def stack() -> Stack:
    torch.manual_seed(0)
    return Stack(width=WIDTH).eval()


def assert_right(model, x, want) -> None:
    with torch.no_grad():
        assert_equal_outputs(model(x), want)


def wanted(model, x):
    with torch.no_grad():
        return copy.deepcopy(model)(x)


def test_a_module_goes_on_with_less_and_gets_it_back(make_hoistd, x):
    others = Others(make_hoistd(**SIZES))
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    assert_right(model, x, want)
    whole = hoist.stats(model)
    assert not whole.streamed_bytes
    others.take(14)
    until(lambda: assert_right(model, x, want) or
          hoist.stats(model).streamed_bytes)
    until(lambda: others.tier("allocated_bytes") <= 8 * MIB)
    for _ in range(3):
        assert_right(model, x, want)
    assert hoist.stats(model).budget_bytes <= 8 * MIB
    counters = others.hoistd.counters()
    assert counters["lent_bytes_for_headroom"] >= 12 * MIB
    others.take(0)
    until(lambda: assert_right(model, x, want) or
          not hoist.stats(model).streamed_bytes)
    assert hoist.stats(model).budget_bytes == whole.budget_bytes
    hoist.detach(model)
    assert_right(model, x, want)


def test_a_budget_of_its_own_stays(make_hoistd, x):
    others = Others(make_hoistd(**SIZES))
    model = stack()
    want = wanted(model, x)
    hoist.attach(model, 13 * MIB)
    assert_right(model, x, want)
    before = hoist.stats(model)
    others.take(14)
    for _ in range(3):
        assert_right(model, x, want)
    assert hoist.stats(model).budget_bytes == before.budget_bytes
    assert others.tier("allocated_bytes") > 8 * MIB
    hoist.detach(model)


@pytest.mark.usefixtures("x")
def test_without_a_headroom_the_pool_is_whole_again(make_hoistd):
    others = Others(make_hoistd(**SIZES))
    others.take(14)
    others.take(12, headroom=4)  # Of the same capacity.
    others.take(14, headroom=0)


def test_what_is_idle_leaves_the_device(make_hoistd, x):
    others = Others(make_hoistd(**SIZES))
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    assert_right(model, x, want)
    hoist.sleep(model)
    others.take(18)
    until(lambda: others.tier("allocated_bytes") <= 4 * MIB)
    assert others.tier("used_bytes") <= 4 * MIB
    others.take(0)
    assert_right(model, x, want)
    hoist.detach(model)


def test_the_next_hoistd_leaves_the_same_headroom(
        make_hoistd, hoist_keeper, x):
    hoistd = make_hoistd(keeper=hoist_keeper, **SIZES)
    hoistd.until_served()
    others = Others(hoistd)
    model = stack()
    want = wanted(model, x)
    hoist.attach(model)
    assert_right(model, x, want)
    others.take(14)
    hoistd.kill_kept()
    until(lambda: assert_right(model, x, want) or
          hoist.stats(model).budget_bytes <= 8 * MIB)
    until(lambda: others.tier("allocated_bytes") <= 8 * MIB)
    assert others.tier("capacity_bytes") == 8 * MIB
    assert_right(model, x, want)
    hoist.detach(model)
