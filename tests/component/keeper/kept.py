"""What the suites of hoist-keeper share.

NAME_test.py HOIST-KEEPER HOISTD [unittest options]; needs HOIST_LIBRARY,
PYTHONPATH and NumPy. HOIST_TEST_BACKEND=cuda: on a GPU, with PyTorch.
HOIST_KEEPER_TEST_LOG: each test prints hoistd's log.
"""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

KEEPER = sys.argv.pop(1)
HOISTD = sys.argv.pop(1)
BACKEND = os.environ.get("HOIST_TEST_BACKEND", "emulated")
needs_numpy = unittest.skipIf(np is None, "needs NumPy")


def bytes_of(group):
    return np.random.default_rng(group).integers(
        0, 256, MIB + group, dtype=np.uint8)


def array_of(tensor):
    return tensor.torch().cpu().numpy() if BACKEND == "cuda" else tensor.numpy()


def stop(daemon):
    if os.environ.get("HOIST_KEEPER_TEST_LOG"):
        print(daemon.log_text())
    daemon.stop()


class Kept(unittest.TestCase):
    """Has a hoistd."""

    def begin(self, **options):
        self.daemon = RealDaemon(HOISTD, backend=BACKEND, **options)
        self.addCleanup(stop, self.daemon)

    def connect(self):
        return hoist.connect(self.daemon.socket, connect_deadline=60)

    def write_model(self, groups):
        """A file of them, "layers.0" and so on."""
        path = self.daemon.path / "model.safetensors"
        write_safetensors(path, {
            f"layers.{group}.w": ("U8", [len(bytes_of(group))],
                                  bytes_of(group).tobytes())
            for group in range(groups)})
        return path

    def check(self, group, tensor):
        np.testing.assert_array_equal(array_of(tensor), bytes_of(group))
