"""The example workers on the real model: equal to resident weights, and to
each other.

embed_test.py HOISTD EMBED_WORKER MODEL_FOLDER
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))
from real_daemon import MIB, RealDaemon  # noqa: E402

HOISTD, WORKER, MODEL = sys.argv[1:4]
del sys.argv[1:4]
EXAMPLES = pathlib.Path(__file__).parents[3] / "client" / "examples"


@unittest.skipUnless(os.path.exists(os.path.join(MODEL, "model.safetensors")),
                     f"the model is not at {MODEL}; scripts/setup.sh gets it")
class Embed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Smaller than the model's 87 MiB, too.
        cls.daemon = RealDaemon(HOISTD, pool=64 * MIB, slab=16 * MIB,
                                host=128 * MIB)

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0

    def run_worker(self, *command):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, check=False)
        self.assertEqual(done.returncode, 0,
                         done.stdout + self.daemon.log_text())
        return done.stdout

    def test_python_and_cpp_workers_agree(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        with tempfile.TemporaryDirectory() as folder:
            mine = os.path.join(folder, "py.json")
            said = self.run_worker(
                sys.executable, str(EXAMPLES / "embed.py"), MODEL,
                "--socket", self.daemon.socket, "--out", mine)
            self.assertIn("ok    equal to resident weights", said)
            its = os.path.join(folder, "cc.txt")
            said = self.run_worker(WORKER, MODEL, "--socket",
                                   self.daemon.socket, "--out", its)
            self.assertIn("ok    equal to resident weights", said)
            ours = np.array(json.loads(
                pathlib.Path(mine).read_text())["embeddings"])
            theirs = np.loadtxt(its)
            self.assertEqual(ours.shape, theirs.shape)
            self.assertLess(abs(ours - theirs).max(), 1e-5)

    def test_every_byte_on_the_device_is_the_files(self):
        said = self.run_worker(
            sys.executable, str(EXAMPLES / "verify.py"), MODEL, "--socket",
            self.daemon.socket, "--groups", "module", "--name", "verified")
        self.assertIn("all bytes equal", said)


if __name__ == "__main__":
    unittest.main()
