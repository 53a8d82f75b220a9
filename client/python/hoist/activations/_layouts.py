"""Where a tensor's bytes lie in its storage, and the same tensor over a copy.

Pure: nothing is copied here, and no device is waited for.
"""

from __future__ import annotations

import dataclasses

import torch

# torch's allocators align storages by this at least on a GPU. A copy begins at
# the same place modulo it, since kernels are chosen by their operands'
# alignment, and other kernels may round otherwise.
ALIGNMENT = 512


@dataclasses.dataclass(frozen=True)
class Layout:
    """A tensor but for its bytes: type, shape, strides, place."""

    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # In elements, of its storage.
    is_conj: bool
    is_neg: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        """tensor: strided, and no wrapper of others."""
        return Layout(tensor.dtype, tensor.size(), tensor.stride(),
                      int(tensor.storage_offset()), tensor.is_conj(),
                      tensor.is_neg())

    def span(self) -> tuple[int, int]:
        """The bytes of the storage that the tensor reaches, from and to, with
        the gaps between its elements; an expanded dimension reaches no more
        than one element of it does."""
        each = self.dtype.itemsize
        if 0 in self.size:
            return self.offset * each, self.offset * each
        last = sum((count - 1) * step
                   for count, step in zip(self.size, self.stride))
        return self.offset * each, (self.offset + last + 1) * each

    def over(self, storage: torch.UntypedStorage,
             begin: int) -> torch.Tensor:
        """The tensor over other bytes, with its strides as they were.

        storage: has what the tensor's own had from byte `begin` on, which is
            a multiple of ALIGNMENT.
        """
        if storage.nbytes() < self.span()[1] - begin:  # set_ would grow it.
            raise RuntimeError(
                f"a tensor of {list(self.size)} that was saved for backward "
                f"has {storage.nbytes()} bytes of storage left: it was resized")
        made = torch.empty(0, dtype=self.dtype, device=storage.device)
        made.set_(storage, self.offset - begin // self.dtype.itemsize,
                  self.size, self.stride)
        # Of a plain tensor these only set the bit.
        if self.is_conj:
            made = made.conj()
        if self.is_neg:
            made = torch._neg_view(made)
        return made


def aligned(begin: int) -> int:
    """Where a copy of what lies from `begin` on begins."""
    return begin // ALIGNMENT * ALIGNMENT


def padded(nbytes: int) -> int:
    """What a copy takes in a row of copies."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def bytes_of(storage: torch.UntypedStorage, begin: int,
             end: int) -> torch.Tensor:
    """Bytes `begin` to `end` of a storage, as a view."""
    view = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return view.set_(storage, begin, (end - begin,), (1,))
