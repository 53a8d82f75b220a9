"""Addresses that groups are bound to, leave, and come back to.

berth_test.py HOISTD SLEEPING_WORKER [unittest options]; needs HOIST_LIBRARY and PYTHONPATH.
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, until,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)
SLEEPING_WORKER = sys.argv.pop(1)


def mapped():
    """Of hoistd's memory, in this process."""
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "memfd:hoist" in line]


class Berths(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="hoist-model-")
        cls.path = os.path.join(cls.folder.name, "model.safetensors")
        cls.data = {f"layers.{at}.w": os.urandom(MIB + 4096 * at)
                    for at in range(3)}
        write_safetensors(cls.path, {
            name: ("U8", [len(data)], data) for name, data in cls.data.items()})
        cls.daemon = RealDaemon(HOISTD, pool=16 * MIB, slab=2 * MIB)

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        cls.folder.cleanup()
        assert code == 0, code

    def setUp(self):
        self.session = hoist.connect(self.daemon.socket, connect_deadline=20)
        self.addCleanup(self.session.close)
        self.model = self.session.register(self.path, "model")

    def bytes_in(self, berth):
        found = {}
        for group in self.names():
            tensor = berth.tensor(group, f"{group}.w")
            found[f"{group}.w"] = ctypes.string_at(tensor.address,
                                                   tensor.nbytes)
        return found

    def names(self):
        return [f"layers.{at}" for at in range(3)]

    def test_another_session_brings_the_bytes_back_to_their_addresses(self):
        session = hoist.connect(self.daemon.socket)
        model = session.model("model")
        berth = session.berth(model.groups)
        addresses = [berth.address(name) for name in self.names()]
        berth.fill(session, model)
        self.assertEqual(self.bytes_in(berth), self.data)
        berth.empty()
        session.close()
        del session, model
        self.assertEqual(mapped(), [])
        self.assertEqual(self.daemon.tier("DEVICE")["leased_bytes"], 0)
        berth.fill(self.session, self.model)
        self.assertEqual([berth.address(name) for name in self.names()],
                         addresses)
        self.assertEqual(self.bytes_in(berth), self.data)

    def test_two_berths_share_their_memory(self):
        berths = [self.session.berth(self.model.groups) for _ in range(2)]
        used = []
        for berth in berths:
            berth.fill(self.session, self.model)
            used.append(self.daemon.tier("DEVICE")["used_bytes"])
            self.assertEqual(self.bytes_in(berth), self.data)
        self.assertEqual(used[0], used[1])

    def test_what_is_empty_says_so(self):
        berth = self.session.berth(self.model.groups)
        with self.assertRaisesRegex(hoist.FailedPrecondition, "fill it"):
            berth.tensor("layers.0", "layers.0.w").address
        with self.assertRaisesRegex(hoist.NotFound, "no group"):
            berth.address("layers.9")
        berth.fill(self.session, self.model)
        berth.fill(self.session, self.model)
        self.assertEqual(self.bytes_in(berth), self.data)
        berth.close()
        with self.assertRaises(hoist.FailedPrecondition):
            berth.check()

    def test_groups_that_lie_otherwise_are_refused(self):
        berth = self.session.berth(self.model.groups)
        other = os.path.join(self.folder.name, "other.safetensors")
        write_safetensors(other, {name: ("U8", [64], b"x" * 64)
                                  for name in self.data})
        with self.assertRaisesRegex(hoist.InvalidArgument, "lie otherwise"):
            berth.fill(self.session, self.session.register(other, "other"))
        berth.fill(self.session, self.model)
        self.assertEqual(self.bytes_in(berth), self.data)

    def test_a_worker_in_cpp_sleeps_with_nothing_of_hoistds(self):
        worker = subprocess.Popen(
            [SLEEPING_WORKER, "--socket", self.daemon.socket, self.path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(worker.stdout.readline(), "asleep\n")
        with open(f"/proc/{worker.pid}/maps") as maps:
            self.assertNotIn("memfd:hoist", maps.read())
        until(lambda: self.daemon.status()["sessions"] == 1)  # This one's own.
        self.assertEqual(self.daemon.tier("DEVICE")["leased_bytes"], 0)
        said, _ = worker.communicate("\n")
        self.assertEqual((said, worker.returncode), ("3 groups, equal\n", 0))

    def test_a_device_without_room_leaves_it_empty(self):
        large = os.path.join(self.folder.name, "large.safetensors")
        write_safetensors(large, {f"layers.{at}.w": ("U8", [9 * MIB],
                                                     bytes(9 * MIB))
                                  for at in range(2)})
        model = self.session.register(large, "large")
        berth = self.session.berth(model.groups)
        with self.assertRaises(hoist.ResourceExhausted):
            berth.fill(self.session, model, deadline=0)
        with self.assertRaises(hoist.FailedPrecondition):
            berth.check()
        self.session.check()


if __name__ == "__main__":
    unittest.main()
