"""The wheel holds the whole package, and works from a fresh environment.

wheel_test.py LIBHOIST HOISTD; what needs torch is skipped where there is none.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from real_daemon import MIB, RealDaemon  # noqa: E402

LIBHOIST, HOISTD = sys.argv[1:3]
del sys.argv[1:3]
FAST = pathlib.Path(LIBHOIST).parent / "_fast.abi3.so"
PYTHON = ROOT / "client/python"

WITHOUT_TORCH = """
import sys
from importlib.metadata import version
import hoist
assert not {"torch", "numpy"} & set(sys.modules), "imported by itself"
assert {"attach", "load", "compat", "nn"} <= set(dir(hoist))
assert hoist.__version__ == version("hoist-client"), hoist.__version__
assert "__version__" in dir(hoist)
with hoist.connect(connect_deadline=10) as session:
    print(hoist.__file__, hoist.library_path(), session.devices[0].kind)
"""

ATTACH = """
import sys
sys.modules["numpy"] = None  # Which torch does without.
import hoist
import torch
from hoist import _hot
from hoist.compat import remove_hook_from_submodules
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
x = torch.randn(4, 256)
with torch.no_grad():
    expected = model(x)
    hoist.attach(model, budget=0.5)
    assert (_hot.fast() is not None) == with_fast
    assert all(torch.equal(model(x), expected) for _ in range(3))
    assert hoist.stats(model).streamed_bytes > 0
    remove_hook_from_submodules(model)
    assert torch.equal(model(x), expected)
print("equal")
"""


def build(folder):
    said = subprocess.run(
        [sys.executable, "-B", str(PYTHON / "build_wheel.py"), LIBHOIST,
         str(folder)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return pathlib.Path(said.strip())


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)
        cls.wheel = build(cls.path / "first")

    def test_it_holds_every_module_and_libhoist(self):
        held = {name for name in zipfile.ZipFile(self.wheel).namelist()
                if not name.startswith("hoist_client-")}
        source = {str(path.relative_to(PYTHON))
                  for path in (PYTHON / "hoist").rglob("*")
                  if path.suffix == ".py"}
        self.assertLessEqual({"hoist/nn/_api/attach.py", "hoist/checkpoint/__init__.py",
                              "hoist/compat/__init__.py"},
                             source)
        fast = {"hoist/_fast.abi3.so"} if FAST.exists() else set()
        self.assertEqual(held, source | fast | {"hoist/py.typed",
                                                "hoist/libhoist.so.0"})

    def test_the_same_input_gives_the_same_wheel(self):
        again = build(self.path / "again")
        self.assertEqual(self.wheel.name, again.name)
        self.assertEqual(self.wheel.read_bytes(), again.read_bytes())

    def test_it_works_from_a_fresh_environment(self):
        python = self.environment()
        daemon = RealDaemon(HOISTD)
        self.addCleanup(lambda: self.assertEqual(daemon.stop(), 0))
        said = self.run_in(python, WITHOUT_TORCH, daemon)
        module, library, kind = said.split()
        for path in (module, library):
            self.assertIn(str(self.path.resolve()),
                          str(pathlib.Path(path).resolve()))
        self.assertEqual(kind, "emulated")
        torch = importlib.util.find_spec("torch")
        if torch is None:
            self.skipTest(f"{sys.executable} has no torch to attach with")
        # Torch as it is installed here; hoist is the environment's own.
        site = pathlib.Path(torch.origin).parents[1]
        found = next((python.parents[1] / "lib").glob("python3*"))
        (found / "site-packages" / "torch.pth").write_text(f"{site}\n")
        self.assertEqual(self.run_in(
            python, f"with_fast = {FAST.exists()}{ATTACH}", daemon), "equal\n")

    def environment(self):
        """With the wheel in it, and nothing else; its Python."""
        folder = self.path / "environment"
        try:
            subprocess.run([sys.executable, "-m", "venv", str(folder)],
                           check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            self.skipTest(f"no virtual environments here: {error.stdout}")
        python = folder / "bin" / "python"
        subprocess.run(
            [str(python), "-m", "pip", "install", "-q", "--no-index",
             "--disable-pip-version-check", str(self.wheel)], check=True)
        return python

    def run_in(self, python, script, daemon):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("HOIST_", "PYTHON"))}
        done = subprocess.run(
            [str(python), "-c", script], check=False, cwd=self.path,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**kept, "HOIST_SOCKET": daemon.socket, "PYTHONWARNINGS":
                 "ignore"})
        self.assertEqual(done.returncode, 0,
                         done.stdout + daemon.log_text())
        return done.stdout


if __name__ == "__main__":
    unittest.main()
