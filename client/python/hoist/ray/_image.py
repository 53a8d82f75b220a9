"""A group in transfer between nodes: one buffer, and its layout."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable, Mapping

import numpy as np

from .. import _dtypes
from .._errors import InvalidArgument, Unimplemented
from .._model import Group, TensorInfo
from .._publish import RawTensor, group_content

_ALIGNMENT = 64  # Of tensors in a buffer, for code that computes on them.


@dataclasses.dataclass(frozen=True)
class GroupHead:
    """A group's facts without its weights; it travels as a plain message.

    content: 32 bytes, as Group.content. nbytes: of the buffer.
    """

    name: str
    tensors: tuple[TensorInfo, ...]
    nbytes: int
    content: bytes


def head_of(name: str, tensors: Iterable[TensorInfo], image: Any) -> GroupHead:
    """Hashes the buffer, which is the tensors' image.

    Unimplemented: tensors overlap so much that hoistd would hash their image.
    """
    held = tuple(tensors)
    ranges = {(info.offset, info.nbytes) for info in held}
    if sum(nbytes for _, nbytes in ranges) > 2 * len(image):
        raise Unimplemented(
            f'group "{name}" has overlapping tensors of more than twice its '
            "image's bytes: it has no digest before it is published; publish "
            "it on each node by itself")
    head = GroupHead(name, held, len(image), b"")
    return dataclasses.replace(
        head, content=group_content(name, raw_tensors(head, image)))


def raw_tensors(head: GroupHead, image: Any) -> dict[str, RawTensor]:
    """Session.publish's argument: views of the buffer, which it copies once.

    InvalidArgument: a tensor exceeds the buffer.
    """
    flat = np.frombuffer(image, np.uint8)
    address = flat.ctypes.data
    if flat.size != head.nbytes or any(
            info.offset < 0 or info.nbytes < 0
            or info.offset + info.nbytes > flat.size
            or info.nbytes < _span(info) for info in head.tensors):
        raise InvalidArgument(
            f'the buffer of group "{head.name}" has {flat.size} bytes and '
            f"should have {head.nbytes}, its tensors all within")
    return {info.name: RawTensor(info.dtype, info.shape, info.strides,
                                 address + info.offset if info.nbytes else 0,
                                 flat)
            for info in head.tensors}


def _span(info: TensorInfo) -> int:
    """Bytes that the elements span. InvalidArgument: the facts are invalid."""
    if info.dtype not in _dtypes.NUMBERS or min(
            (*info.shape, *info.strides), default=0) < 0 or len(
                info.shape) != len(info.strides):
        raise InvalidArgument(f'tensor "{info.name}" has no such type, shape '
                              "or strides")
    if 0 in info.shape:
        return 0
    elements = 1 + sum((size - 1) * stride for size, stride in
                       zip(info.shape, info.strides))
    return (elements * _bits(info.dtype) + 7) // 8


def _bits(dtype: str) -> int:
    if dtype in _dtypes.SUB_BYTE:
        return 4 if dtype == "F4" else 6
    return int(_dtypes.numpy_dtype(dtype).itemsize) * 8


def pack(name: str, tensors: Mapping[str, Any], into: Any = None
         ) -> tuple[GroupHead, Any]:
    """Packs NumPy arrays or torch's tensors into one contiguous buffer.

    into: the buffer of an earlier call, now unused; it is used again if large
        enough, since new memory costs more than a copy.
    """
    if not tensors:
        raise InvalidArgument(f'group "{name}" has no tensors')
    parts = {key: _bytes_of(value) for key, value in tensors.items()}
    at, infos = 0, []
    for key, (dtype, shape, data) in parts.items():
        infos.append(TensorInfo(key, dtype, shape, _contiguous(shape), at,
                                data.size))
        at += -(-data.size // _ALIGNMENT) * _ALIGNMENT
    image = np.empty(at, np.uint8) if into is None or into.size < at else (
        into[:at])
    end = 0
    for info, (_, _, data) in zip(infos, parts.values()):
        image[end:info.offset] = 0
        end = info.offset + info.nbytes
        image[info.offset:end] = data
    image[end:] = 0
    return head_of(name, infos, image), image


def _bytes_of(value: Any) -> tuple[str, tuple[int, ...], Any]:
    if hasattr(value, "untyped_storage"):
        import torch
        flat = value.detach().cpu().contiguous()
        return (_dtypes.from_torch(flat.dtype), tuple(flat.shape),
                flat.reshape(-1).view(torch.uint8).numpy())
    array = np.asarray(value)
    array = np.ascontiguousarray(
        array, array.dtype.newbyteorder("=")).reshape(array.shape)
    return (_dtypes.from_numpy(array.dtype), tuple(array.shape),
            array.reshape(-1).view(np.uint8))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def image_of(group: Group, address: int) -> tuple[GroupHead, Any]:
    """A view of hoistd's image of the group at this address; no copy."""
    import ctypes as c
    image = np.ctypeslib.as_array(
        (c.c_uint8 * group.image_bytes).from_address(address))
    return head_of(group.name, group.tensors, image), image
