"""What this process's allocators keep."""

from __future__ import annotations

import ctypes

import torch


def give_back_free_memory(cuda: bool) -> None:
    """Lets the system, and with `cuda` other processes on the GPUs, have what
    was freed; torch keeps what was freed there for itself.

    glibc keeps freed blocks that are below a threshold, which grows to 32 MB as
    blocks are freed: of a model of many smaller weights, all of it.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass  # Another C library, which keeps other things.
    if cuda:
        torch.cuda.empty_cache()
