"""A FUSE file system that hangs when it is told to. Needs root and /dev/fuse.

It speaks the kernel's protocol itself (linux/fuse.h), so nothing has to be
installed. Only what uid 0 asks hangs: a hoistd that runs as root, and not the
workers of the test, which open the files.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import struct
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2

OPS = {1: "LOOKUP", 2: "FORGET", 3: "GETATTR", 14: "OPEN", 15: "READ",
       17: "STATFS", 18: "RELEASE", 25: "FLUSH", 26: "INIT", 36: "INTERRUPT",
       42: "BATCH_FORGET"}
SILENT = ("FORGET", "INTERRUPT", "BATCH_FORGET")
ENOENT, ENOSYS = 2, 38
ROOT = 1


def mount(device, folder):
    """0, or errno."""
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if LIBC.mount(b"hang", os.fsencode(folder), b"fuse", 0,
                  options.encode()) == 0:
        return 0
    return ctypes.get_errno()


def why_not():
    """Why this machine cannot run it, or None."""
    if os.getuid() != 0:
        return "needs root, to mount"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"needs FUSE: {error}"
    with tempfile.TemporaryDirectory() as folder:
        device = os.open("/dev/fuse", os.O_RDWR)
        error = mount(device, folder)
        LIBC.umount2(os.fsencode(folder), MNT_DETACH)
        os.close(device)
    return f"may not mount: {os.strerror(error)}" if error else None


class HangFs:
    """files: {name: bytes}. Close it, or what hangs stays."""

    def __init__(self, files):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hoist-hang-"))
        device = os.open("/dev/fuse", os.O_RDWR)
        error = mount(device, self.folder)
        if error:
            raise OSError(error, os.strerror(error))
        read, self.write = os.pipe()
        self.said, say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.write)
            with contextlib.suppress(BaseException):
                _Server(device, read, say, files).serve()
            os._exit(0)
        for end in (device, read, say):
            os.close(end)
        self.said = open(self.said, encoding="utf-8")

    def tell(self, **command):
        os.write(self.write, (json.dumps(command) + "\n").encode())
        return json.loads(self.said.readline())

    def hang(self, op, name, first=0):
        """From now on `op` on `name` hangs; READs from byte `first` on."""
        self.tell(op=op, name=name, first=first)

    def answer(self):
        """Everything is answered again, what hung first."""
        self.tell(op="", name="", first=0)

    def await_hanging(self, names):
        """Returns when something hangs on each of them."""
        self.tell(op="?", name=sorted(names), first=0)

    def close(self):
        os.kill(self.pid, signal.SIGKILL)  # Ends what hangs, with an error.
        os.waitpid(self.pid, 0)
        os.close(self.write)
        self.said.close()
        LIBC.umount2(os.fsencode(self.folder), MNT_DETACH)
        self.folder.rmdir()


class _Server:
    def __init__(self, device, commands, say, files):
        self.device, self.commands, self.say = device, commands, say
        self.names = list(files)
        self.files = [files[name] for name in self.names]
        self.rules = {}  # (op, name): first byte
        self.held = []  # (request, name)
        self.awaited = None

    def serve(self):
        commands = open(self.commands, encoding="utf-8")
        while True:
            ready, _, _ = select.select([self.device, commands], [], [])
            if commands in ready and not self.obey(commands.readline()):
                return
            if self.device in ready:
                self.take(os.read(self.device, 1 << 18))

    def obey(self, line):
        if not line:
            return False
        command = json.loads(line)
        if command["op"] == "?":
            self.awaited = set(command["name"])
            self.say_if_awaited()
            return True
        if command["op"]:
            self.rules[command["op"], command["name"]] = command["first"]
        else:
            self.rules.clear()
            held, self.held = self.held, []
            for request, _ in held:
                self.reply(request)
        os.write(self.say, b"true\n")
        return True

    def say_if_awaited(self):
        held = {name for _, name in self.held}
        if self.awaited is not None and self.awaited <= held:
            self.awaited = None
            os.write(self.say, b"true\n")

    def take(self, request):
        _, code, _, node, uid = struct.unpack_from("<IIQQI", request)
        op = OPS.get(code)
        name = self.names[node - 2] if node > ROOT else None
        first = self.rules.get((op, name))
        reaches = op != "READ" or first is None or self.end(request) > first
        if uid == 0 and first is not None and reaches:
            self.held.append((request, name))
            self.say_if_awaited()
        elif op not in SILENT:
            self.reply(request)

    @staticmethod
    def end(request):
        _, offset, size = struct.unpack_from("<QQI", request, 40)
        return offset + size

    def attr(self, node):
        size = len(self.files[node - 2]) if node > ROOT else 4096
        mode = 0o100644 if node > ROOT else 0o40755
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0,
                           0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def reply(self, request):
        _, code, unique, node = struct.unpack_from("<IIQQ", request)
        op, error, data = OPS.get(code), 0, b""
        if op == "INIT":
            # 7.31, read-ahead 64 KiB, many requests in the background.
            data = struct.pack("<IIIIHHIIHHI28s", 7, 31, 1 << 16, 0, 512, 384,
                               1 << 16, 1, 0, 0, 0, b"")
        elif op == "LOOKUP":
            name = request[40:].rstrip(b"\0").decode()
            if name in self.names:
                found = self.names.index(name) + 2
                data = struct.pack("<QQQQII", found, 0, 0, 0, 0, 0)
                data += self.attr(found)
            else:
                error = -ENOENT
        elif op == "GETATTR":
            data = struct.pack("<QII", 0, 0, 0) + self.attr(node)
        elif op == "OPEN":
            data = struct.pack("<QII", 1, 0, 0)
        elif op == "READ":
            _, offset, size = struct.unpack_from("<QQI", request, 40)
            data = self.files[node - 2][offset:offset + size]
        elif op == "STATFS":
            data = bytes(80)
        elif op not in ("FLUSH", "RELEASE"):
            error = -ENOSYS
        # ENOENT: whoever asked is gone.
        with contextlib.suppress(FileNotFoundError):
            os.write(self.device,
                     struct.pack("<IiQ", 16 + len(data), error, unique) + data)
