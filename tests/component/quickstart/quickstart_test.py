"""What a newcomer runs first: quickstart.sh and the packaged examples, by a
Python that has NumPy and no torch; and every script's --help.

quickstart_test.py HOISTD HOISTCTL EMBED_WORKER LIBHOIST [unittest options]

Exits with 77, and says why, where it cannot run.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/support"))
from real_daemon import MIB, RealDaemon  # noqa: E402

HOISTD, HOISTCTL, EMBED_WORKER, LIBHOIST = map(pathlib.Path, sys.argv[1:5])
del sys.argv[1:5]
MODEL = ROOT / "build/models/minilm"
SCRIPTS = ROOT / "scripts"
LIBRARIES = re.compile(r"\.lib\.sh$")  # Are sourced, and take no options.


def what_lacks():
    if importlib.util.find_spec("numpy") is None:
        return f"{sys.executable} has no numpy; scripts/setup.sh gets it"
    if not (MODEL / "model.safetensors").exists():
        return f"the model is not at {MODEL}; scripts/setup.sh gets it"
    return ""


def environment_with_numpy(folder):
    """A virtual environment that sees NumPy, and nothing else. No network."""
    venv.create(folder, with_pip=False)
    (packages,) = pathlib.Path(folder).glob("lib/python*/site-packages")
    numpy = pathlib.Path(importlib.util.find_spec("numpy").origin).parent
    for found in (numpy, numpy.with_name("numpy.libs")):
        if found.exists():
            (packages / found.name).symlink_to(found)
    return pathlib.Path(folder) / "bin"


class Newcomer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-newcomer-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.python = environment_with_numpy(self.path / "venv")
        # The system's python3 may have torch.
        self.environment = {
            name: value for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "HOIST_BUILD_DIR", "HOIST_SOCKET")}
        self.environment.update(
            PATH=f"{self.python}:{os.environ['PATH']}",
            HOIST_VENV=str(self.path / "venv"), PYTHONDONTWRITEBYTECODE="1")

    def run_it(self, *command, status=0, **environment):
        """Its stdout and stderr."""
        done = subprocess.run(
            [str(word) for word in command], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, cwd=self.path,
            env={**self.environment, **environment})
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, status, f"{command}\n{said}")
        self.assertNotIn("Traceback", said)
        return done.stdout, done.stderr

    def programs(self):
        folder = self.path / "bin"
        folder.mkdir()
        for program in (HOISTD, HOISTCTL, EMBED_WORKER):
            (folder / program.name).symlink_to(program)
        return str(folder)

    def packaged(self):
        """The Python parts of what scripts/package.sh makes."""
        tree = self.path / "unpacked"
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "client/python/hoist", tree / "python/hoist",
                        ignore=without)
        shutil.copy(LIBHOIST, tree / "python/hoist/libhoist.so.0")
        shutil.copytree(ROOT / "client/examples", tree / "share/hoist/examples",
                        ignore=without)
        return tree / "share/hoist/examples"

    def test_quickstart_without_torch(self):
        said, errors = self.run_it(
            SCRIPTS / "quickstart.sh", HOIST_BIN=self.programs(),
            HOIST_LIBRARY=str(LIBHOIST))
        self.assertEqual(errors, "")
        for run in ("first", "second"):
            worker = said.split(f"== Python worker, {run} run\n")[1]
            worker = worker.split("\n== ")[0]
            self.assertIn("NumpyOps", worker)
            self.assertEqual(worker.count("\nok    "), 3, worker)
            self.assertIn("hoistd read 0 bytes from files", worker)
        self.assertIn("PyTorch worker: torch is not installed; to see it, run "
                      "scripts/setup.sh --with-torch", said)
        self.assertIn("the device is emulated", said)
        self.assertEqual(said.count("== C++ worker"), 2, said)
        # What looks like trouble, and is none.
        self.assertIn("2 stages were refused on purpose", said)
        self.assertIn(", stages refused 2", said)
        self.assertNotIn("[warning]", said)
        self.assertNotIn("FAIL", said)

    def test_quickstart_verifies_a_model_named_from_here(self):
        (self.path / "mine").mkdir()
        shutil.copy(MODEL / "model.safetensors", self.path / "mine")
        said, _ = self.run_it(
            SCRIPTS / "quickstart.sh", "mine", HOIST_BIN=self.programs(),
            HOIST_LIBRARY=str(LIBHOIST))
        self.assertEqual(said.count("all bytes equal"), 2, said)
        _, errors = self.run_it(SCRIPTS / "quickstart.sh", "nowhere", status=2)
        self.assertIn("nowhere", errors)

    def test_packaged_examples_find_the_packages_hoist(self):
        examples = self.packaged()
        daemon = RealDaemon(HOISTD, pool=64 * MIB, slab=64 * MIB,
                            host=128 * MIB)
        self.addCleanup(lambda: self.assertEqual(daemon.stop(), 0))
        said, _ = self.run_it("python3", examples / "embed.py", MODEL,
                              "--socket", daemon.socket)
        self.assertIn("ok    equal to resident weights, bit for bit", said)
        said, _ = self.run_it("python3", examples / "verify.py", MODEL,
                              "--socket", daemon.socket, "--quiet")
        self.assertIn("all bytes equal", said)
        # A folder of that name, as one's own sources may have, is no torch.
        (examples / "torch").mkdir()
        said, _ = self.run_it("python3", examples / "embed.py", MODEL,
                              "--socket", daemon.socket)
        self.assertIn("NumpyOps", said)
        for example in ("torch_worker.py", "stream.py", "turns.py",
                        "vllm_turns.py"):
            _, errors = self.run_it("python3", examples / example, MODEL,
                                    status=1)
            self.assertIn(f"{example} needs torch", errors)

    def test_no_example_hides_a_library(self):
        """Python looks beside the script before it looks anywhere else."""
        for path in (ROOT / "client/examples").iterdir():
            self.assertNotIn(path.stem, (
                "torch", "transformers", "numpy", "grpc", "google", "hoist"))

    def test_every_script_tells_its_usage(self):
        scripts = [path for path in sorted(SCRIPTS.iterdir())
                   if path.suffix in (".sh", ".py")
                   and not LIBRARIES.search(path.name)]
        self.assertGreater(len(scripts), 6)
        for path in scripts:
            with self.subTest(path.name):
                program = ["python3"] if path.suffix == ".py" else ["bash"]
                for option in ("-h", "--help"):
                    said, _ = self.run_it(*program, path, option)
                    self.assertIn(path.name, said)
                if path.name.startswith("bench_"):
                    continue  # These know their options where torch is.
                said, errors = self.run_it(*program, path, "--no-such-option",
                                           status=2)
                self.assertEqual(said, "")
                self.assertIn("--help", errors)
                self.assertEqual(errors.count("\n"), 1, errors)


if __name__ == "__main__":
    if what_lacks():
        print(f"skipped: {what_lacks()}")
        sys.exit(77)
    unittest.main()
