"""Where a tensor's bytes lie, and the tensor over a copy of them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hoist.activations._layouts import (ALIGNMENT, Layout, aligned,  # noqa: E402
                                        bytes_of, padded)

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.int64, torch.bool,
          torch.complex64, torch.float8_e4m3fn]


def some_view(chance, base):
    """A strided view of a flat tensor; expanded dimensions and empty ones
    among them."""
    sizes = [chance.randint(0, 4) for _ in range(chance.randint(0, 4))]
    strides = [chance.randint(0, 6) for _ in sizes]
    offset = chance.randint(0, len(base) - 1 - sum(
        max(0, size - 1) * step for size, step in zip(sizes, strides)))
    return base.as_strided(sizes, strides, offset)


def elements(view):
    """Byte offsets of all elements, one by one."""
    places = [view.storage_offset()]
    for size, step in zip(view.shape, view.stride()):
        places = [at + i * step for at in places for i in range(size)]
    return [at * view.dtype.itemsize for at in places]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_span_is_from_the_first_byte_to_the_last(chance, dtype):
    base = torch.zeros(2000, dtype=dtype)
    for _ in range(50):
        view = some_view(chance, base)
        begin, end = Layout.of(view).span()
        places = elements(view)
        if not places:
            assert begin == end
            continue
        assert (begin, end) == (min(places), max(places) + dtype.itemsize)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_over_a_copy_is_the_tensor(chance, dtype):
    base = torch.randint(0, 2, (16000,), dtype=torch.uint8).view(dtype)
    for _ in range(50):
        view = some_view(chance, base)
        layout = Layout.of(view)
        begin, end = aligned(layout.span()[0]), layout.span()[1]
        copy = bytes_of(base.untyped_storage(), begin, end).clone()
        made = layout.over(copy.untyped_storage(), begin)
        assert made.dtype == dtype and made.stride() == view.stride()
        assert made.shape == view.shape
        assert torch.equal(made.float() if dtype == torch.float8_e4m3fn else
                           made, view.float() if dtype == torch.float8_e4m3fn
                           else view)
        if view.numel():
            assert made.data_ptr() % 64 == view.data_ptr() % 64


def test_bits_of_views_that_compute_are_kept():
    base = torch.randn(8, 2)
    for view in (torch.view_as_complex(base).conj(),
                 torch.view_as_complex(base).conj().imag):
        layout = Layout.of(view)
        copy = base.clone().untyped_storage()
        made = layout.over(copy, 0)
        assert torch.equal(made, view)
        assert (made.is_conj(), made.is_neg()) == (view.is_conj(),
                                                   view.is_neg())


def test_copies_in_a_row_are_aligned():
    assert [padded(count) for count in (0, 1, ALIGNMENT, ALIGNMENT + 1)] == [
        0, ALIGNMENT, ALIGNMENT, 2 * ALIGNMENT]
    assert [aligned(at) for at in (0, 1, ALIGNMENT, ALIGNMENT + 1)] == [
        0, 0, ALIGNMENT, ALIGNMENT]
