"""What this process's allocator keeps."""

from __future__ import annotations

import ctypes


def give_back_free_memory() -> None:
    """Lets the system have what was freed.

    glibc keeps freed blocks that are below a threshold, which grows to 32 MB as
    blocks are freed: of a model of many smaller weights, all of it.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        pass  # Another C library, which keeps other things.
