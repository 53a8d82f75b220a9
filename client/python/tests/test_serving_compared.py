"""Two modules, tensor by tensor: each kind of difference is told by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from hoist.serving._compared import compare  # noqa: E402


def module():
    made = nn.Module()
    made.w = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    made.tied = made.w
    made.register_buffer("table", torch.arange(3))
    return made


def test_equal_modules_have_no_differences():
    found = compare(module(), module())
    assert found.differences == ()
    assert (found.tensors, found.nbytes) == (2, 48)


@pytest.mark.parametrize("change, says", [
    (lambda m: m.w.data.add_(1), "w, tied: .* of 24 bytes differ"),
    (lambda m: m._parameters.pop("tied"), "w, tied: is not there"),
    (lambda m: m.register_buffer("more", torch.ones(1)), "more: is there"),
    (lambda m: setattr(m.w, "data", m.w.data.t().contiguous().t()),
     "strides"),
    (lambda m: m.register_buffer("table", torch.arange(3).int()), "type"),
    (lambda m: m.register_buffer("table", torch.arange(4)), "shape"),
])
def test_what_differs_is_told(change, says):
    import re
    changed = module()
    change(changed)
    found = compare(module(), changed)
    assert any(re.search(says, one) for one in found.differences)
