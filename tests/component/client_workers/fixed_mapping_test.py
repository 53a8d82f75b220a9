"""Addresses that groups are bound to, leave, and come back to.

fixed_mapping_test.py HOISTD SLEEPING_WORKER [unittest options]; needs HOIST_LIBRARY and PYTHONPATH.
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


class FixedMappings(unittest.TestCase):
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

    def bytes_in(self, mapping):
        found = {}
        for group in self.names():
            tensor = mapping.tensor(group, f"{group}.w")
            found[f"{group}.w"] = ctypes.string_at(tensor.address,
                                                   tensor.nbytes)
        return found

    def names(self):
        return [f"layers.{at}" for at in range(3)]

    def test_another_session_brings_the_bytes_back_to_their_addresses(self):
        session = hoist.connect(self.daemon.socket)
        model = session.model("model")
        mapping = session.fixed_mapping(model.groups)
        addresses = [mapping.address(name) for name in self.names()]
        mapping.fill(session, model)
        self.assertEqual(self.bytes_in(mapping), self.data)
        mapping.empty()
        session.close()
        del session, model
        self.assertEqual(mapped(), [])
        self.assertEqual(self.daemon.tier("DEVICE")["leased_bytes"], 0)
        mapping.fill(self.session, self.model)
        self.assertEqual([mapping.address(name) for name in self.names()],
                         addresses)
        self.assertEqual(self.bytes_in(mapping), self.data)

    def test_two_mappings_share_their_memory(self):
        mappings = [self.session.fixed_mapping(self.model.groups) for _ in range(2)]
        used = []
        for mapping in mappings:
            mapping.fill(self.session, self.model)
            used.append(self.daemon.tier("DEVICE")["used_bytes"])
            self.assertEqual(self.bytes_in(mapping), self.data)
        self.assertEqual(used[0], used[1])

    def test_what_is_empty_says_so(self):
        mapping = self.session.fixed_mapping(self.model.groups)
        with self.assertRaisesRegex(hoist.FailedPrecondition, "fill it"):
            mapping.tensor("layers.0", "layers.0.w").address
        with self.assertRaisesRegex(hoist.NotFound, "no group"):
            mapping.address("layers.9")
        mapping.fill(self.session, self.model)
        mapping.fill(self.session, self.model)
        self.assertEqual(self.bytes_in(mapping), self.data)
        mapping.close()
        with self.assertRaises(hoist.FailedPrecondition):
            mapping.check()

    def test_groups_that_lie_otherwise_are_refused(self):
        mapping = self.session.fixed_mapping(self.model.groups)
        other = os.path.join(self.folder.name, "other.safetensors")
        write_safetensors(other, {name: ("U8", [64], b"x" * 64)
                                  for name in self.data})
        with self.assertRaisesRegex(hoist.InvalidArgument, "lie otherwise"):
            mapping.fill(self.session, self.session.register(other, "other"))
        mapping.fill(self.session, self.model)
        self.assertEqual(self.bytes_in(mapping), self.data)

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
        mapping = self.session.fixed_mapping(model.groups)
        with self.assertRaises(hoist.ResourceExhausted):
            mapping.fill(self.session, model, deadline=0)
        with self.assertRaises(hoist.FailedPrecondition):
            mapping.check()
        self.session.check()


if __name__ == "__main__":
    unittest.main()
