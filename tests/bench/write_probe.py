#!/usr/bin/env python3
"""Can another user write to GPU memory that hoistd lets them read?

write_probe.py HOISTD [vmm|ipc [everyone|user]]    the last: device.trust

It starts HOISTD with a model that everyone may read, and stages it as one user.
As another user it asks for the same group with a client of its own (no
libhoist), opens the memory that comes with PROT_READ_WRITE and writes to it.
Then the first user looks at its weights. Prints one line: what was tried, and
whether the weights changed. Needs root, a GPU, Python's protobuf, and protoc or
HOIST_DESCRIPTORS (a package's share/hoist/hoist_v1.pb).
"""

from __future__ import annotations

import ctypes as c
import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWNER, OTHER = 54321, 54322
MAGIC, VERSION = 0x54534948, 1
MIB = 1 << 20
BYTES = 4 * MIB
PATTERN = bytes(range(256)) * (BYTES // 256)


class Client:
    """The session protocol, by hand (shared/include/hoist/shared/wire.h)."""

    def __init__(self, path: str, descriptors: str) -> None:
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(
                pathlib.Path(descriptors).read_bytes()).file:
            pool.Add(file)
        self._message = lambda name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"hoist.v1.{name}"))()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(path)
        self._last = 0
        self.ask(lambda m: m.open_session.SetInParent())

    def ask(self, fill, fds=()):
        request = self._message("ClientMessage")
        self._last += 1
        request.request_id = self._last
        fill(request)
        body = request.SerializeToString()
        socket.send_fds(self._socket, [
            struct.pack("<IHHQ", MAGIC, VERSION, 0, len(body)) + body],
            list(fds))
        data, got, _, _ = socket.recv_fds(self._socket, 1 << 16, 250)
        reply = self._message("DaemonMessage").FromString(data[16:])
        if reply.code:
            raise SystemExit(f"refused ({reply.code}): {reply.message}")
        return reply, got


class Cuda:
    """The few calls of the driver that this takes."""

    class Access(c.Structure):
        _fields_ = [("location_type", c.c_int), ("location_id", c.c_int),
                    ("flags", c.c_int)]

    def __init__(self) -> None:
        self._lib = c.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context = c.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self._lib, name)(*arguments)
        if code:
            raise SystemExit(f"{name} fails with {code}")

    def open_vmm(self, fd: int, size: int, flags: int) -> int:
        handle, address = c.c_uint64(), c.c_uint64()
        self.call("cuMemImportFromShareableHandle", c.byref(handle),
                  c.c_void_p(fd), 1)
        self.call("cuMemAddressReserve", c.byref(address), c.c_size_t(size),
                  c.c_size_t(0), c.c_uint64(0), c.c_uint64(0))
        self.call("cuMemMap", address, c.c_size_t(size), c.c_size_t(0), handle,
                  c.c_uint64(0))
        access = self.Access(1, 0, flags)  # Of device 0: 1 reads, 3 writes too.
        self.call("cuMemSetAccess", address, c.c_size_t(size), c.byref(access),
                  c.c_size_t(1))
        return address.value

    def open_ipc(self, handle: bytes) -> int:
        class Handle(c.Structure):
            _fields_ = [("bytes", c.c_char * 64)]
        address = c.c_uint64()
        given = Handle.from_buffer_copy(handle)
        self._lib.cuIpcOpenMemHandle_v2.argtypes = [c.c_void_p, Handle, c.c_uint]
        self.call("cuIpcOpenMemHandle_v2", c.byref(address), given, 1)
        return address.value

    def write(self, address: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", c.c_uint64(address), data,
                  c.c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        data = c.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, c.c_uint64(address),
                  c.c_size_t(size))
        return data.raw


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def publish(client: Client) -> None:
    image = os.memfd_create("image", os.MFD_ALLOW_SEALING)
    os.write(image, PATTERN)
    fcntl.fcntl(image, fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)

    def fill(message):
        body = message.publish
        body.model, body.readers = "probe", 2
        body.group.name, body.group.image_bytes = "g", BYTES
        tensor = body.group.tensors.add()
        tensor.name, tensor.dtype, tensor.size_bytes = "w", 2, BYTES
        tensor.shape.append(BYTES)
    client.ask(fill, [image])


def stage(client: Client, name: str):
    """The lease, its one slab, and the slab's descriptor, if it has one."""
    def describe(message):
        message.describe_model.name = name
    model = client.ask(describe)[0].model

    def fill(message):
        message.stage.model_id = model.id
        message.stage.deadline_ms = 30_000
    reply, fds = client.ask(fill)
    return reply.lease, reply.lease.slabs[0], fds


def open_slab(cuda: Cuda, slab, fds, flags: int) -> int:
    if slab.backing == 2:
        return cuda.open_vmm(fds[slab.fd_index], slab.size_bytes, flags)
    if slab.backing == 3:
        return cuda.open_ipc(slab.ipc_handle)
    raise SystemExit("the device is emulated: nothing to try")


def owner(path: str, descriptors: str) -> None:
    """Publishes and stages; says so; looks when it is told to."""
    become(OWNER)
    client = Client(path, descriptors)
    publish(client)
    lease, slab, fds = stage(client, "probe")
    cuda = Cuda()
    base = open_slab(cuda, slab, fds, 1)
    at = base + lease.offset_bytes - slab.offset_bytes
    print("staged" if cuda.read(at, BYTES) == PATTERN else "WRONG", flush=True)
    sys.stdin.readline()
    print("unchanged" if cuda.read(at, BYTES) == PATTERN else "CHANGED",
          flush=True)


def other(path: str, descriptors: str) -> None:
    become(OTHER)
    client = Client(path, descriptors)
    lease, slab, fds = stage(client, f"{OWNER}:probe")
    cuda = Cuda()
    base = open_slab(cuda, slab, fds, 3)
    cuda.write(base + lease.offset_bytes - slab.offset_bytes, bytes(BYTES))
    print("wrote")


def main(hoistd: str, share: str, trust: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        descriptors = f"{folder}/hoist.pb"
        if ready := os.environ.get("HOIST_DESCRIPTORS"):
            shutil.copy(ready, descriptors)
        else:
            subprocess.run(
                ["protoc", f"-I{ROOT}/proto", "--include_imports",
                 f"--descriptor_set_out={descriptors}",
                 "hoist/v1/session.proto"], check=True)
        settings = [f"server.socket={folder}/hoistd.sock", "server.group=",
                    "server.admin_group=", "server.socket_mode=0666",
                    "device.backend=cuda", "device.pool=1GiB",
                    f"device.share={share}", f"device.trust={trust}",
                    "host.pool=256MiB",
                    "models.readers=everyone"]
        config = f"{folder}/hoistd.toml"
        pathlib.Path(config).write_text("")
        arguments = [word for one in settings for word in ("--set", one)]
        daemon = subprocess.Popen([hoistd, "--config", config, *arguments],
                                  stderr=subprocess.PIPE, text=True)
        try:
            said = ""
            for line in daemon.stderr:
                said += line
                if " serves " in line:
                    break
            else:
                raise SystemExit(f"hoistd did not start: {said}")
            me = [sys.executable, __file__, "--as"]
            rest = [f"{folder}/hoistd.sock", descriptors]
            first = subprocess.Popen([*me, "owner", *rest], text=True,
                                     stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE)
            staged = first.stdout.readline().strip()
            second = subprocess.run([*me, "other", *rest], text=True,
                                    capture_output=True)
            then, _ = first.communicate("\n")
            tried = (second.stdout or second.stderr).strip()
            print(f"{share}, trust {trust}: {staged}; another user: {tried}; the weights are "
                  f"{then.strip()}")
        finally:
            daemon.terminate()
            daemon.wait()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--as":
        {"owner": owner, "other": other}[sys.argv[2]](*sys.argv[3:])
    else:
        given = sys.argv[2:]
        sys.exit(main(sys.argv[1], *given, *["vmm", "everyone"][len(given):]))
