#!/usr/bin/env python3
"""A worker without libhoist: gRPC alone, in plain Python.

grpc_worker.py SOCKET MODEL [--path PATH] [--compare FILE] [--descriptors FILE]

Stages every group of a model that is loaded (or lies at PATH, below hoistd's
model_roots) over the gRPC service hoist.v1.Worker. It opens the device memory
by its legacy CUDA IPC handle (or, on the emulated device, maps it), and
compares each tensor with a safetensors FILE. A lease lives as long as its
stream: ending the call releases it. Exit status: 0 if all is equal, else 1.

The messages are built from --descriptors, the output of
`protoc --descriptor_set_out`; by default from hoist's own archive, or by
`protoc` from a checkout.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import surroundings

surroundings.need("grpc", "google.protobuf", "numpy")

import grpc  # noqa: E402
import numpy as np  # noqa: E402
from google.protobuf import (  # noqa: E402
    descriptor_pb2, descriptor_pool, message_factory)
from safetensors_file import SafetensorsFile  # noqa: E402

HERE = pathlib.Path(__file__).parent
PROTO = HERE / "../../proto"
ARCHIVED = HERE / "../hoist_v1.pb"
MEMFD, IPC = 1, 3  # hoist.v1.Backing


class Messages:
    """hoist.v1's message classes, by name."""

    def __init__(self, descriptors: str | None) -> None:
        data = (pathlib.Path(descriptors).read_bytes() if descriptors
                else self._compile())
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            self._pool.Add(file)

    @staticmethod
    def _compile() -> bytes:
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run(
                ["protoc", f"-I{PROTO}", "--include_imports",
                 f"--descriptor_set_out={out.name}", "hoist/v1/worker.proto"],
                check=True)
            return pathlib.Path(out.name).read_bytes()

    def __getattr__(self, name: str) -> Any:
        found = self._pool.FindMessageTypeByName(f"hoist.v1.{name}")
        return message_factory.GetMessageClass(found)


class CudaMemory:
    """Slabs opened by IPC handle; reads copy to the host."""

    def __init__(self, uuid: bytes) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._bases: dict[int, int] = {}
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        for ordinal in range(count.value):
            mine = (ctypes.c_uint8 * 16)()
            self._call("cuDeviceGetUuid_v2", mine, ordinal)
            if bytes(mine) == uuid:
                context = ctypes.c_void_p()
                self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context),
                           ordinal)
                self._call("cuCtxSetCurrent", context)
                return
        raise RuntimeError("hoistd's GPU is not visible here")

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self._cuda, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name}: CUDA error {code}")

    def open(self, slab: Any) -> None:
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_uint8 * 64)]
        handle = Handle.from_buffer_copy(slab.ipc_handle)
        base = ctypes.c_uint64()
        lazy_peer_access = 1
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle,
                   lazy_peer_access)
        self._bases[slab.offset_bytes] = base.value

    def read(self, slab: Any, offset: int, size: int) -> np.ndarray:
        # One open a process and slab: a lease on a known slab reuses it.
        if slab.offset_bytes not in self._bases:
            self.open(slab)
        out = np.empty(size, np.uint8)
        at = self._bases[slab.offset_bytes] + offset - slab.offset_bytes
        self._call("cuMemcpyDtoH_v2", out.ctypes.data_as(ctypes.c_void_p),
                   ctypes.c_uint64(at), ctypes.c_size_t(size))
        return out


class MappedMemory:
    """Slabs of an emulated device, mapped by their path."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def read(self, slab: Any, offset: int, size: int) -> np.ndarray:
        if slab.offset_bytes not in self._maps:
            with open(slab.path, "rb") as file:
                self._maps[slab.offset_bytes] = mmap.mmap(
                    file.fileno(), slab.size_bytes, access=mmap.ACCESS_READ)
        begin = offset - slab.offset_bytes
        return np.frombuffer(self._maps[slab.offset_bytes], np.uint8)[
            begin:begin + size]


def read_tensor(memory: Any, lease: Any, tensor: Any) -> np.ndarray:
    """The tensor's bytes, slab by slab: an image may lie in several."""
    at = lease.offset_bytes + tensor.offset_bytes
    left, parts = tensor.size_bytes, []
    for slab in sorted(lease.slabs, key=lambda s: s.offset_bytes):
        end = slab.offset_bytes + slab.size_bytes
        if left and slab.offset_bytes <= at < end:
            size = min(left, end - at)
            parts.append(memory.read(slab, at, size))
            at, left = at + size, left - size
    if left:
        raise RuntimeError(f"{tensor.name}: {left} bytes lie in no slab")
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("socket")
    parser.add_argument("model")
    parser.add_argument("--path")
    parser.add_argument("--compare")
    parser.add_argument("--descriptors",
                        default=str(ARCHIVED) if ARCHIVED.exists()
                        else None)
    args = parser.parse_args()
    messages = Messages(args.descriptors)
    channel = grpc.insecure_channel(f"unix:{os.path.abspath(args.socket)}")

    def call(verb: str, reply: str, stream: bool = False) -> Any:
        kind = channel.unary_stream if stream else channel.unary_unary
        return kind(f"/hoist.v1.Worker/{verb}",
                    request_serializer=lambda m: m.SerializeToString(),
                    response_deserializer=getattr(messages, reply).FromString)

    devices = call("ListDevices", "ListDevicesResponse")(
        messages.ListDevicesRequest(), timeout=10).devices
    model = call("RegisterModel", "Model")(
        messages.WorkerRegisterModelRequest(
            name=args.model, path=args.path or ""), timeout=60)
    cuda = devices[0].kind == 2
    memory = CudaMemory(devices[0].uuid) if cuda else MappedMemory()
    file = SafetensorsFile(args.compare) if args.compare else None
    stage = call("Stage", "WorkerStageResponse", stream=True)
    compared = wrong = 0
    for group in model.groups:
        lease_stream = stage(messages.WorkerStageRequest(
            model=args.model, group=group.name, deadline_ms=30_000))
        reply = next(iter(lease_stream))
        for tensor in reply.group.tensors:
            have = read_tensor(memory, reply.lease, tensor)
            if file is None:
                continue
            compared += 1
            if not np.array_equal(have, file.array(tensor.name)):
                wrong += 1
                print(f"WRONG  {group.name}: {tensor.name}")
        lease_stream.cancel()  # The lease ends here.
    how = "by CUDA IPC handle" if cuda else "mapped"
    print(f"{args.model}: {len(model.groups)} groups staged over gRPC on "
          f"{devices[0].name}, {how}; {compared} tensors compared, "
          f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
