"""A worker without libhoist, against a real hoistd: gRPC in plain Python.

grpc_worker_test.py HOISTD GRPC_WORKER [unittest's arguments]
"""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))
from real_daemon import MIB, RealDaemon, until, write_safetensors  # noqa: E402

HOISTD, WORKER = sys.argv[1], sys.argv[2]


class GrpcWorker(unittest.TestCase):
    def setUp(self):
        for module in ("grpc", "google.protobuf", "numpy"):
            try:
                found = importlib.util.find_spec(module)
            except ModuleNotFoundError:
                found = None
            if found is None:
                self.skipTest(f"{module} is not installed: scripts/setup.sh "
                              "--for-tests")

    def run_worker(self, pool):
        self.daemon = RealDaemon(HOISTD, pool=pool, extra='[models]\n'
                                 'roots = ["/tmp", "/var/tmp"]')
        self.addCleanup(self.daemon.stop)
        model = self.daemon.path / "model.safetensors"
        write_safetensors(str(model), {
            f"layers.{i}.weight": ("U8", [MIB + i], os.urandom(MIB + i))
            for i in range(6)})
        socket = self.daemon.grpc_socket
        self.daemon.until_served()
        return subprocess.run(
            [sys.executable, WORKER, socket, "m", "--path", str(model),
             "--compare", str(model)], capture_output=True, text=True,
            timeout=120)

    def test_every_group_is_staged_and_equal(self):
        done = self.run_worker(pool=8 * MIB)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("6 groups staged over gRPC", done.stdout)
        self.assertIn("6 tensors compared, 0 wrong", done.stdout)

    def test_a_lease_ends_with_its_stream(self):
        # Six groups of more than 1 MiB take turns in a pool of 4 MiB: had a
        # lease outlived its stream, the third could not be staged.
        done = self.run_worker(pool=4 * MIB)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertIn("6 tensors compared, 0 wrong", done.stdout)

    def test_one_that_waits_cannot_be_asked_to_end_but_its_process_can(self):
        self.daemon = RealDaemon(HOISTD, pool=4 * MIB, slab=2 * MIB,
                                 extra='[models]\nroots = ["/tmp"]')
        self.addCleanup(self.daemon.stop)
        self.daemon.until_served()
        for name, size in (("full", 4 * MIB), ("m", 3 * MIB)):
            write_safetensors(str(self.daemon.path / f"{name}.safetensors"), {
                "w": ("U8", [size], os.urandom(size))})
        self.daemon.ctl("load", str(self.daemon.path / "full.safetensors"))
        self.daemon.ctl("pin", "full", "--tier", "device")
        worker = subprocess.Popen(
            [sys.executable, WORKER, self.daemon.grpc_socket, "m", "--path",
             str(self.daemon.path / "m.safetensors")],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)

        def waiting():
            return next((one["id"] for one in json.loads(
                self.daemon.ctl("--json", "sessions"))["sessions"]
                if one["waiting"]), None)

        number = until(waiting)
        with self.assertRaises(subprocess.CalledProcessError) as refused:
            self.daemon.ctl("end", number)
        self.assertIn("cannot be asked to let go", refused.exception.stderr)
        self.assertIn("ended session " + number,
                      self.daemon.ctl("end", number, "--kill"))
        self.assertEqual(worker.wait(), -signal.SIGKILL)
        self.assertIsNone(waiting())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
