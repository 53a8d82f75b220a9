"""A plain reader of one safetensors file, to compare hoist's bytes with."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Iterator


class SafetensorsFile:
    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            self.header: dict[str, Any] = json.loads(file.read(size))
        self.header.pop("__metadata__", None)
        self._start = 8 + size

    def __iter__(self) -> Iterator[str]:
        return iter(self.header)

    def array(self, name: str) -> Any:
        """A copy of a tensor's bytes, as a flat uint8 array that begins at a
        multiple of 256 like hoist's images: some BLAS give other last bits for
        other alignments."""
        import numpy as np
        begin, end = self.header[name]["data_offsets"]
        room = np.empty(end - begin + 256, np.uint8)
        at = -room.ctypes.data % 256
        out = room[at:at + end - begin]
        with open(self.path, "rb") as file:
            file.seek(self._start + begin)
            if file.readinto(memoryview(out)) != end - begin:
                raise EOFError(f"{self.path} ends inside {name}")
        return out


def shards_of(path: str) -> list[str]:
    """The files that hold the model: as hoist.register takes them."""
    if os.path.isfile(path):
        return [path]
    index = os.path.join(path, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    else:
        names = sorted(n for n in os.listdir(path)
                       if n.endswith(".safetensors"))
        if "model.safetensors" in names:
            names = ["model.safetensors"]
    return [os.path.join(path, name) for name in names]
