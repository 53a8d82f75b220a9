"""`pip install ./client/python` from a checkout, and `./python` from an unpacked
package: carry libhoist, need no network, and are what Python imports then.

pip_test.py LIBHOIST HOISTD
"""

import collections
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from real_daemon import RealDaemon  # noqa: E402

LIBHOIST, HOISTD = sys.argv[1:3]
del sys.argv[1:3]
LIBRARY_NAME = "libhoist.so.0"
# Folders that hold something called hoist, which must not be what is imported.
BESIDE = ("client/examples", "client/include", "proto", "shared/include")

WHERE = "import hoist; print(hoist.__file__, hoist.library_path())"
CONNECT = """
import hoist
with hoist.connect(connect_deadline=10) as session:
    print(session.devices[0].kind)
"""


class Pip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name).resolve()
        try:
            subprocess.run(
                [sys.executable, "-m", "venv", str(cls.path / "venv")],
                check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(
                f"no virtual environments here: {error.stdout}") from None

    def setUp(self):
        self.work = self.path / self.id().rpartition(".")[2]
        self.addCleanup(self.run_in, self.path, "pip", "uninstall", "-q",
                        "-y", "hoist-client")

    def checkout(self, built=True):
        """What of this checkout has to do with it."""
        for name in ("client/python", *BESIDE):
            shutil.copytree(ROOT / name, self.work / name,
                            ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "CMakePresets.json", self.work)
        if built:
            self.put_library("build/dev/client")
        return self.work

    def files(self, folder):
        return sorted(path for path in folder.rglob("*")
                      if "__pycache__" not in path.parts)

    def put_library(self, name):
        folder = self.work / name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(LIBHOIST, folder / LIBRARY_NAME)
        return folder

    def run_in(self, folder, program, *arguments, **more):
        """Without a network, as from a shell in that folder."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("HOIST_", "PYTHON", "PIP_"))}
        return subprocess.run(
            [str(self.path / "venv/bin" / program), *arguments], cwd=folder,
            check=False, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**kept, "PIP_NO_INDEX": "1", "PWD": str(folder),
                 "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more})

    def python(self, folder, *arguments, **more):
        done = self.run_in(folder, "python", "-B", *arguments, **more)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def install(self, folder, what, **more):
        done = self.run_in(folder, "pip", "install", what, **more)
        self.assertEqual(done.returncode, 0, done.stdout)

    def assert_installed(self, said):
        for path in said.split():
            self.assertTrue(path.startswith(str(self.path / "venv")), said)

    def test_what_is_installed_is_imported_wherever_python_runs(self):
        checkout = self.checkout()
        before = self.files(checkout)
        self.install(checkout, "./client/python")
        self.assertEqual(self.files(checkout), before)
        for name in (".", "client", *BESIDE):
            folder = checkout / name
            self.assert_installed(self.python(folder, "-c", WHERE))
            script = folder / "a_script.py"
            script.write_text(WHERE)
            self.assert_installed(self.python(checkout, str(script)))
        daemon = RealDaemon(HOISTD)
        self.addCleanup(lambda: self.assertEqual(daemon.stop(), 0))
        self.assertEqual(self.python(checkout, "-c", CONNECT,
                                     HOIST_SOCKET=daemon.socket),
                         "emulated\n")

    def test_it_is_named_and_needs_what_the_project_file_says(self):
        self.install(self.checkout(), "./client/python")
        site = next((self.path / "venv/lib").glob("python3*/site-packages"))
        found, = (one for one in importlib.metadata.distributions(
            path=[str(site)]) if one.metadata["Name"].startswith("hoist"))
        project = (ROOT / "client/python/pyproject.toml").read_text()
        self.assertEqual(found.metadata["Name"], "hoist-client")
        self.assertIn(f"project(hoist VERSION {found.version} ",
                      (ROOT / "CMakeLists.txt").read_text())
        for name in ("name", "requires-python"):
            self.assertIn(f'\n{name} = "{found.metadata[name]}"\n', project)
        extras = collections.defaultdict(list)
        for one in found.requires:
            need, extra = re.fullmatch(r"(.*); extra == '(\w+)'", one).groups()
            extras[extra].append(need)
        self.assertEqual(set(extras), {"numpy", "ray", "torch"})
        for extra, needs in extras.items():
            named = ", ".join(f'"{need}"' for need in needs)
            self.assertIn(f"\n{extra} = [{named}]\n", project)

    def test_without_a_built_library_one_sentence_says_what_to_run(self):
        checkout = self.checkout(built=False)
        done = self.run_in(checkout, "pip", "install", "./client/python")
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("Traceback", done.stdout)
        said, = (line for line in done.stdout.splitlines()
                 if "carries libhoist" in line)
        self.assertIn("[1 lines of output]", done.stdout)
        command, where = re.search(r'run "(.*)" in (\S+) ', said).groups()
        self.assertEqual(where, str(checkout))
        preset, target = re.fullmatch(
            r"cmake --preset (\w+) && cmake --build --preset \1 "
            r"--target (\w+)", command).groups()
        self.assertIn(f'"name": "{preset}"',
                      (ROOT / "CMakePresets.json").read_text())
        self.assertIn(f"add_library({target} SHARED",
                      (ROOT / "client/CMakeLists.txt").read_text())
        self.assertIn("scripts/quickstart.sh", said)
        self.assertTrue((ROOT / "scripts/quickstart.sh").exists())

    def test_the_environment_names_the_library_from_the_callers_folder(self):
        checkout = self.checkout(built=False)
        self.put_library("elsewhere/client")
        for name, value in (("HOIST_BUILD_DIR", "elsewhere"),
                            ("HOIST_LIBRARY",
                             f"elsewhere/client/{LIBRARY_NAME}")):
            self.install(checkout, "./client/python", **{name: value})
            self.assert_installed(self.python(checkout, "-c", WHERE))
            self.run_in(checkout, "pip", "uninstall", "-q", "-y",
                        "hoist-client")

    def test_a_build_with_a_sanitizer_is_taken_last(self):
        checkout = self.checkout()
        newer = self.put_library("build/asan/client") / LIBRARY_NAME
        os.utime(newer, (2**32, 2**32))
        package = checkout / "client/python"
        self.assertIn(str(checkout / "build/dev/client"),
                      self.python(package, "-c", WHERE))

    def test_an_unpacked_package_installs(self):
        """As scripts/package.sh leaves it."""
        shutil.copytree(ROOT / "client/python", self.work / "python",
                        ignore=shutil.ignore_patterns("__pycache__", "tests"))
        self.put_library("lib")
        self.install(self.work, "./python")
        self.assert_installed(self.python(self.work, "-c", WHERE))

    def test_a_checkout_that_is_not_built_says_where_it_looked(self):
        package = self.checkout(built=False) / "client/python"
        done = self.run_in(package, "python", "-B", "-c",
                           "import hoist; hoist.connect()")
        self.assertNotEqual(done.returncode, 0)
        said = done.stdout.splitlines()[-1]
        for part in ("ImportError: no libhoist", str(package / "hoist"),
                     f"{self.work}/build/*/client", "HOIST_LIBRARY",
                     "--target hoist_client", "another folder"):
            self.assertIn(part, said)


if __name__ == "__main__":
    unittest.main()
