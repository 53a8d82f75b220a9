"""Real workers of the Python package against a real hoistd.

workers_test.py HOISTD [unittest options]; needs HOIST_LIBRARY and PYTHONPATH.
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model,  # noqa: E402
                         write_safetensors)

HOISTD = sys.argv.pop(1)


def bytes_of(tensor):
    if tensor.nbytes == 0:
        return b""
    return ctypes.string_at(tensor.address, tensor.nbytes)


class Workers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="hoist-model-")
        self.path = os.path.join(self.folder.name, "model.safetensors")
        self.tensors = block_model()
        write_safetensors(self.path, self.tensors)
        # The pool holds 5 of the model's 6 blocks.
        self.daemon = RealDaemon(HOISTD, pool=6 * MIB, slab=2 * MIB)
        self.addCleanup(self.folder.cleanup)

    def tearDown(self):
        code = self.daemon.stop()
        if not self.killed_daemon:
            self.assertEqual(code, 0)

    killed_daemon = False

    def connect(self, **options):
        session = hoist.connect(self.daemon.socket, connect_deadline=20,
                                **options)
        self.addCleanup(session.close)
        return session

    def check_lease(self, lease):
        for name in lease:
            dtype, shape, data = self.tensors[name]
            tensor = lease[name]
            self.assertEqual(tensor.dtype, dtype)
            self.assertEqual(list(tensor.shape), shape)
            self.assertEqual(bytes_of(tensor), data, name)

    def test_every_groups_bytes_equal_the_files(self):
        session = self.connect()
        for rule in ("block", "module"):  # As a whole it is too large.
            model = session.register(self.path, f"m-{rule}", groups=rule)
            seen = set()
            for group in model:
                with session.stage(group) as lease:
                    self.check_lease(lease)
                    seen.update(lease)
            self.assertEqual(seen, set(self.tensors))

    def test_a_folder_is_registered_as_its_file(self):
        session = self.connect()
        by_file = session.register(self.path, "m")
        by_folder = session.register(self.folder.name, "m")
        self.assertEqual(by_file.id, by_folder.id)
        self.assertEqual(by_file.fingerprint, by_folder.fingerprint)

    def test_shards_with_an_index_are_one_model(self):
        names = list(self.tensors)
        halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        with tempfile.TemporaryDirectory() as folder:
            for shard, keys in halves.items():
                write_safetensors(os.path.join(folder, shard),
                                  {key: self.tensors[key] for key in keys})
            weight_map = {key: shard for shard, keys in halves.items()
                          for key in keys}
            import json
            pathlib.Path(folder, "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": weight_map}))
            session = self.connect()
            model = session.register(folder, "sharded")
            for group in model:
                with session.stage(group) as lease:
                    self.check_lease(lease)

    def test_explicit_groups_are_taken_in_their_order(self):
        session = self.connect()
        groups = {"odds": [n for n in self.tensors if n.endswith(".b")],
                  "ends": ["norm.none", "norm.scale"],
                  **{f"w{i}": [f"layers.{i}.w"] for i in range(6)}}
        model = session.register(self.path, "explicit", groups=groups)
        self.assertEqual([g.name for g in model], list(groups))
        with session.stage(model["odds"]) as lease:
            self.assertEqual(list(lease), groups["odds"])
            self.check_lease(lease)
        with self.assertRaises(hoist.InvalidArgument):
            session.register(self.path, "partly", groups={"a": ["norm.scale"]})

    def test_two_workers_read_the_same_copy(self):
        one, two = self.connect(), self.connect()
        first = one.register(self.path, "m")
        second = two.register(self.path, "m")
        self.assertEqual(first.id, second.id)
        with one.stage(first["layers.0"]) as mine:
            with two.stage(second["layers.0"]) as its:
                self.assertTrue(its.was_resident)
                self.assertEqual(mine["layers.0.w"].address,
                                 its["layers.0.w"].address)
                self.check_lease(its)

    def test_a_sessions_budget_is_enforced_and_says_why(self):
        session = self.connect(device_budget=5 * MIB // 2)
        model = session.register(self.path, "m")
        with session.stage(model["layers.0"]):
            with session.stage(model["layers.1"]) as second:
                with self.assertRaises(hoist.ResourceExhausted) as refused:
                    session.stage(model["layers.2"], deadline=0)
                self.assertIn("budget", str(refused.exception))
                second.release()
                session.stage(model["layers.2"], deadline=0).release()

    def test_a_full_pool_is_refused_at_once_and_waited_for(self):
        session = self.connect()
        model = session.register(self.path, "m")
        held = []
        with self.assertRaises(hoist.ResourceExhausted):
            for index in range(6):
                held.append(session.stage(model[f"layers.{index}"],
                                          deadline=0))
        self.assertGreaterEqual(len(held), 3)
        missing = model[f"layers.{len(held)}"]
        got = []

        def wait():
            with session.stage(missing, deadline=60) as lease:
                self.check_lease(lease)
                got.append(lease.id)

        waiter = threading.Thread(target=wait)
        waiter.start()
        held.pop().release()
        waiter.join(60)
        self.assertEqual(len(got), 1)

    def test_a_group_larger_than_the_pool_is_refused(self):
        session = self.connect()
        model = session.register(self.path, "whole", groups="whole")
        with self.assertRaises(hoist.ResourceExhausted):
            session.stage(model["model"], deadline=60)

    def test_a_killed_workers_leases_come_back(self):
        holders = []
        for index in range(5):  # All that the pool holds.
            holders.append(subprocess.Popen(
                [sys.executable, str(HERE / "holder.py"), self.daemon.socket,
                 self.path, f"layers.{index}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        try:
            held = [h for h in holders if h.stdout.readline() == "held\n"]
            self.assertEqual(len(held), 5)
            session = self.connect()
            model = session.register(self.path, "m")
            with self.assertRaises(hoist.ResourceExhausted):
                session.stage(model["layers.5"], deadline=0)
            for holder in held:
                holder.kill()
                holder.wait()
            # The kernel closes their sockets; hoistd takes the leases back.
            leases = [session.stage(model[f"layers.{index}"], deadline=60)
                      for index in (5, 1, 2, 3, 4)]
            for lease in leases:
                self.check_lease(lease)
        finally:
            for holder in holders:
                holder.kill()
                holder.communicate()

    def test_a_published_group_is_staged_back(self):
        session = self.connect()
        data = {f"t{i}": (ctypes.c_uint8 * 1000)(*os.urandom(1000))
                for i in range(3)}
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        arrays = {name: np.frombuffer(raw, np.uint8)
                  for name, raw in data.items()}
        arrays["tied"] = arrays["t0"]
        arrays["strided"] = np.arange(12, dtype=np.float32).reshape(3, 4).T
        arrays["scalar"] = np.array(1.5)
        arrays["empty"] = np.empty((0, 3), np.int16)
        first = session.publish("mine", "g0", arrays)
        model = session.publish("mine", "g1", {"u": arrays["t1"]})
        self.assertTrue(model.published)
        self.assertEqual([g.name for g in model], ["g0", "g1"])
        other = self.connect().model("mine")
        self.assertEqual(other.id, model.id)
        self.assertEqual(other.fingerprint, model.fingerprint)
        self.assertEqual([g.name for g in first], ["g0"])
        with session.stage(model["g0"]) as lease:
            for name, array in arrays.items():
                view = lease[name].numpy()
                self.assertEqual(view.dtype, array.dtype)
                np.testing.assert_array_equal(view, array)
                self.assertFalse(view.flags.writeable)
            self.assertEqual(lease["tied"].address, lease["t0"].address)
            self.assertEqual(lease["strided"].strides, (1, 4))
        # The same again is attached to; other bytes are refused.
        session.publish("mine", "g1", {"u": arrays["t1"]})
        with self.assertRaises(hoist.AlreadyExists):
            session.publish("mine", "g1", {"u": arrays["t2"]})

    def test_what_is_not_what_was_expected_is_not_kept(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        session = self.connect()
        right = {"w": np.arange(1000, dtype=np.float32)}
        content = session.publish("a", "g", right)["g"].content
        self.assertEqual(len(content), 32)
        self.assertEqual(
            session.publish("b", "g", right, content=content)["g"].content,
            content)
        with self.assertRaisesRegex(hoist.DataLoss, "c/g .*" + content.hex()):
            session.publish("c", "g", {"w": right["w"] + 1}, content=content)
        with self.assertRaises(hoist.NotFound):
            session.model("c")
        with self.assertRaises(hoist.InvalidArgument):
            session.publish("c", "g", right, content=content[:31])
        model = session.register(self.path, "m")
        self.assertEqual({group.content for group in model}, {None})

    def test_prefetch_makes_a_group_resident(self):
        session = self.connect()
        model = session.register(self.path, "m")
        session.set_order(model.groups)
        session.prefetch(model["layers.3"])
        # A stage joins the copy under way, or finds it done: no second read.
        with session.stage(model["layers.3"]) as lease:
            self.check_lease(lease)
        with session.stage(model["layers.3"]) as again:
            self.assertTrue(again.was_resident)
        session.prefetch(model.groups[:2], tier="host")
        session.clear_order(model)

    def test_a_path_gives_no_rights(self):
        session = self.connect()
        with self.assertRaises(hoist.NotFound):
            session.register(self.path + ".nope", "m")
        garbage = os.path.join(self.folder.name, "bad.safetensors")
        pathlib.Path(garbage).write_bytes(b"\xff" * 100)
        with self.assertRaises(hoist.InvalidArgument):
            session.register(garbage, "bad")
        session.check()

    def test_a_killed_daemon_is_unavailable(self):
        session = self.connect()
        model = session.register(self.path, "m")
        lease = session.stage(model["layers.0"])
        self.killed_daemon = True
        self.daemon.kill()
        with self.assertRaises(hoist.Unavailable):
            session.stage(model["layers.1"])
        with self.assertRaises(hoist.Unavailable):
            lease["layers.0.w"]


if __name__ == "__main__":
    unittest.main()
