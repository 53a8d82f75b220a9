"""Every way to write a budget or a device."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from hoist.nn._plan.budget import (  # noqa: E402
    find_device, first_device, to_bytes)


@pytest.mark.parametrize("amount, nbytes", [
    (None, 0), (1, 1), (12345, 12345), ("8GiB", 8 << 30), ("8 GiB", 8 << 30),
    ("8gib", 8 << 30), (" 500MB ", 500_000_000), ("1.5KiB", 1536),
    ("7", 7), ("7B", 7), ("2TiB", 2 << 40), ("3kb", 3000), (".5MiB", 1 << 19),
    (1.0, 1000), (0.5, 500), (0.0001, 1), (1e-9, 1)], ids=repr)
def test_an_amount_is_so_many_bytes(amount, nbytes):
    assert to_bytes(amount, 1000) == nbytes


@pytest.mark.parametrize("amount", [
    0, -1, 0.0, -0.5, 1.5, float("nan"), float("inf"), "", "GiB", "8 apples",
    "-1GiB", "1.2.3GiB", ".", "8GiBs", "0", "0.0GiB", "0.2B", True, False,
    [8], {}, b"8GiB", 3j], ids=repr)
def test_what_is_no_amount_is_refused_and_says_what_would_do(amount):
    with pytest.raises(hoist.InvalidArgument, match="GiB|an int|MB"):
        to_bytes(amount, 1000)


def session(*kinds: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(devices=[
        types.SimpleNamespace(index=at, kind=kind, name=f"{kind} {at}",
                              uuid=b"", pool_bytes=1 << 30)
        for at, kind in enumerate(kinds)])


def test_none_is_hoistds_first_device_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device, where = find_device(session("emulated", "emulated"), None)
    assert device.index == 0 and where == torch.device("cpu")


def test_a_number_is_hoistds_own():
    device, where = find_device(session("emulated", "emulated"), 1)
    assert device.index == 1 and where == torch.device("cpu")


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu")], ids=repr)
def test_the_cpu_is_an_emulated_device(name):
    assert find_device(session("emulated"), name)[0].index == 0


@pytest.mark.parametrize("wanted", [2, -1, "meta", "xpu"], ids=repr)
def test_a_device_that_hoistd_lacks_is_not_found_and_all_are_listed(wanted):
    with pytest.raises(hoist.NotFound, match=r"0 \(emulated.*1 \(emulated"):
        find_device(session("emulated", "emulated"), wanted)


@pytest.mark.parametrize("wanted", ["nowhere", "cpu:x", 1.5, True, b"cpu"],
                         ids=repr)
def test_what_names_no_device_is_an_invalid_argument(wanted):
    with pytest.raises(hoist.InvalidArgument, match="device"):
        find_device(session("emulated"), wanted)


@pytest.mark.parametrize("budget, wanted, found", [
    ({1: "1GiB", 0: None}, None, "cuda:3"), ({0: None, 1: None}, None, "cpu"),
    (0.5, 1, "cuda:3"), (None, 0, "cpu")], ids=repr)
def test_the_first_device_is_the_budgets_or_the_wanted_one(
        monkeypatch, budget, wanted, found):
    monkeypatch.setattr("hoist._tensor._cuda_device", lambda uuid: "cuda:3")
    assert first_device(session("emulated", "cuda"), budget,
                        wanted) == torch.device(found)
