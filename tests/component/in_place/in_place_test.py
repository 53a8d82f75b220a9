"""Workers read tensors where they lie, whose pieces move under them.

in_place_test.py HOIST-KEEPER HOISTD [unittest options]; needs HOIST_LIBRARY,
PYTHONPATH and NumPy.
"""

import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, until, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

KEEPER = sys.argv.pop(1)
HOISTD = sys.argv.pop(1)
PIECE = 2 * MIB
PIECES = 16
HOT = 4  # Pieces in the budget.

# Another worker of the same model. "hot": it makes some units hot and waits.
# "moves": its passes never pause, and pieces move between them, until it is
# killed or told to end.
WORKER = """
import sys, threading
sys.path.insert(0, sys.argv[3])
from in_place_test import Worker
socket, path, what = sys.argv[2:]
worker = Worker(socket, path)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()),
                 daemon=True).start()
if what == "hot":
    worker.make_hot(range(4))
    print("ready", flush=True)
    over.wait()
else:
    said = False
    while not over.is_set():
        worker.passes(1)
        if not said and worker.tensors.stats.moves > 10:
            said = True
            print("ready", flush=True)
worker.check()
worker.close()
print("equal", flush=True)
"""


def bytes_of(piece):
    return np.random.default_rng(piece).integers(0, 256, PIECE, dtype=np.uint8)


class Worker:
    """One tensor of all pieces, a unit each. path: None, of "published"."""

    def __init__(self, socket, path, hot_bytes=HOT * PIECE,
                 pieces=PIECES, deadline=60):
        self.session = hoist.connect(socket, connect_deadline=60)
        model = (self.session.register(path, "files") if path
                 else self.session.model("published"))
        self.tensors = self.session.in_place(
            model, {"all": hoist.InPlaceTensor(
                "U8", (pieces, PIECE),
                [f"experts.{piece}" for piece in range(pieces)],
                units=pieces)},
            hot_bytes=hot_bytes, deadline=deadline)
        self.array = self.tensors["all"].numpy()
        self.address = self.array.ctypes.data
        self.expected = np.stack([bytes_of(piece) for piece in range(pieces)])
        self.done = 0

    def make_hot(self, units):
        for _ in range(10):  # Passes.
            self.tensors.touch("all", {unit: 100 for unit in units})
        self.tensors.advance(wait=True)

    def passes(self, count):
        """Each reads a part of every piece; others are touched by and by."""
        for _ in range(count):
            self.tensors.begin()
            at = self.done * 4096 % PIECE
            same = np.array_equal(self.array[:, at:at + 4096],
                                  self.expected[:, at:at + 4096])
            self.tensors.end()
            assert same, f"pass {self.done} read other bytes"
            first = self.done // 40 * HOT
            self.tensors.touch("all", {(first + unit) % PIECES: 1000
                                       for unit in range(HOT)})
            self.done += 1

    def move(self, moves):
        """Passes until so many pieces have moved."""
        end = self.tensors.stats.moves + moves
        until(lambda: self.passes(1) or self.tensors.stats.moves >= end)

    def check(self):
        """Between passes."""
        same = np.array_equal(self.array, self.expected)
        assert same, "other bytes"
        assert self.tensors["all"].numpy().ctypes.data == self.address
        self.tensors.check()

    def close(self):
        self.tensors.close()
        self.session.close()


@unittest.skipIf(np is None, "needs NumPy")
class InPlace(unittest.TestCase):
    def start(self, **options):
        self.daemon = RealDaemon(HOISTD, **{
            "pool": 32 * MIB, "host": 64 * MIB, "in_place": PIECES * PIECE,
            **options})
        self.addCleanup(self.stop)
        self.path = self.daemon.path / "model.safetensors"
        write_safetensors(self.path, {
            f"experts.{piece}.w": ("U8", [PIECE], bytes_of(piece).tobytes())
            for piece in range(PIECES)})

    def stop(self):
        if os.environ.get("HOIST_IN_PLACE_TEST_LOG"):
            print(self.daemon.log_text())
        self.daemon.stop()

    def worker(self, **options):
        worker = Worker(self.daemon.socket, self.path, **options)
        self.addCleanup(worker.close)
        return worker

    def other(self, what):
        """Another process; ready by now."""
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, KEEPER, HOISTD, str(HERE),
             self.daemon.socket, str(self.path), what],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def end(self, process):
        """Its bytes were right to the last."""
        said, _ = process.communicate()
        self.assertEqual((said, process.returncode), ("equal\n", 0))

    def leased(self):
        """Pieces on the device and in place, each once."""
        return tuple(self.daemon.tier("DEVICE", device)["leased_bytes"] // PIECE
                     for device in (0, 1))

    def test_bytes_are_equal_while_pieces_move(self):
        self.start()
        worker = self.worker()
        worker.check()
        worker.move(60)
        worker.check()
        stats = worker.tensors.stats
        self.assertLessEqual(stats.hot_bytes, HOT * PIECE)
        self.assertEqual(stats.bytes, PIECES * PIECE)
        worker.close()
        until(lambda: self.leased() == (0, 0))

    def test_pieces_are_copied_from_where_they_are_read_in_place(self):
        # No room in the pool for more than a few.
        self.start(host=4 * PIECE)
        worker = self.worker(hot_bytes=0)
        before = self.daemon.counters()
        worker.tensors.set_budget(HOT * PIECE)
        worker.tensors.advance(wait=True)
        after = self.daemon.counters()
        self.assertEqual(after["file_read_bytes"], before["file_read_bytes"])
        self.assertEqual(
            after["host_to_device_bytes"] - before["host_to_device_bytes"],
            HOT * PIECE)
        worker.check()

    def publish(self, deadline=60):
        """All pieces; returns how many were taken, and the session."""
        session = hoist.connect(self.daemon.socket, connect_deadline=60)
        self.addCleanup(session.close)
        for piece in range(PIECES):
            try:
                session.publish("published", f"experts.{piece}",
                                {"w": bytes_of(piece)}, deadline=deadline)
            except hoist.ResourceExhausted:
                return piece, session
        return PIECES, session

    def test_published_pieces_take_the_host_once_where_a_disk_has_them(self):
        spill = tempfile.TemporaryDirectory(prefix="hoist-")
        self.addCleanup(spill.cleanup)
        self.start(host=4 * PIECE, keeper=KEEPER,
                   extra=f'[disk]\nspill_dir = "{spill.name}"\n')
        taken, session = self.publish()
        self.assertEqual(taken, PIECES)
        session.close()
        self.path = None
        worker = self.worker()
        worker.move(10)
        # The disk has the pool's pieces, too: these may leave.
        until(lambda: self.daemon.tier("HOST")["unsaved_bytes"] == 0)
        self.daemon.ctl("evict", "published")
        self.assertEqual(self.daemon.tier("HOST")["used_bytes"], 0)
        self.assertEqual(self.daemon.tier("DEVICE", 1)["used_bytes"],
                         PIECES * PIECE)
        worker.move(10)
        # Nothing is lost if hoistd dies now, or with the last lease.
        dead = self.daemon.kill_served()
        worker.check()
        self.daemon.until_another(dead)
        worker.move(10)
        worker.close()
        until(lambda: self.leased() == (0, 0))
        self.daemon.ctl("evict", "published")
        self.assertEqual(self.daemon.tier("DEVICE", 1)["used_bytes"], 0)
        self.worker().check()

    def test_published_pieces_take_the_pool_where_no_disk_has_them(self):
        self.start(host=4 * PIECE)
        self.assertEqual(self.publish(deadline=0)[0], 4)

    def test_what_is_read_over_the_link_is_shown_of_the_link(self):
        self.start()
        worker = self.worker(hot_bytes=0)
        until(lambda: worker.passes(1) or int(self.daemon.status()["links"][0]
              .get("read_bytes_per_second", 0)) > 0)
        self.assertIn("/s read in place", self.daemon.ctl("status"))

    def test_an_emulated_link_takes_its_time_for_cold_pieces(self):
        self.start(extra='[device.emulated]\nlink = "1GB/s"')
        worker = self.worker(hot_bytes=0)
        for pieces in 1, 8:
            worker.tensors.begin()
            worker.tensors.touch("all", {unit: 1 for unit in range(pieces)})
            begun = time.monotonic()
            worker.tensors.end()
            self.assertGreaterEqual(time.monotonic() - begun,
                                    pieces * PIECE / 1e9)
        read = worker.tensors.stats.touched_cold_bytes
        self.assertEqual(read, 9 * PIECE)
        worker.tensors.set_budget(HOT * PIECE)
        worker.make_hot(range(HOT))  # Told outside of passes: of no pass.
        worker.tensors.begin()
        worker.tensors.touch("all", {unit: 1 for unit in range(HOT)})
        worker.tensors.end()
        self.assertEqual(worker.tensors.stats.touched_cold_bytes,
                         read + 1000 * HOT * PIECE)

    def test_two_workers_share_hot_pieces(self):
        self.start()
        worker = self.worker()
        worker.make_hot(range(HOT))
        self.assertEqual(self.leased(), (HOT, PIECES))
        before = self.daemon.counters()
        other = self.other("hot")
        # Device bytes of one, and host bytes of one.
        self.assertEqual(self.leased(), (HOT, PIECES))
        self.assertEqual(self.daemon.counters()["host_to_device_bytes"],
                         before["host_to_device_bytes"])
        worker.close()
        self.assertEqual(self.leased(), (HOT, PIECES))
        self.end(other)
        until(lambda: self.leased() == (0, 0))

    def test_one_that_is_killed_leaves_the_others_bytes(self):
        self.start()
        worker = self.worker()
        worker.move(10)
        for _ in range(3):
            other = self.other("moves")
            worker.move(10)
            other.kill()  # In the middle of passes and moves.
            other.wait()
            worker.move(10)
            worker.check()
        # What it had is given back: no more is leased than one worker's.
        until(lambda: self.leased()[0] <= HOT)
        self.assertEqual(self.leased()[1], PIECES)
        worker.close()
        until(lambda: self.leased() == (0, 0))

    def test_workers_go_on_when_hoistd_dies(self):
        self.start(keeper=KEEPER)
        worker = self.worker()
        worker.move(5)
        other = self.other("moves")
        for _ in range(4):
            dead = self.daemon.kill_served()
            worker.passes(50)  # Whether anybody lives or not.
            worker.check()
            self.daemon.until_another(dead)
            worker.move(10)  # The next one brings pieces as the last did.
            worker.check()
        self.assertEqual(self.daemon.counters()["file_read_bytes"], 0)
        self.end(other)
        worker.close()
        until(lambda: self.leased() == (0, 0))

    def test_hot_pieces_outlive_hoistd(self):
        self.start(keeper=KEEPER)
        worker = self.worker()
        worker.make_hot(range(HOT))
        dead = self.daemon.kill_served()
        worker.check()
        self.daemon.until_another(dead)
        self.assertEqual(until(self.leased), (HOT, PIECES))
        other = self.other("hot")  # Nothing is copied for it.
        self.assertEqual(self.daemon.counters()["host_to_device_bytes"], 0)
        self.assertEqual(self.daemon.counters()["file_read_bytes"], 0)
        self.end(other)
        worker.check()

    def test_a_successor_may_have_memory_in_place_that_was_not_there(self):
        self.start(keeper=KEEPER, in_place=0)
        session = hoist.connect(self.daemon.socket, connect_deadline=60)
        self.addCleanup(session.close)
        model = session.register(self.path, "files")
        lease = session.stage(model["experts.3"])
        config = self.daemon.path / "hoistd.toml"
        config.write_text(config.read_text().replace(
            "in_place = 0", f"in_place = {PIECES * PIECE}"))
        self.daemon.kill_kept()
        # All goes on, and who comes has the new memory.
        with session.stage(model["experts.4"]) as other:
            self.assertTrue(np.array_equal(other["experts.4.w"].numpy(),
                                           bytes_of(4)))
        lease.check()
        self.assertTrue(np.array_equal(lease["experts.3.w"].numpy(),
                                       bytes_of(3)))
        self.assertEqual(self.daemon.status()["notes"], [])
        self.worker().check()
        # What the session was told when it began holds for it.
        with self.assertRaises(hoist.Unimplemented):
            session.in_place(model, {"one": hoist.InPlaceTensor(
                "U8", (PIECE,), ["experts.0"])})

    def test_descriptors(self):
        """One more piece than hoistd has descriptors for is refused, and the
        session lives."""
        pieces = 112
        self.start(in_place=pieces * PIECE,
                   limits=lambda: resource.setrlimit(
                       resource.RLIMIT_NOFILE, (400, 400)))
        write_safetensors(self.path, {
            f"experts.{piece}.w": ("U8", [PIECE], bytes(PIECE))
            for piece in range(pieces)})
        with hoist.connect(self.daemon.socket, connect_deadline=60) as session:
            model = session.register(self.path, "files")

            def in_place(count):
                return session.in_place(model, {"all": hoist.InPlaceTensor(
                    "U8", (count, PIECE), [
                        one.name for one in model][:count])}, deadline=2)

            with self.assertRaisesRegex(hoist.ResourceExhausted,
                                        "LimitNOFILE"):
                in_place(pieces)
            in_place(16).close()
            with session.stage(model["experts.0"], deadline=10) as lease:
                self.assertEqual(len(lease), 1)

    def test_a_hot_piece_that_is_refused_says_why(self):
        self.start(pool=8 * PIECE)
        worker = self.worker(hot_bytes=12 * PIECE)
        worker.tensors.advance(wait=True)
        worker.check()
        with self.assertRaisesRegex(hoist.ResourceExhausted, "on device 0"):
            worker.tensors.check_hot()
        worker.tensors.set_budget(4 * PIECE)
        worker.tensors.check_hot()

    def test_without_memory_in_place_the_key_is_named(self):
        self.start(in_place=0)
        with self.assertRaisesRegex(hoist.Unimplemented, r"host\.in_place"):
            self.worker()

    def test_too_little_memory_in_place_names_the_key(self):
        self.start(in_place=3 * PIECE)
        with self.assertRaisesRegex(hoist.ResourceExhausted,
                                    r"in place.*host\.in_place") as refused:
            self.worker(deadline=0)
        self.assertNotIn("device 1", str(refused.exception))
        until(lambda: self.leased() == (0, 0))  # All that had come went back.
        self.worker(pieces=3).check()


if __name__ == "__main__":
    unittest.main()
