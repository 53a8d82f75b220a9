"""The driver's calls that probes make themselves, and cuda.h's structures of them."""

from __future__ import annotations

import ctypes as c
from typing import Any


class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class Properties(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location),
                ("win32", c.c_void_p), ("flags", c.c_ubyte * 32)]


class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", c.c_int)]


cuda: Any = c.CDLL("libcuda.so.1")


def ask(call: str, *args: Any) -> None:
    code = getattr(cuda, call)(*args)
    if code:
        raise RuntimeError(f"{call}: CUDA error {code}")
