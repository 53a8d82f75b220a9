"""A file that hangs costs its owner alone, and never the stop of hoistd.

hanging_files_test.py HOISTD [unittest options]; needs HOIST_LIBRARY,
PYTHONPATH, FUSE and root, whose children become other users.
"""

import array
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from as_user import start_as  # noqa: E402
from hang_fs import HangFs, why_not  # noqa: E402
from real_daemon import (MIB, RealDaemon, halt,  # noqa: E402
                         write_safetensors)

try:
    import numpy  # noqa: F401  Here: others may not read where it lies.
except ImportError:
    numpy = None

HOISTD = sys.argv.pop(1)
EVIL, OTHER = 54321, 54322
OWNERS = 16
WEIGHTS = bytes(range(256)) * (2 * MIB // 256)
# Where a model's way may end: as it is looked at, reopened, in its header, in
# its weights, and as it is closed.
POINTS = {"statfs": ("STATFS", 0), "stat": ("GETATTR", 0), "open": ("OPEN", 0),
          "header": ("READ", 0), "weights": ("READ", MIB), "close": ("FLUSH", 0)}
WHY_NOT = why_not()


def model_bytes(seed):
    with tempfile.NamedTemporaryFile() as file:
        write_safetensors(file.name, {"w": ("U8", [len(WEIGHTS)], WEIGHTS),
                                      f"own.{seed}": ("U8", [1], b"!")})
        return pathlib.Path(file.name).read_bytes()


@unittest.skipIf(numpy is None, "needs NumPy")
@unittest.skipIf(WHY_NOT is not None, WHY_NOT)
class HangingFiles(unittest.TestCase):
    def start(self, deadline, names):
        self.files = HangFs({f"{name}.safetensors": model_bytes(name)
                             for name in names})
        self.addCleanup(self.files.close)
        self.daemon = RealDaemon(
            HOISTD, pool=64 * MIB, slab=2 * MIB, host=64 * MIB, mode="0666",
            extra=f'[disk]\nread_deadline = "{deadline}"\n'
                  f'[models]\nroots = ["{self.files.folder}"]')
        self.addCleanup(self.daemon.stop)
        folder = pathlib.Path(self.daemon.folder.name)
        folder.chmod(0o755)
        self.local = folder / "local.safetensors"
        self.local.write_bytes(model_bytes("local"))
        with hoist.connect(self.daemon.socket, connect_deadline=30):
            pass

    def begin(self, uid, path):
        """The user registers and stages; what it says of how it went."""
        def work(tell):
            with hoist.connect(self.daemon.socket) as session:
                try:
                    model = session.register(str(path))
                    with session.stage(list(model)[0], deadline=30) as lease:
                        right = bytes(lease["w"].numpy()) == WEIGHTS
                    tell("served" if right else "wrong bytes")
                except hoist.HoistError as error:
                    tell(f"{type(error).__name__}: {error}")

        pid, said = start_as(uid, work)
        self.addCleanup(said.close)
        return pid, said

    def end(self, worker):
        pid, said = worker
        text = said.read()
        os.waitpid(pid, 0)
        return text.rstrip("\n")

    def await_hanging(self, names):
        self.files.await_hanging([f"{name}.safetensors" for name in names])

    def served(self, uid, path):
        self.assertEqual(self.end(self.begin(uid, path)), "served")

    def hang(self, point, name):
        op, first = POINTS[point]
        self.files.hang(op, f"{name}.safetensors", first)
        return self.files.folder / f"{name}.safetensors"

    def test_files_that_do_not_hang_are_served(self):
        self.start("30s", ["a"])
        self.served(EVIL, self.files.folder / "a.safetensors")

    def test_each_call_has_a_deadline_and_works_once_it_is_answered(self):
        self.start("1s", POINTS)
        for point in POINTS:
            with self.subTest(point):
                path = self.hang(point, point)
                evil = self.begin(EVIL, path)
                self.served(OTHER, self.local)
                refused = self.end(evil)
                self.assertIn("DeadlineExceeded", refused)
                self.assertIn("disk.read_deadline", refused)
                notes = " ".join(self.daemon.status()["notes"])
                self.assertIn(f"uid {EVIL}", notes)
                self.files.answer()
                self.served(EVIL, path)

    def test_a_path_that_hoistd_opens_has_a_deadline(self):
        self.start("1s", ["a"])
        path = self.hang("open", "a")
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            self.daemon.ctl("load", str(path))
        self.assertIn("disk.read_deadline", refused.exception.stderr)
        self.served(OTHER, self.local)
        self.files.answer()
        self.daemon.ctl("load", str(path))

    def test_descriptors_that_nobody_asked_for_cost_their_sender(self):
        self.start("1h", [])

        def work(tell):
            # One end that does not read, the other one's close waits for it.
            listener = socket.create_server(("127.0.0.1", 0))
            slow = socket.socket()
            slow.connect(listener.getsockname())
            kept, _ = listener.accept()
            slow.setblocking(False)
            try:
                while True:
                    slow.send(bytes(1 << 16))
            except BlockingIOError:
                pass
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                            struct.pack("ii", 1, 3600))
            rights = array.array("i", [slow.fileno()]).tobytes()
            doors = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                     for _ in range(2)]
            for door in doors:
                door.connect(self.daemon.socket)
                door.sendmsg([bytes(64)], [(socket.SOL_SOCKET,
                                            socket.SCM_RIGHTS, rights)])
            slow.close()  # Not the last one: it is on its way to hoistd.
            tell("sent")
            for door in doors:
                door.recv(1)  # hoistd has looked at it.
                door.close()
            tell("looked at")
            signal.pause()
            listener.close()
            kept.close()

        # It is to be the one who closes that socket last.
        halt(self.daemon.process.pid)
        pid, said = start_as(EVIL, work)
        self.addCleanup(said.close)
        self.addCleanup(os.waitpid, pid, 0)
        self.addCleanup(os.kill, pid, signal.SIGKILL)
        sent = said.readline()
        self.daemon.process.send_signal(signal.SIGCONT)
        self.assertEqual(sent, "sent\n")
        self.assertEqual(said.readline(), "looked at\n")
        self.served(OTHER, self.local)
        self.assertEqual(self.daemon.stop(), 0)

    def test_who_leaves_too_much_hanging_is_refused_at_once(self):
        names = [str(i) for i in range(12)]
        self.start("1s", names)
        workers = [self.begin(EVIL, self.hang("stat", name)) for name in names]
        refusals = [self.end(worker) for worker in workers]
        said = "calls on files that hang"
        late = sum("DeadlineExceeded" in refusal for refusal in refusals)
        at_once = sum(said in refusal for refusal in refusals)
        # Two are opened at once, so that a ninth may have begun before.
        self.assertIn(late, (8, 9))
        self.assertEqual(late + at_once, len(names), refusals)
        self.served(OTHER, self.local)
        self.files.answer()
        self.served(EVIL, self.local)

    def test_sixteen_who_hang_neither_slow_others_nor_hoistds_stop(self):
        names = [f"m{i}" for i in range(OWNERS)]
        self.start("1h", names)
        workers = []
        for number, name in enumerate(names):
            point = list(POINTS)[number % len(POINTS)]
            workers.append(self.begin(60000 + number, self.hang(point, name)))
        self.await_hanging(names)
        self.served(OTHER, self.local)
        loading = subprocess.Popen(
            [self.daemon.binary.parents[1] / "client/ctl/hoistctl", "--socket",
             self.daemon.grpc_socket, "load",
             self.files.folder / "m2.safetensors"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(loading.wait)
        self.daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.daemon.process.wait(timeout=60), 0)
        self.await_hanging(names)  # Still.
        for worker in workers:
            self.assertNotEqual(self.end(worker), "served")


if __name__ == "__main__":
    unittest.main()
