"""The PyTorch example on the real model: equal to weights that torch holds, to
the same written by hand, and nothing is read again for the next worker.

torch_worker_test.py HOISTD MODEL_FOLDER; skipped where there is no PyTorch.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))
from real_daemon import MIB, RealDaemon  # noqa: E402

HOISTD, MODEL = sys.argv[1:3]
del sys.argv[1:3]
EXAMPLE = (pathlib.Path(__file__).parents[3] / "client" / "examples"
           / "torch_worker.py")


def what_lacks():
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is None:
            return f"{sys.executable} has no {name}"
    if not os.path.exists(os.path.join(MODEL, "model.safetensors")):
        return f"the model is not at {MODEL}; scripts/setup.sh gets it"
    return ""


@unittest.skipIf(what_lacks(), what_lacks())
class TorchWorker(unittest.TestCase):
    def setUp(self):
        # Smaller than the model's 87 MiB.
        self.daemon = RealDaemon(HOISTD, pool=64 * MIB, slab=16 * MIB,
                                 host=128 * MIB)
        self.addCleanup(lambda: self.assertEqual(self.daemon.stop(), 0))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_worker(self, *options):
        """What it said, and the embeddings."""
        out = os.path.join(self.folder, "out.json")
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), MODEL, "--socket",
             self.daemon.socket, "--out", out, *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(done.returncode, 0,
                         done.stdout + self.daemon.log_text())
        self.assertEqual(done.stdout.count("\nok    "), 4, done.stdout)
        self.assertNotIn("FAIL", done.stdout)
        return done.stdout, json.loads(pathlib.Path(out).read_text())

    def test_the_second_worker_reads_nothing(self):
        said, first = self.run_worker("--by-hand")
        self.assertEqual(first["module"], "minilm")
        read = self.daemon.counters()["file_read_bytes"]
        self.assertGreater(read, 80 * MIB)
        grown = float(re.search(r"grew by (-?[0-9.]+) MiB", said)[1])
        version = importlib.metadata.version("torch").split(".")
        # Older ones import torch._dynamo.
        most = 50 if [int(one) for one in version[:2]] >= [2, 7] else 80
        self.assertLess(grown, most, "its own memory, of a model of 87 MiB")
        _, second = self.run_worker("--by-hand")
        self.assertEqual(first, second)
        self.assertEqual(self.daemon.counters()["file_read_bytes"], read)

    @unittest.skipIf(importlib.util.find_spec("transformers") is None,
                     "transformers is not installed")
    def test_transformers_model_and_the_one_by_hand_agree(self):
        _, by_hand = self.run_worker("--by-hand")
        _, theirs = self.run_worker()
        self.assertIn("transformers", theirs["module"])
        for ours, other in zip(by_hand["embeddings"], theirs["embeddings"],
                               strict=True):
            for one, another in zip(ours, other, strict=True):
                self.assertAlmostEqual(one, another, delta=1e-5)

    def test_a_budget_that_is_too_small_is_refused_with_what_would_do(self):
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), MODEL, "--by-hand", "--socket",
             self.daemon.socket, "--budget", "8"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ResourceExhausted", done.stdout)


if __name__ == "__main__":
    unittest.main()
