"""A node drains: who is attached goes on, and can let go."""

from __future__ import annotations

import subprocess

import pytest

torch = pytest.importorskip("torch")

import hoist  # noqa: E402
from equal import assert_equal_outputs  # noqa: E402
from passes import assert_passes, make, references  # noqa: E402


def test_who_is_attached_goes_on_and_is_detached(make_hoistd, device):
    case, model = make("transformer")
    expected = references(case, model, device)
    daemon = make_hoistd()
    hoist.attach(model, 0.6)
    assert_passes(case, model, device, expected)
    with pytest.raises(subprocess.CalledProcessError):  # Leases are left.
        daemon.ctl("drain", "--deadline", "0")
    assert_passes(case, model, device, expected)
    hoist.set_budget(model, 0.5)
    assert_passes(case, model, device, expected)
    late = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    with pytest.raises(hoist.Unavailable, match="draining"):
        hoist.attach(late, 0.6)
    hoist.detach(model)
    for ours, theirs in zip(references(case, model, device), expected):
        assert_equal_outputs(ours, theirs)
    daemon.ctl("drain", "--deadline", "60")
