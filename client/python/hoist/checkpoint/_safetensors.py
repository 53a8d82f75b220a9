"""The contents of safetensors and GGUF files, by their headers; no weight is
read.

The format: https://huggingface.co/docs/safetensors: eight bytes of length,
little endian, then JSON of that length. GGUF is the gguf package's to read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import pathlib
import re
import tempfile
from typing import Any, Iterator, Mapping, Sequence, Union

from .._errors import DataLoss, InvalidArgument, NotFound, Unimplemented
from .._surroundings import is_installed

OnePath = Union[str, os.PathLike[str]]
Paths = Union[OnePath, Sequence[OnePath]]

_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000  # As in safetensors.
_CHUNK = 16 << 20  # Bytes in one read.
# Types of ggml and safetensors; all others of ggml are packed.
_GGUF_PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
_OF_A_SET = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$")
# Usual suffixes of files that run code when they are read.
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_INSTEAD = ("hoist reads weights from safetensors files; save it once more as "
            "such (save_pretrained does), or read it yourself and hoist.attach "
            "the module")

_FROM_GGUF = ("hoist.load takes one GGUF file, by its name: give it that, and "
              "join a set's files with gguf-split --merge before; "
              "Session.register has the tensors of a set")


@dataclasses.dataclass(frozen=True)
class FileTensor:
    """dtype as safetensors names it; block_type is GGUF's of packed bytes."""

    dtype: str
    shape: tuple[int, ...]
    block_type: str = ""


def find_files(path: OnePath) -> list[pathlib.Path]:
    """The files that hoistd reads for a file or a folder (hoist/c/model.h).

    NotFound: there is none. InvalidArgument: a checkpoint of another kind.
    Unimplemented: several GGUF files."""
    where = pathlib.Path(path)
    if where.is_file():
        head = _head(where)
        if _is_pickled(head):
            raise InvalidArgument(f"{where} is a pickled checkpoint: {_INSTEAD}")
        if _OF_A_SET.search(where.name):  # hoistd would read all of them.
            raise Unimplemented(f"{where} is one of a set of GGUF files: "
                                f"{_FROM_GGUF}")
        return [where]
    if not where.is_dir():
        raise NotFound(f"{where} is neither a file nor a folder")
    whole = where / "model.safetensors"
    if not (where / _INDEX).exists() and whole.exists():
        return [whole]
    found = sorted(where.glob("*.safetensors"))
    if not found and next(where.glob("*.gguf"), None):
        raise Unimplemented(f"{where} holds GGUF files: {_FROM_GGUF}")
    if not found:
        others = [one.name for one in sorted(where.iterdir())
                  if one.suffix in _PICKLED]
        raise NotFound(f"{where} holds no *.safetensors file"
                       + f", but {', '.join(others[:3])}" * bool(others)
                       + f": {_INSTEAD}")
    return found


def is_gguf(path: pathlib.Path) -> bool:
    """By its first bytes; False if it is no file."""
    return path.is_file() and _head(path).startswith(b"GGUF")


def _head(path: pathlib.Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(9)


def _is_pickled(head: bytes) -> bool:
    """By its bytes: torch.save's zip archive, or an old pickle; a safetensors
    file has JSON after the length."""
    return head[8:] != b"{" and head.startswith((b"PK\x03\x04", b"\x80"))


def read_headers(files: Sequence[pathlib.Path]) -> dict[str, FileTensor]:
    """DataLoss: a file is no safetensors file. Unreadable ones raise open()'s
    errors. An index beside the files assigns tensors to files."""
    found: dict[str, FileTensor] = {}
    for path, _, name, entry in _entries(files):
        found[name] = _tensor(entry)
    return found


def read_metadata(path: pathlib.Path) -> dict[str, str]:
    """The writer's metadata in the file; GGUF's is left to its library. Errors
    are read_headers'."""
    if is_gguf(path):
        return {}
    try:
        found = json.loads(_header(path)).get("__metadata__") or {}
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError) as error:
        raise DataLoss(f"{path} is no safetensors file: {error}") from None


class Bytes:
    """The bytes of files' tensors, read in this process on request."""

    def __init__(self, files: Sequence[pathlib.Path]) -> None:
        """As read_headers."""
        self._places: dict[str, tuple[pathlib.Path, int, int]] = {}
        self._headers: dict[str, FileTensor] = {}
        for path, start, name, entry in _entries(files):
            first, last = entry["data_offsets"]
            self._places[name] = path, start + first, start + last
            self._headers[name] = _tensor(entry)

    def read(self, name: str, offset: int = 0, size: int = 0) -> bytearray:
        """size: 0: up to the tensor's end. DataLoss: the file is too short."""
        path, start, end = self._places[name]
        start += offset
        found = bytearray(size or end - start)
        with open(path, "rb") as file:
            file.seek(start)
            if file.readinto(found) != len(found):
                raise DataLoss(f'{path} ends within "{name}"')
        return found

    def place(self, name: str) -> tuple[pathlib.Path, int, int]:
        """The file, and the tensor's begin and end in it."""
        return self._places[name]

    def same(self, one: str, other: str) -> bool:
        """They have the same bytes, type and shape."""
        if self._headers[one] != self._headers[other]:
            return False
        _, start, end = self._places[one]
        sizes = ((at, min(_CHUNK, end - start - at))
                 for at in range(0, end - start, _CHUNK))
        return all(self.read(one, at, size) == self.read(other, at, size)
                   for at, size in sizes)


def _entries(files: Sequence[pathlib.Path]
             ) -> Iterator[tuple[pathlib.Path, int, str, dict[str, Any]]]:
    """For each tensor: its file, the begin of that file's tensors, its name and
    the header's entry."""
    index = files[0].parent / _INDEX
    picked: dict[str, str] = {}
    if len(files) > 1 and index.exists():
        picked = _weight_map(index)
    for path in files:
        if is_gguf(path):
            yield from ((path, 0, name, _checked(entry))
                        for name, entry in _gguf_entries(path))
            continue
        text = _header(path)
        try:
            header = json.loads(text)
            found = [(path, 8 + len(text), name, _checked(entry))
                     for name, entry in header.items()
                     if name != "__metadata__"
                     and picked.get(name, path.name) == path.name]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataLoss(f"{path} is no safetensors file: {error}") from None
        yield from found


def _tensor(entry: Mapping[str, Any]) -> FileTensor:
    return FileTensor(entry["dtype"], entry["shape"],
                      entry.get("block_type", ""))


def _gguf_entries(path: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """As a safetensors header would have them, with offsets from the file's
    start. Packed blocks are bytes, as to hoistd."""
    if not is_installed("gguf"):
        raise Unimplemented(f"{path} is a GGUF file, which takes the gguf "
                            "package to load: pip install gguf")
    gguf: Any = importlib.import_module("gguf")
    try:
        found = gguf.GGUFReader(path).tensors
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise DataLoss(f"{path} is no GGUF file: {error}") from None
    for one in found:
        kind = one.tensor_type.name
        plain = kind if kind in _GGUF_PLAIN else ""
        shape = tuple(map(int, one.data.shape))
        if kind == "BF16":  # Bytes to the package.
            shape = (*shape[:-1], shape[-1] // 2)
        yield one.name, {
            "dtype": plain or "U8", "shape": shape,
            "data_offsets": (int(one.data_offset),
                             int(one.data_offset + one.n_bytes)),
            "block_type": "" if plain else kind}


def _header(path: pathlib.Path) -> bytes:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _MAX_HEADER else b""
    if len(text) != length:
        raise DataLoss(f"{path} is no safetensors file")
    return text


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    first, last = entry["data_offsets"]
    if not isinstance(dtype, str) or any(
            type(one) is not int or one < 0
            for one in (*shape, first, last)) or first > last:
        raise ValueError(f"a tensor cannot be {entry}")
    return {**entry, "shape": shape}


def _weight_map(index: pathlib.Path) -> dict[str, str]:
    try:
        return dict(json.loads(index.read_text()).get("weight_map", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataLoss(f"{index} is no index of safetensors files: {error}"
                       ) from None


def identity(files: Sequence[pathlib.Path], rule: str) -> str:
    """Eight digits for these files' present state, grouped by `rule`."""
    digest = hashlib.sha256(rule.encode())
    for path in files:
        facts = os.stat(path)
        digest.update(repr((facts.st_dev, facts.st_ino, facts.st_size,
                            facts.st_mtime_ns)).encode())
    return digest.hexdigest()[:8]


@contextlib.contextmanager
def one_path(paths: Paths) -> Iterator[str]:
    """A path that stands for all of them."""
    if isinstance(paths, (str, os.PathLike)):
        yield os.fspath(paths)
        return
    if not paths:
        raise InvalidArgument("no file to load from")
    with tempfile.TemporaryDirectory(prefix="hoist-load-") as folder:
        for at, path in enumerate(paths):
            link = pathlib.Path(folder) / f"{at:05}-{pathlib.Path(path).name}"
            link.symlink_to(pathlib.Path(path).resolve(strict=True))
        yield folder
