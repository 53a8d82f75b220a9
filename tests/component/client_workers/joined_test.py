"""Tensors that the files hold in parts, of real files in a real hoistd.

joined_test.py HOISTD [unittest options]; needs HOIST_LIBRARY and PYTHONPATH.
"""

import ctypes
import os
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

HOISTD = sys.argv.pop(1)
EXPERTS = 5


def some_bytes(seed, size):
    return bytes((seed * 31 + i * 7) % 251 for i in range(size))


class JoinedTensors(unittest.TestCase):
    """Experts one by one, in two files; sizes are no multiples of 256 bytes,
    to which tensors of an image are aligned."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="hoist-model-")
        cls.tensors = {}
        for e in range(EXPERTS):
            for at, name in enumerate(("gate", "up", "down")):
                cls.tensors[f"layers.0.experts.{e}.{name}"] = (
                    "BF16", [3, 7], some_bytes(3 * e + at, 42))
        cls.tensors["layers.0.qkv"] = ("BF16", [6, 5], some_bytes(99, 60))
        cls.tensors["layers.0.norm"] = ("F32", [4], some_bytes(98, 16))
        names = list(cls.tensors)
        for shard, keys in (("a", names[::2]), ("b", names[1::2])):
            write_safetensors(
                os.path.join(cls.folder.name, f"{shard}.safetensors"),
                {key: cls.tensors[key] for key in keys})
        cls.daemon = RealDaemon(HOISTD, pool=8 * MIB, slab=2 * MIB)

    @classmethod
    def tearDownClass(cls):
        code = cls.daemon.stop()
        cls.folder.cleanup()
        assert code == 0, code

    def setUp(self):
        self.session = hoist.connect(self.daemon.socket, connect_deadline=20)
        self.addCleanup(self.session.close)

    def data(self, name):
        return self.tensors[name][2]

    def moe(self):
        """As transformers merges experts: gates above ups, by expert."""
        names = [f"layers.0.experts.{e}" for e in range(EXPERTS)]
        return {
            "layers.0.experts.gate_up": hoist.Joined(
                (EXPERTS, 6, 7),
                [part for name in names
                 for part in (f"{name}.gate", f"{name}.up")]),
            "layers.0.experts.down": hoist.Joined(
                (EXPERTS, 3, 7), [f"{name}.down" for name in names]),
            **{f"layers.0.{name}": hoist.Joined(
                (2, 5), [("layers.0.qkv", 20 * at, 20)])
               for at, name in enumerate("qkv")},
        }

    def bytes_of(self, tensor):
        return ctypes.string_at(tensor.address, tensor.nbytes)

    def test_their_bytes_are_their_parts_end_to_end(self):
        model = self.session.register(self.folder.name, "moe",
                                      joined=self.moe())
        (group,) = model
        self.assertEqual(len(group.tensors), 6)
        experts = [f"layers.0.experts.{e}" for e in range(EXPERTS)]
        want = {
            "layers.0.experts.gate_up": b"".join(
                self.data(f"{name}.gate") + self.data(f"{name}.up")
                for name in experts),
            "layers.0.experts.down": b"".join(
                self.data(f"{name}.down") for name in experts),
            "layers.0.q": self.data("layers.0.qkv")[:20],
            "layers.0.k": self.data("layers.0.qkv")[20:40],
            "layers.0.v": self.data("layers.0.qkv")[40:],
            "layers.0.norm": self.data("layers.0.norm"),
        }
        with self.session.stage(group) as lease:
            self.assertEqual(set(lease), set(want))
            for name, data in want.items():
                self.assertEqual(self.bytes_of(lease[name]), data, name)
            self.assertEqual(
                tuple(lease["layers.0.experts.gate_up"].shape),
                (EXPERTS, 6, 7))
            self.assertEqual(lease["layers.0.experts.gate_up"].dtype, "BF16")
        image = self.session.host_image(group)
        image.load(deadline=20)
        for name, data in want.items():
            self.assertEqual(self.bytes_of(image[name]), data, name)

    def test_the_same_parts_are_the_same_model_and_others_another(self):
        joined = {"x": hoist.Joined((2, 3, 7), ["layers.0.experts.0.gate",
                                                "layers.0.experts.0.up"])}
        turned = {"x": hoist.Joined((2, 3, 7), ["layers.0.experts.0.up",
                                                "layers.0.experts.0.gate"])}
        first = self.session.register(self.folder.name, "x", joined=joined)
        again = self.session.register(self.folder.name, "x", joined=joined)
        self.assertEqual(first.id, again.id)
        with self.assertRaises(hoist.AlreadyExists):
            self.session.register(self.folder.name, "x", joined=turned)

    def test_explicit_groups_name_them(self):
        joined = self.moe()
        groups = {"experts": ["layers.0.experts.down",
                              "layers.0.experts.gate_up"],
                  "rest": ["layers.0.norm", "layers.0.v", "layers.0.k",
                           "layers.0.q"]}
        model = self.session.register(self.folder.name, "explicit",
                                      groups=groups, joined=joined)
        self.assertEqual([[info.name for info in group.tensors]
                          for group in model], list(groups.values()))

    def test_thousands_of_parts_in_another_order_than_the_files(self):
        # More than one readv takes, and none where its neighbour goes.
        count = 2000
        tensors = {f"e.{at}.{name}": ("U8", [5], some_bytes(at + 7 * turn, 5))
                   for at in range(count)
                   for turn, name in enumerate(("a", "b"))}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            write_safetensors(path, tensors)
            order = [f"e.{at}.{name}" for at in reversed(range(count))
                     for name in ("b", "a")]
            model = self.session.register(
                path, "many", groups="whole",
                joined={"all": hoist.Joined((count, 2, 5), order)})
            with self.session.stage(model["model"]) as lease:
                self.assertEqual(self.bytes_of(lease["all"]),
                                 b"".join(tensors[one][2] for one in order))

    def test_workers_that_take_columns_of_a_matrix_share_its_bytes(self):
        rows, half = 64, 48  # Of either worker's columns, in bytes: no page.
        data = some_bytes(5, rows * 2 * half)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            write_safetensors(path, {"w": ("U8", [rows, 2 * half], data)})
            before = self.daemon.tier("HOST")["used_bytes"]
            self.daemon.count_anew()
            for side in range(2):
                model = self.session.register(
                    path, f"columns {side}".replace(" ", "-"), groups="whole",
                    joined={"mine": hoist.Joined(
                        (rows, half), [hoist.Runs("w", side * half, half, rows,
                                                  2 * half)])})
                want = b"".join(
                    data[at * 2 * half + side * half:][:half]
                    for at in range(rows))
                with self.session.stage(model["model"]) as lease:
                    self.assertEqual(self.bytes_of(lease["mine"]), want)
            # A page and a half hold the matrix, and nobody read it twice.
            self.assertEqual(
                self.daemon.tier("HOST")["used_bytes"] - before, 8192)
            self.assertEqual(self.daemon.counters()["file_read_bytes"],
                             len(data))

    def test_runs_that_do_not_fit_are_refused(self):
        gate = "layers.0.experts.0.gate"
        for why, run in {"overlap": (gate, 0, 14, 3, 12),
                         "do not fit": (gate, 0, 14, 3, 16),
                         "negative": (gate, 0, 14, -1, 14)}.items():
            with self.assertRaisesRegex(hoist.InvalidArgument, why):
                self.session.register(
                    self.folder.name, "bad",
                    joined={"x": hoist.Joined((3, 7), [hoist.Runs(*run)])})
        self.session.check()

    def test_a_request_that_is_too_large_leaves_the_session_alive(self):
        gate = "layers.0.experts.0.gate"
        many = [(gate, 0, 2)] * 600_000
        with self.assertRaisesRegex(hoist.ResourceExhausted, "16777216"):
            self.session.register(self.folder.name, "large", joined={
                "x": hoist.Joined((len(many),), many)})
        self.session.check()
        self.session.register(self.folder.name, "after")

    def test_what_does_not_fit_is_refused(self):
        gate = "layers.0.experts.0.gate"
        for why, joined in {
                "not in the files": hoist.Joined((3, 7), ["nothing"]),
                "needs": hoist.Joined((4, 7), [gate]),
                "another type": hoist.Joined((5, 7), [gate, "layers.0.norm"]),
                "42 bytes": hoist.Joined((3, 7), [(gate, 40, 42)]),
                "cut an element": hoist.Joined((3,), [(gate, 1, 6)]),
                "the offset of": hoist.Joined((3,), [(gate, -1, 6)]),
                "the size of": hoist.Joined((3,), [(gate, 0, 1 << 64)]),
                "the times of": hoist.Joined(
                    (3,), [hoist.Runs(gate, 0, 2, 1 << 64, 2)]),
                "the stride of": hoist.Joined(
                    (3,), [hoist.Runs(gate, 0, 2, 3, 1 << 64)]),
                # Their lowest 64 bits are (3, 7).
                "the shape (3, ": hoist.Joined((3, 7 + (1 << 64)), [gate]),
                "the shape (-": hoist.Joined((3 - (1 << 64), 7), [gate]),
                "no parts": hoist.Joined((3,), [])}.items():
            with self.assertRaises(hoist.InvalidArgument) as refused:
                self.session.register(self.folder.name, "bad",
                                      joined={"x": joined})
            self.assertIn(why, str(refused.exception))
        with self.assertRaisesRegex(hoist.InvalidArgument, "of that name"):
            self.session.register(self.folder.name, "bad", joined={
                gate: hoist.Joined((3, 7), ["layers.0.experts.1.gate"])})
        self.session.check()


if __name__ == "__main__":
    unittest.main()
