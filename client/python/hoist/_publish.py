"""Arrays and tensors for publication in hoistd."""

from __future__ import annotations

import ctypes as c
import dataclasses
from typing import Any, Iterable, Mapping

from . import _dtypes
from . import _c
from ._errors import InvalidArgument
from ._library import call, sized, text
from ._surroundings import require


def _is_torch(value: Any) -> bool:
    # Without the import of torch, if no other module needs it.
    return type(value).__module__.partition(".")[0] == "torch" or hasattr(
        value, "untyped_storage")


@dataclasses.dataclass(frozen=True)
class RawTensor:
    """A tensor by libhoist's facts: for types that neither NumPy nor torch may
    have here. Strides are in elements; `keep` owns the bytes."""

    dtype: str  # safetensors' name, "BF16".
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    keep: object


class Publication:
    """A group's C options; keeps the referenced memory alive."""

    def __init__(self, group: str, tensors: Mapping[str, Any]) -> None:
        self._keep: list[Any] = []
        # torch's GPU on which some of the tensors are; their writes have ended.
        self.gpu: Any = None
        records = (_c.PublishTensor * len(tensors))()
        self.options = sized(_c.PublishOptions)
        self.options.group = text(group)
        self.options.tensors = records
        self.options.tensor_count = len(records)
        on_host = (c.c_uint8 * len(tensors))()
        self.options.host_tensors = on_host
        for at, (record, (name, value)) in enumerate(
                zip(records, tensors.items())):
            on_host[at] = not getattr(value, "is_cuda", False)
            if isinstance(value, RawTensor):
                self._keep.append(value)
                self._fill(record, name, value.dtype, value.shape,
                           value.strides, value.address)
            elif _is_torch(value):
                self._fill(record, name, *self._of_torch(name, value))
            else:
                self._fill(record, name, *self._of_numpy(value))
        if self.gpu is not None:
            self.options.on_device = 1
            import torch
            torch.cuda.current_stream(self.gpu).synchronize()

    def _fill(self, record: _c.PublishTensor, name: str, dtype: str,
              shape: Any, strides: Any, address: int) -> None:
        rank = len(shape)
        record.name = text(name)
        record.dtype = _dtypes.NUMBERS[dtype]
        record.rank = rank
        record.shape = (c.c_int64 * rank)(*shape)
        record.strides = (c.c_int64 * rank)(*strides)
        record.data = address

    def _of_numpy(self, value: Any) -> tuple[str, Any, Any, int]:
        require("numpy", "hoist.Session.publish of an array")
        import numpy as np
        array = np.asarray(value)
        item = array.itemsize
        # NumPy's strides may be negative or fractions of an element, and its
        # byte order foreign; hoist's strides count elements forwards.
        if not array.dtype.isnative or any(
                s < 0 or s % item for s in array.strides):
            array = np.array(array, array.dtype.newbyteorder("="), order="C")
        self._keep.append(array)
        return (_dtypes.from_numpy(array.dtype), array.shape,
                [s // item for s in array.strides], array.ctypes.data)

    def _of_torch(self, name: str, value: Any) -> tuple[str, Any, Any, int]:
        tensor = value.detach()
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        device = tensor.device
        if device.type == "cuda" and self.gpu in (None, device):
            self.gpu = device
        elif device.type != "cpu":
            raise InvalidArgument(
                f'tensor "{name}" is on {device}; publish its .cpu()')
        self._keep.append(tensor)
        return (_dtypes.from_torch(tensor.dtype), tuple(tensor.shape),
                tensor.stride(), tensor.data_ptr())


def group_content(group: str, tensors: Mapping[str, Any]) -> bytes:
    """The Group.content of such a group, published or not; see
    hoist_group_content."""
    publication = Publication(group, tensors)
    content = (c.c_uint8 * 32)()
    call("group_content", c.byref(publication.options), content)
    return bytes(content)


def model_content(groups: Iterable[bytes]) -> bytes:
    """The content of a model of groups with these, in any order."""
    joined = b"".join(groups)
    content = (c.c_uint8 * 32)()
    call("model_content", (c.c_uint8 * len(joined)).from_buffer_copy(joined),
         len(joined) // 32, content)
    return bytes(content)
