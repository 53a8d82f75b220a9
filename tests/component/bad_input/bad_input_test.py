"""Bad input, bad luck and bad company against a real hoistd.

bad_input_test.py HOISTD HOISTCTL [unittest options]; needs HOIST_LIBRARY and
PYTHONPATH. After each test another worker must still be served, and every byte
of the ledger must come back.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from real_daemon import (MIB, RealDaemon, block_model, until,  # noqa: E402
                         write_safetensors)

HOISTD, HOISTCTL = sys.argv.pop(1), sys.argv.pop(1)


def bytes_of(tensor):
    return ctypes.string_at(tensor.address, tensor.nbytes)


def raw_file(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if length is None:
        length = len(text)
    pathlib.Path(path).write_bytes(length.to_bytes(8, "little") + text + data)


def entry(begin, end, shape=None, dtype="U8"):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape,
            "data_offsets": [begin, end]}


class BadInput(unittest.TestCase):
    extra = ""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="hoist-bad-")
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "model.safetensors")
        self.tensors = block_model()
        write_safetensors(self.path, self.tensors)
        self.start()

    def start(self, **options):
        self.daemon = RealDaemon(HOISTD, pool=6 * MIB, slab=2 * MIB,
                                 host=16 * MIB, extra=self.extra, **options)

    def tearDown(self):
        self.check_still_serves()
        self.assertEqual(self.daemon.stop(), 0, "hoistd did not stop cleanly")

    def connect(self, **options):
        session = hoist.connect(self.daemon.socket, connect_deadline=20,
                                **options)
        self.addCleanup(session.close)
        return session

    def status(self):
        done = subprocess.run(
            [HOISTCTL, "--socket", f"{self.daemon.path}/hoistd.grpc.sock",
             "status", "--json"], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def tier(self, name):
        return next(t for t in self.status()["tiers"]
                    if t["tier"] == f"TIER_{name}")

    def number(self, message, name):
        camel = name.split("_")[0] + "".join(
            word.capitalize() for word in name.split("_")[1:])
        return int(message.get(name, message.get(camel, 0)))

    def check_still_serves(self):
        with hoist.connect(self.daemon.socket, connect_deadline=20) as session:
            path = os.path.join(self.folder.name, "good.safetensors")
            tensors = block_model(blocks=2)
            write_safetensors(path, tensors)
            model = session.register(path, "good")
            for group in model:
                with session.stage(group, deadline=20) as lease:
                    for name in lease:
                        if lease[name].nbytes:
                            self.assertEqual(bytes_of(lease[name]),
                                             tensors[name][2])
        status = self.status()
        for tier in status["tiers"]:
            held = sum(self.number(h, "bytes")
                       for h in tier.get("holders", []))
            self.assertEqual(held, self.number(tier, "used_bytes"), tier)
            self.assertEqual(self.number(tier, "leased_bytes"), 0, tier)
        self.assertEqual(self.number(status, "leases"), 0)

    # --- Files -------------------------------------------------------------

    def test_hostile_headers_are_refused_by_rule(self):
        whole = {"a": entry(0, 8), "b": entry(8, 16)}
        data = bytes(16)
        cases = {
            "announces more than the file has":
                (whole, data, {"length": 1 << 20}),
            "announces 2^63 bytes": (whole, data, {"length": 1 << 63}),
            "is cut": (whole, data[:9], {}),
            "has bytes that nothing names": (whole, data + b"x", {}),
            "overlaps": ({"a": entry(0, 8), "b": entry(4, 12)}, data[:12], {}),
            "has a hole": ({"a": entry(0, 4), "b": entry(8, 16)}, data, {}),
            "has an unknown dtype":
                ({"a": entry(0, 16, dtype="F7")}, data, {}),
            "has a negative shape": ({"a": entry(0, 16, [-16])}, data, {}),
            "has a shape that overflows":
                ({"a": entry(0, 16, [1 << 40, 1 << 40])}, data, {}),
            "lies about its size": ({"a": entry(0, 16, [4])}, data, {}),
            "ends before it begins":
                ({"a": {"dtype": "U8", "shape": [0],
                        "data_offsets": [8, 0]}}, data, {}),
            "names a tensor twice":
                (b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},'
                 b'"a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}',
                 data, {}),
            "is no JSON": (b"{nonsense", data, {}),
            "is no object": (b"[1,2]", data, {}),
            "is deep": (b'{"a":' * 100_000, data, {}),
        }
        session = self.connect()
        for what, (header, body, options) in cases.items():
            with self.subTest(what):
                path = os.path.join(self.folder.name, "bad.safetensors")
                raw_file(path, header, body, **options)
                with self.assertRaises(hoist.InvalidArgument) as caught:
                    session.register(path, "bad")
                self.assertLess(len(str(caught.exception)), 600)

    def test_things_that_are_no_files_are_refused(self):
        session = self.connect()
        fifo = os.path.join(self.folder.name, "fifo.safetensors")
        os.mkfifo(fifo)
        holder = os.open(fifo, os.O_RDWR)
        self.addCleanup(os.close, holder)
        for path in (fifo, "/dev/zero"):
            with self.subTest(path), self.assertRaises(hoist.HoistError):
                session.register(path, "bad")

    def test_a_file_that_shrinks_is_data_loss(self):
        session = self.connect()
        model = session.register(self.path, "shrinks")
        os.truncate(self.path, os.path.getsize(self.path) - 3 * MIB)
        for group in model:
            with self.subTest(group.name), self.assertRaises(hoist.DataLoss):
                session.stage(group, deadline=20)

    def test_a_file_that_changed_is_never_served(self):
        session = self.connect()
        model = session.register(self.path, "changes")
        with open(self.path, "r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"different!")
        with self.assertRaises(hoist.DataLoss):
            session.stage(model["layers.0"], deadline=20)

    def test_other_weights_under_one_name_are_refused(self):
        session = self.connect()
        first = session.register(self.path, "name")
        other = os.path.join(self.folder.name, "other.safetensors")
        write_safetensors(other, block_model())
        with self.assertRaises(hoist.AlreadyExists) as caught:
            session.register(other, "name")
        self.assertIn("name", str(caught.exception))
        again = self.connect().register(self.path, "name")
        self.assertEqual(again.id, first.id)

    def test_twenty_thousand_tensors_with_odd_names(self):
        path = os.path.join(self.folder.name, "many.safetensors")
        odd = ["ü", "a b", "x/y", "\"quoted\"", "back\\slash", "🙂", "." * 40]
        tensors = {f"layers.{i % 7}.{odd[i % len(odd)]}.{i}":
                   ("U8", [i % 5], bytes([i % 251]) * (i % 5))
                   for i in range(20_000)}
        write_safetensors(path, tensors)
        session = self.connect()
        model = session.register(path, "many")
        seen = 0
        for group in model:
            with session.stage(group, deadline=20) as lease:
                for name in lease:
                    tensor = lease[name]
                    seen += 1
                    if tensor.nbytes:
                        self.assertEqual(bytes_of(tensor), tensors[name][2])
        self.assertEqual(seen, 20_000)

    # --- Company -----------------------------------------------------------

    def test_garbage_on_every_socket_disturbs_nobody(self):
        session = self.connect()
        model = session.register(self.path, "calm")
        lease = session.stage(model["layers.0"], deadline=20)
        rng = random.Random(7)
        for name, kind in (("hoistd.sock", socket.SOCK_SEQPACKET),
                           ("hoistd.grpc.sock", socket.SOCK_STREAM)):
            for _ in range(50):
                with socket.socket(socket.AF_UNIX, kind) as raw:
                    raw.connect(f"{self.daemon.path}/{name}")
                    try:
                        for _ in range(rng.randrange(1, 5)):
                            raw.send(rng.randbytes(rng.randrange(1, 4000)))
                    except (BrokenPipeError, ConnectionResetError):
                        pass  # It hung up, as it should.
        self.assertEqual(bytes_of(lease["layers.0.w"]),
                         self.tensors["layers.0.w"][2])
        lease.release()

    def test_a_worker_killed_at_any_step_leaves_nothing(self):
        program = (
            "import hoist, os, signal, sys\n"
            "step, die = 0, int(sys.argv[3])\n"
            "def at():\n"
            "    global step\n"
            "    if step == die: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    step += 1\n"
            "at(); s = hoist.connect(sys.argv[1], connect_deadline=20)\n"
            "at(); m = s.register(sys.argv[2], 'k')\n"
            "at(); s.set_order(list(m))\n"
            "at(); s.prefetch(list(m)[:3])\n"
            "at(); a = s.stage(m['layers.0'], deadline=20)\n"
            "at(); b = s.stage(m['layers.1'], deadline=20)\n"
            "at(); a.release()\n"
            "at(); c = s.stage(m['layers.2'], deadline=20)\n"
            "at(); print('through')\n")
        for die in range(10):
            done = subprocess.run(
                [sys.executable, "-c", program, self.daemon.socket, self.path,
                 str(die)], capture_output=True, text=True, timeout=60)
            if die < 9:
                self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
            else:
                self.assertEqual(done.stdout, "through\n", done.stderr)
            # All of the device pool can be leased: nothing is left behind.
            session = self.connect()
            model = session.register(self.path, "k")
            leases = [session.stage(model[f"layers.{i}"], deadline=20)
                      for i in range(5)]
            for lease in leases:
                lease.release()
            session.close()


class Spill(BadInput):
    """Published groups, and what happens to them on the disk."""

    def setUp(self):
        self.spill = tempfile.TemporaryDirectory(prefix="hoist-spill-")
        self.addCleanup(self.spill.cleanup)
        self.extra = f'[disk]\nspill_dir = "{self.spill.name}/spill"\n'
        super().setUp()

    def publish(self, groups):
        import numpy as np
        rng = np.random.default_rng(5)
        arrays = {f"g{i}": rng.integers(0, 256, 3 * MIB, dtype=np.uint8)
                  for i in range(groups)}
        session = self.connect()
        for name, array in arrays.items():
            session.publish("mine", name, {"w": array})
        session.close()
        return arrays

    def check(self, arrays):
        session = self.connect()
        model = session.model("mine")
        self.assertEqual([g.name for g in model], list(arrays))
        for group in model:
            with session.stage(group, deadline=20) as lease:
                self.assertEqual(bytes_of(lease["w"]),
                                 arrays[group.name].tobytes(), group.name)
        session.close()

    def restart(self):
        self.assertEqual(self.daemon.stop(), 0)
        self.start()

    def evict_to_disk(self):
        subprocess.run(
            [HOISTCTL, "--socket", f"{self.daemon.path}/hoistd.grpc.sock",
             "evict", "mine"], check=True, capture_output=True)
        # Spills are under way; the pool empties when they are done.
        until(lambda: self.number(self.tier("HOST"), "used_bytes") == 0)

    def until_noted(self, groups):
        """The disk has that there are so many: it is told behind publish."""
        folder = pathlib.Path(self.spill.name) / "spill" / "models"

        def noted():
            for file in folder.glob("*"):
                if file.suffix == ".new":  # Not yet what the model has.
                    continue
                with contextlib.suppress(FileNotFoundError):
                    record = file.read_bytes()
                    if record.endswith(b"mine"):
                        return int.from_bytes(record[16:20], "little")
            return 0

        until(lambda: noted() >= groups)

    def test_more_than_the_host_holds_spills_and_comes_back(self):
        self.check(self.publish(groups=8))  # 24 MiB; the pool has 16.

    def test_spilled_groups_survive_a_restart(self):
        arrays = self.publish(groups=3)
        self.evict_to_disk()
        self.restart()
        self.check(arrays)

    def test_a_model_that_comes_back_in_part_says_so(self):
        self.extra += 'spill_capacity = "8MiB"\n'
        self.connect().close()
        self.restart()
        arrays = self.publish(groups=4)
        until(lambda: self.number(self.tier("HOST"),
                                  "unsaved_bytes") <= 6 * MIB)
        self.until_noted(4)
        self.daemon.kill()
        for _ in range(2):  # It is said until the model is whole.
            self.daemon.start()
            self.connect().close()
            note, = self.status()["notes"]
            self.assertIn("mine", note)
            self.assertIn("without 2 of its 4 groups", note)
            self.daemon.kill()
        self.daemon.start()
        session = self.connect()
        with self.assertRaisesRegex(hoist.DataLoss, "2 of its 4 groups"):
            session.model("mine")
        for number, (name, array) in enumerate(arrays.items()):
            model = session.publish("mine", name, {"w": array})
            self.assertEqual(model[name].name, name)
            if number == 0:  # One of the others is lost in any case.
                with self.assertRaisesRegex(hoist.DataLoss, "of its 4 groups"):
                    len(model)
        self.assertEqual([group.name for group in model.groups], list(arrays))
        self.assertNotIn("", model)
        session.close()
        self.check(arrays)

    def test_a_model_that_is_gone_says_so_once(self):
        self.extra += 'spill_capacity = "1MiB"\n'
        self.connect().close()
        self.restart()
        self.publish(groups=2)
        self.until_noted(2)
        self.daemon.kill()
        self.daemon.start()
        self.connect().close()
        note, = self.status()["notes"]
        self.assertIn("gone with all of its 2 groups", note)
        self.restart()
        self.connect().close()
        self.assertEqual(self.status()["notes"], [])

    def test_a_flipped_bit_is_data_loss_and_the_rest_goes_on(self):
        arrays = self.publish(groups=2)
        self.evict_to_disk()
        self.restart()
        segments = sorted(
            (p for p in pathlib.Path(self.spill.name).rglob("*")
             if p.is_file() and p.stat().st_size > 3 * MIB),
            key=lambda p: p.stat().st_mtime_ns)
        self.assertEqual(len(segments), 2)
        with open(segments[0], "r+b") as file:
            file.seek(2 * MIB)
            byte = file.read(1)[0]
            file.seek(2 * MIB)
            file.write(bytes([byte ^ 1]))
        session = self.connect()
        model = session.model("mine")
        outcomes = []
        for group in model:
            try:
                with session.stage(group, deadline=20) as lease:
                    self.assertEqual(bytes_of(lease["w"]),
                                     arrays[group.name].tobytes())
                    outcomes.append("equal")
            except hoist.DataLoss:
                outcomes.append("lost")
        self.assertEqual(sorted(outcomes), ["equal", "lost"])


def load_tests(loader, _tests, _pattern):
    """Spill inherits the harness, not BadInput's own tests."""
    suite = loader.loadTestsFromTestCase(BadInput)
    inherited = set(loader.getTestCaseNames(BadInput))
    for name in loader.getTestCaseNames(Spill):
        if name not in inherited:
            suite.addTest(Spill(name))
    return suite


if __name__ == "__main__":
    unittest.main()
