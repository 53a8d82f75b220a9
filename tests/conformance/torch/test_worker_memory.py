"""What an attached model takes of its worker's own memory."""

from __future__ import annotations

import gc
import pathlib

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402

pytestmark = pytest.mark.real_time
MIB = 1 << 20
LAYERS = 96


def status_bytes(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise AssertionError(f"no {field} in /proc/self/status")


def forget_peak() -> None:
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"this process's peak cannot be reset: {error}")


def make_model() -> torch.nn.Module:
    """96 MiB in layers of 1 MiB, which glibc would keep once it freed some."""
    return torch.nn.Sequential(*(
        torch.nn.Linear(512, 512, bias=False) for _ in range(LAYERS)))


@pytest.mark.hoistd(pool=16 * MIB, host=128 * MIB)
def test_attach_lets_go_of_the_models_memory(hoistd, device):
    x = torch.randn(4, 512).to(device)
    with torch.no_grad():
        make_model().to(device)(x)  # What torch loads once is its own.
    gc.collect()
    before = status_bytes("VmRSS")
    model = make_model()
    expected = [layer.weight.sum().item() for layer in model]  # On the CPU.
    forget_peak()
    hoist.attach(model, budget=8 * MIB)
    with torch.no_grad():
        model(x)
    # The emulated device's pool is mapped, and is memory of this process, too.
    allowed = 16 * MIB + (16 * MIB if device.type == "cpu" else 0)
    assert status_bytes("VmRSS") - before < allowed
    assert status_bytes("VmHWM") - before < LAYERS * MIB + MIB + allowed
    assert [layer.weight.cpu().sum().item() for layer in model] == expected
    hoist.detach(model)
