"""A tensor's place in its storage, and the same tensor over a copy.

Pure: nothing here copies, or waits for a device.
"""

from __future__ import annotations

import dataclasses

import torch

# torch's allocators align storages at least to this on a GPU. A copy keeps the
# alignment modulo it, since torch chooses kernels by their operands' alignment,
# and other kernels may round differently.
ALIGNMENT = 512


@dataclasses.dataclass(frozen=True)
class Layout:
    """A tensor without its bytes: type, shape, strides, place."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # In elements, within its storage.
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """tensor: strided, and no wrapper of others."""
        return Layout(tensor.dtype, tensor.size(), tensor.stride(),
                      int(tensor.storage_offset()), tensor.is_conj(),
                      tensor.is_neg())

    def span(self) -> tuple[int, int]:
        """The range of the storage's bytes that the tensor spans, gaps between
        its elements included; an expanded dimension adds one element."""
        each = self.dtype.itemsize
        if 0 in self.size:
            return self.offset * each, self.offset * each
        last = sum((count - 1) * step
                   for count, step in zip(self.size, self.stride))
        return self.offset * each, (self.offset + last + 1) * each

    def over(self, storage: torch.UntypedStorage,
             begin: int) -> torch.Tensor:
        """The tensor over other bytes, with the same strides.

        storage: the bytes of the tensor's own from byte `begin` on, which is a
            multiple of ALIGNMENT.
        """
        if storage.nbytes() < self.span()[1] - begin:  # set_ would grow it.
            raise RuntimeError(
                f"a tensor of {list(self.size)} that was saved for backward "
                f"has {storage.nbytes()} bytes of storage left: it was resized")
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        made.set_(storage, self.offset - begin // self.dtype.itemsize,
                  self.size, self.stride)
        # On a plain tensor these only set the bit.
        if self.is_conj:
            made = made.conj()
        if self.is_neg:
            made = torch._neg_view(made)
        return made


def aligned(begin: int) -> int:
    """The begin of a copy of the bytes from `begin` on."""
    return begin // ALIGNMENT * ALIGNMENT


def padded(nbytes: int) -> int:
    """The size of a copy in a row of copies."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def bytes_of(storage: torch.UntypedStorage, begin: int,
             end: int) -> torch.Tensor:
    """Bytes `begin` to `end` of a storage, as a view."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, begin, (end - begin,), (1,))
