"""A model's parts: plain data, valid without its session, but for what a
publication's Model has not asked for yet."""

from __future__ import annotations

import ctypes as c
import dataclasses
import itertools
from typing import Iterator, Sequence

from . import _dtypes
from . import _c
from ._errors import NotFound
from ._library import Owner, Texts, ask, call, sized


_READERS = {1: "owner", 2: "everyone"}  # HOIST_READERS_*


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor's place in its group's image; strides are in elements."""

    name: str
    dtype: str  # safetensors' name, "BF16".
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    nbytes: int
    # Of a U8 tensor from a GGUF file: ggml's type of its packed blocks, "Q4_K".
    block_type: str = ""

    @classmethod
    def of_record(cls, record: _c.TensorInfo) -> TensorInfo:
        """Converts libhoist's record of a tensor."""
        return cls(record.name.decode(errors="replace"),
                   _dtypes.NAMES[record.dtype],
                   tuple(record.shape[:record.rank]),
                   tuple(record.strides[:record.rank]),
                   record.offset_bytes, record.size_bytes,
                   (record.block_type or b"").decode(errors="replace"))


@dataclasses.dataclass(frozen=True)
class Group:
    """A named set of tensors that are staged together."""

    model: Model = dataclasses.field(repr=False, compare=False)
    index: int
    name: str
    image_bytes: int
    tensor_count: int
    # Of a published group: hoistd's SHA-256 of it, 32 bytes, as
    # daemon/model/published_group.h defines it. None: it is read from files.
    content: bytes | None = None

    @property
    def tensors(self) -> list[TensorInfo]:
        """In image order."""
        return self.model._tensors(self)


class Model(Owner):
    """A named set of groups: `model["encoder.layer.0"]`, `model.groups`."""

    def __init__(self, handle: c.c_void_p) -> None:
        self._own(handle, "model_free")
        self.id: int = ask("model_id", handle)  # hoistd's number of it.
        # Without its owner's name.
        self.name: str = ask("model_name", handle).decode()
        # A uid, or a tenant's name from hoistd.toml.
        self.owner: int | str = (ask("model_owner_tenant", handle).decode() or
                                 ask("model_owner", handle))
        # "owner" or "everyone".
        self.readers = _READERS.get(ask("model_readers", handle), "owner")
        # Sum over all groups.
        self.image_bytes: int = ask("model_image_bytes", handle)
        # False: it is read from files.
        self.published = bool(ask("model_is_published", handle))
        # A model may have ten thousand groups: libhoist keeps them, and a Group
        # is made when it is asked for.

    @property
    def fingerprint(self) -> bytes:
        """16 bytes; identifies the weights."""
        self._numbers([])  # Raises if hoistd is to be asked, and cannot be.
        return bytes(ask("model_fingerprint", self._handle)[:16])

    @property
    def groups(self) -> list[Group]:
        """All groups, in the model's order."""
        return list(self)

    def __getitem__(self, name: str) -> Group:
        index = self._find(name)
        if index is None:
            raise NotFound(
                f'model "{self.name}" has no group "{name}"; it has '
                + ", ".join(one.name for one in itertools.islice(self, 20)))
        return self._group(index)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[Group]:
        self._numbers([])  # Their number is then the present one.
        for index in range(ask("model_group_count", self._handle)):
            group = self._group(index)
            if group.name:  # A missing one has none.
                yield group

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return (f"<hoist.Model {self.name!r}: {len(self)} groups, "
                f"{self.image_bytes} bytes>")

    def _find(self, name: str) -> int | None:
        try:
            return int(self._numbers([name])[0])
        except NotFound:
            return None

    def _numbers(self, names: Sequence[str]) -> c.Array[c.c_uint32]:
        """Of the groups. NotFound: there is none of a name."""
        numbers = (c.c_uint32 * len(names))()
        texts = Texts(names)
        call("model_find_groups", self._handle,
             c.cast(texts.pointers, c.POINTER(c.c_char_p)), len(names), numbers)
        return numbers

    def _group(self, index: int) -> Group:
        info = sized(_c.GroupInfo)
        call("model_group", self._handle, index, c.byref(info))
        return Group(self, index, info.name.decode(), info.image_bytes,
                     info.tensor_count,
                     bytes(info.content[:32]) if info.content else None)

    def _tensors(self, group: Group) -> list[TensorInfo]:
        found = []
        for index in range(group.tensor_count):
            record = sized(_c.TensorInfo)
            call("model_tensor", self._handle, group.index, index,
                 c.byref(record))
            found.append(TensorInfo.of_record(record))
        return found
