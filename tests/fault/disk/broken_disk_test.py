"""The disk itself fails: EIO of a block device, as a file system hands it on.

broken_disk_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH,
root, ext4 and loop devices; skipped elsewhere.

The block device is a loop device. Where its file ends, it can be read no more;
where its file has no room to grow, it cannot be written. ext4's own shutdown is
a disk that was pulled out.
"""

import ctypes
import fcntl
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, until, write_safetensors  # noqa: E402

HOISTD = os.path.abspath(sys.argv.pop(1))
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS = 0x20000
MS_PRIVATE_REC = (1 << 18) | (1 << 14)
FS_IOC_FIEMAP = 0xC020660B
EXT4_IOC_SHUTDOWN = 0x8004587D
GROUPS = 4


def why_not():
    """Why this machine cannot run it, or None."""
    if os.getuid() != 0:
        return "needs root, to mount"
    if LIBC.unshare(CLONE_NEWNS) != 0 or LIBC.mount(
            b"none", b"/", None, MS_PRIVATE_REC, None) != 0:
        return "may not mount"
    try:
        Disk().close()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no loop device with ext4: {error}"
    return None


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    SIZE = 64 * MIB

    def __init__(self):
        self.top = tempfile.TemporaryDirectory(prefix="hoist-disk-")
        below = pathlib.Path(self.top.name)
        self.room, self.path = below / "room", below / "disk"
        self.room.mkdir()
        self.path.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={self.SIZE + 16 * MIB}",
            "none", self.room)
        self.image = self.room / "image"
        self.tail = b""
        try:
            with open(self.image, "wb") as image:
                image.truncate(self.SIZE)
            run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096",
                "-O", "^has_journal", "-E", "lazy_itable_init=0", self.image)
            run("mount", "-o", "loop", self.image, self.path)
        except (OSError, subprocess.CalledProcessError):
            run("umount", self.room)
            raise

    def begin_of(self, path):
        """Where the file's first byte lies on the device."""
        ask = struct.pack("=QQLLLL", 0, 2**64 - 1, 1, 0, 1, 0) + bytes(56)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            found = fcntl.ioctl(file, FS_IOC_FIEMAP, ask)
            # Nor is it in memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return struct.unpack_from("=Q", found, 32 + 8)[0]

    def lose_from(self, begin):
        """From there on nothing can be read."""
        with open(self.image, "r+b") as image:
            image.seek(begin)
            self.tail = image.read()
            image.truncate(begin)

    def find_again(self):
        with open(self.image, "ab") as image:
            image.write(self.tail)

    def pull_out(self):
        folder = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(folder, EXT4_IOC_SHUTDOWN, struct.pack("=L", 2))
        os.close(folder)

    def close(self):
        run("umount", "--lazy", self.path)
        run("umount", "--lazy", self.room)
        self.top.cleanup()


SKIP = why_not()


def bytes_of(model, group):
    return bytes([model * GROUPS + group + 1]) * MIB


@unittest.skipIf(SKIP, SKIP)
class BrokenDisk(unittest.TestCase):
    def setUp(self):
        self.disk = Disk()
        self.addCleanup(self.disk.close)

    def serve(self, extra=""):
        self.daemon = RealDaemon(HOISTD, pool=8 * MIB, host=32 * MIB,
                                 extra=extra)
        self.addCleanup(self.daemon.stop)
        session = hoist.connect(self.daemon.socket, connect_deadline=60)
        self.addCleanup(session.close)
        return session

    def check(self, session, group, want):
        with session.stage(group, deadline=20) as lease:
            got, = (tensor.numpy().tobytes() for tensor in lease.values())
            self.assertEqual(got, want)

    def test_a_source_that_cannot_be_read(self):
        paths = [self.disk.path / f"{name}.safetensors" for name in "ab"]
        for number, path in enumerate(paths):
            write_safetensors(path, {
                f"layers.{group}.w": ("U8", [MIB], bytes_of(number, group))
                for group in range(GROUPS)})
        session = self.serve()
        models = [session.register(path, path.stem) for path in paths]
        begins = [self.disk.begin_of(path) for path in paths]
        bad = begins.index(max(begins))
        good = 1 - bad
        self.disk.lose_from(begins[bad] + 2 * MIB)
        # Of the first the bytes are all there.
        self.check(session, models[bad]["layers.0"], bytes_of(bad, 0))
        for group in (2, 3):
            with self.assertRaisesRegex(hoist.DataLoss, "Input/output error"):
                session.stage(models[bad][f"layers.{group}"], deadline=20)
        plan = session.set_plan(models[good], budget=3 * MIB,
                                order=list(models[good]))
        for group in 2 * list(range(GROUPS)):
            with plan.use(models[good][f"layers.{group}"]) as tensors:
                got, = (tensor.numpy().tobytes() for tensor in tensors.values())
                self.assertEqual(got, bytes_of(good, group))
        plan.close()
        # It was the disk's fault, and it is over.
        self.disk.find_again()
        for group in range(GROUPS):
            self.check(session, models[bad][f"layers.{group}"],
                       bytes_of(bad, group))
        self.assertEqual(self.daemon.tier("DEVICE")["leased_bytes"], 0)

    def publish(self, session, number):
        for group in range(GROUPS):
            model = session.publish(f"m{number}", f"g{group}",
                                    {"w": bytearray(bytes_of(number, group))})
        return model

    def serve_spilling(self):
        return self.serve(f'[disk]\nspill_dir = "{self.disk.path}/spill"')

    def unsaved(self):
        return self.daemon.tier("HOST")["unsaved_bytes"]

    def test_a_spilled_image_that_cannot_be_read(self):
        session = self.serve_spilling()
        model = self.publish(session, 0)
        until(lambda: self.unsaved() == 0)
        self.daemon.ctl("evict", "m0")
        images = [path for path in self.disk.path.glob("spill/**/*")
                  if path.is_file() and path.stat().st_size >= MIB]
        self.assertEqual(len(images), GROUPS)
        self.disk.lose_from(max(map(self.disk.begin_of, images)))
        lost = 0
        for group in range(GROUPS):
            try:
                self.check(session, model[f"g{group}"], bytes_of(0, group))
            except hoist.DataLoss as error:
                self.assertIn("publish it again", str(error))
                lost += 1
        self.assertEqual(lost, 1)
        # Which repairs it.
        model = self.publish(session, 0)
        for group in range(GROUPS):
            self.check(session, model[f"g{group}"], bytes_of(0, group))

    def test_a_disk_that_is_pulled_out(self):
        session = self.serve_spilling()
        saved = self.publish(session, 0)
        until(lambda: self.unsaved() == 0)
        self.disk.pull_out()
        unsaved = self.publish(session, 1)
        # What the host has is served, and told to be nowhere else.
        for number, model in enumerate((saved, unsaved)):
            for group in range(GROUPS):
                self.check(session, model[f"g{group}"],
                           bytes_of(number, group))
        until(lambda: self.unsaved() == GROUPS * MIB)
        notes = self.daemon.status()["notes"]
        self.assertEqual(len(notes), 1, notes)
        self.assertIn("Input/output error", notes[0])
        self.daemon.ctl("evict", "m0")
        with self.assertRaises(hoist.DataLoss):
            session.stage(saved["g0"], deadline=20)
        self.check(session, unsaved["g1"], bytes_of(1, 1))


if __name__ == "__main__":
    unittest.main()
