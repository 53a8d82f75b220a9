"""Leased tensors as NumPy arrays or PyTorch tensors, without a copy."""

from __future__ import annotations

import ctypes as c
import functools
from typing import TYPE_CHECKING, Any, Protocol

from . import _c, _dtypes
from ._errors import FailedPrecondition, InvalidArgument
from ._model import TensorInfo
from ._surroundings import require

if TYPE_CHECKING:
    import numpy
    import torch


class _CudaBytes:
    """A device range that torch.as_tensor takes without a copy.

    The mapping is read-only, and a write faults in its kernel; but torch
    rejects objects that declare themselves read-only.
    """

    def __init__(self, address: int, size: int, keep: object) -> None:
        self.keep = keep
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False),
            "version": 3}


class HasDevice(Protocol):
    """A tensor's owner: a lease, a plan or an image."""

    device_kind: int
    device_uuid: bytes

    def check(self) -> None:
        """Raises if its memory may not be read."""


class Tensor:
    """A view of a tensor in a lease, or of a group under a plan.

    Results of numpy() and torch() keep the lease alive, but an explicit release
    invalidates them too. They are read-only: on an emulated device a write
    through torch() ends the process with SIGSEGV.
    """

    def __init__(self, lease: HasDevice, info: TensorInfo,
                 address: int) -> None:
        self._lease = lease
        self._address = address
        self.info = info

    @property
    def name(self) -> str:
        """The tensor's name in the model."""
        return self.info.name

    @property
    def dtype(self) -> str:
        """safetensors' name of its type, "BF16"."""
        return self.info.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """All dimensions."""
        return self.info.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements."""
        return self.info.strides

    @property
    def nbytes(self) -> int:
        """The bytes that the elements span."""
        return self.info.nbytes

    @property
    def address(self) -> int:
        """The first element's address on the lease's device; 0: no elements."""
        self._lease.check()
        return self._address

    def __repr__(self) -> str:
        return f"<hoist.Tensor {self.name!r} {self.dtype} {self.shape}>"

    def _bytes(self) -> Any:
        """Host memory that keeps the lease alive; for emulated devices."""
        self._lease.check()
        if self._lease.device_kind == _c.DEVICE_CUDA:
            raise InvalidArgument(
                f'tensor "{self.name}" is in GPU memory; use .torch()')
        memory: Any = (c.c_uint8 * self.nbytes).from_address(self._address or 1)
        memory.lease = self._lease
        return memory

    def numpy(self) -> numpy.ndarray:
        """A read-only array. Types that NumPy lacks are ml_dtypes' if that is
        installed, else unsigned integers of their bits; sub-byte types are
        flat bytes."""
        require("numpy", "hoist.Tensor.numpy")
        import numpy as np
        dtype = _dtypes.numpy_dtype(self.dtype)
        shape, strides = self.shape, self.strides
        if self.dtype in _dtypes.SUB_BYTE:
            shape, strides = (self.nbytes,), (1,)
        if self.nbytes == 0:
            self._lease.check()
            array = np.empty(shape, dtype)
        else:
            array = np.ndarray(shape, dtype, buffer=self._bytes(),
                               strides=[s * dtype.itemsize for s in strides])
        array.flags.writeable = False
        return array

    def torch(self) -> torch.Tensor:
        """A tensor on the lease's device: CPU for emulated ones. Types that
        this torch lacks come as uint8 of their bytes."""
        require("torch", "hoist.Tensor.torch")
        import torch
        dtype = _dtypes.torch_dtype(self.dtype)
        flat = self.dtype in _dtypes.SUB_BYTE or (
            dtype == torch.uint8 and self.dtype != "U8")
        cuda = self._lease.device_kind == _c.DEVICE_CUDA
        if self.nbytes == 0:
            self._lease.check()
            device = _cuda_device(self._lease.device_uuid) if cuda else "cpu"
            return torch.empty((0,) if flat else self.shape, dtype=dtype,
                               device=device)
        if cuda:
            memory = torch.as_tensor(
                _CudaBytes(self.address, self.nbytes, self._lease),
                device=_cuda_device(self._lease.device_uuid))
            if memory.data_ptr() != self._address:
                raise FailedPrecondition("torch copied the weights")
        else:
            memory = torch.frombuffer(self._bytes(), dtype=torch.uint8)
        if flat:
            return memory
        return memory.view(dtype).as_strided(self.shape, self.strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._lease.device_kind != _c.DEVICE_CUDA:
            raise AttributeError("not in GPU memory; use .numpy()")
        require("numpy", "hoist.Tensor.__cuda_array_interface__")
        dtype = _dtypes.numpy_dtype(self.dtype)
        return {"shape": self.shape, "typestr": dtype.str,
                "data": (self.address, True), "version": 3,
                "strides": tuple(s * dtype.itemsize for s in self.strides)}


@functools.lru_cache(maxsize=None)
def _cuda_device(uuid: bytes) -> str:
    """torch's name of the GPU, under any CUDA_VISIBLE_DEVICES."""
    import torch
    count = torch.cuda.device_count()
    for index in range(count):
        found = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        if found is None and count == 1:
            return "cuda:0"  # torch before 2.5 does not report UUIDs.
        if found is not None and bytes(found.bytes) == uuid:
            return f"cuda:{index}"
    raise FailedPrecondition(
        f"torch sees {count} GPUs, but not the one that this lease is on; see "
        "CUDA_VISIBLE_DEVICES")
