"""Device code of other GPUs, zeroed in a library whose layout stays.

Nothing is linked anew, and zeroes compress to nothing.
"""

from __future__ import annotations

import mmap
import pathlib
import shutil
import struct
from typing import Iterator

GPU = 90  # Hopper's; other GPUs' code is not carried.
CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)  # Magic, version, header.
PTX, ELF = 1, 2


def slim(source: pathlib.Path, target: pathlib.Path,
         without: bytes | None = None) -> int:
    """Copies a library, and returns how many bytes of it became zeroes.
    without: code that has these bytes in it goes as well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    zeroed = 0
    with open(target, "r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for begin, size in _unused(data, without):
            data[begin:begin + size] = bytes(size)
            zeroed += size
    return zeroed


def _unused(data: mmap.mmap, without: bytes | None
            ) -> Iterator[tuple[int, int]]:
    for name, begin, size in _sections(data):
        if name == "__nv_relfatbin":  # The device linker's.
            yield begin, size
        elif name == ".nv_fatbin":
            for entries in _containers(data, begin, begin + size):
                for kind, gpu, at, length in entries:
                    if not _runs(kind, gpu, entries) or (without and data.find(
                            without, at, at + length) >= 0):
                        yield at, length


def _runs(kind: int, gpu: int, entries: list[tuple[int, int, int, int]]
          ) -> bool:
    """Machine code of GPU, or if there is none, all that its driver takes."""
    if kind not in (PTX, ELF):
        return True
    if any(one[:2] == (ELF, GPU) for one in entries):
        return (kind, gpu) == (ELF, GPU)
    return kind == PTX and gpu <= GPU


def _sections(data: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """(name, offset, size) of what an ELF file has bytes of."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    _, count, names = struct.unpack_from("<HHH", data, 0x3A)

    def header(index: int) -> tuple[int, ...]:
        return struct.unpack_from("<IIQQQQ", data, table + index * 64)

    for index in range(count or header(0)[5]):
        name, kind, _, _, offset, size = header(index)
        if kind != 8:  # SHT_NOBITS
            at = header(names)[4] + name
            yield data[at:data.find(b"\0", at)].decode(), offset, size


def _containers(data: mmap.mmap, at: int, end: int
                ) -> Iterator[list[tuple[int, int, int, int]]]:
    """Of each fat binary the entries: (kind, GPU, offset, size)."""
    while (at := data.find(CONTAINER, at, end)) >= 0:
        (size,) = struct.unpack_from("<Q", data, at + 8)
        entry, stop = at + 16, at + 16 + size
        entries = []
        while entry < stop <= end:
            kind, _, head, length = struct.unpack_from("<HHIQ", data, entry)
            (gpu,) = struct.unpack_from("<I", data, entry + 28)
            entries.append((kind, gpu, entry + head, length))
            entry += max(head, 32) + length
        if entry == stop:
            yield entries
            at = stop
        else:  # Other bytes that look like one.
            at += len(CONTAINER)
