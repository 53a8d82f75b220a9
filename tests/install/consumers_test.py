"""Others find libhoist in the Debian packages and in the archive, wherever those
are unpacked: by CMake's find_package, and by pkg-config.

consumers_test.py BUILD CXX
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONSUMER = ROOT / "tests/install/consumer"
BUILD, CXX = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2]
del sys.argv[1:3]


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], check=False,
                          text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}")
    return done.stdout


class Consumers:
    """Of `prefix`, which has its libraries in `lib`."""

    def use(self, program):
        """Runs it: it finds no daemon, and says so."""
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.lib)}
        self.assertIn("UNAVAILABLE", run(program, env=environment))
        needed = {}
        for line in run("ldd", program, env=environment).splitlines():
            name, _, where = line.strip().partition(" => ")
            needed[name] = where
        self.assertIn(str(self.lib), needed["libhoist.so.0"])
        self.assertNotIn(str(self.prefix), needed["libstdc++.so.6"],
                         "this process's own libstdc++ is the one to use")

    def test_by_find_package(self):
        build = self.work / "cmake"
        run("cmake", "-S", CONSUMER, "-B", build, "-G", "Ninja",
            f"-DCMAKE_CXX_COMPILER={CXX}", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.assertIn(f"hoist_DIR:PATH={self.lib}/cmake/hoist",
                      (build / "CMakeCache.txt").read_text())
        run("cmake", "--build", build)
        self.use(build / "consumer")
        self.use(build / "consumer_c")

    def test_by_pkg_config(self):
        environment = {**os.environ, "PKG_CONFIG_LIBDIR":
                       str(self.lib / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "hoist",
                    env=environment).split()
        version = run("pkg-config", "--modversion", "hoist", env=environment)
        self.assertIn(f"project(hoist VERSION {version.strip()} ",
                      (ROOT / "CMakeLists.txt").read_text())
        program = self.work / "consumer"
        run(CXX, "-std=c++17", CONSUMER / "main.cc", "-o", program, *flags)
        self.use(program)

    def test_it_brings_public_headers_alone(self):
        public = {str(path.relative_to(ROOT / "client/include"))
                  for path in (ROOT / "client/include").rglob("*.h")}
        there = {str(path.relative_to(self.prefix / "include"))
                 for path in (self.prefix / "include").rglob("*") if
                 path.is_file()}
        self.assertEqual(there, public)

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name).resolve()
        cls.unpack(cls.work / "made", cls.work / "moved")


class OfTheArchive(Consumers, unittest.TestCase):
    @classmethod
    def unpack(cls, made, moved):
        run(ROOT / "scripts/package.sh", "--from", BUILD, "--dir", made)
        shutil.move(made, moved)
        cls.prefix, cls.lib = moved, moved / "lib"

    def test_libhoist_has_its_folder_for_itself(self):
        self.assertEqual(
            {path.name for path in self.lib.iterdir() if not path.is_dir()},
            {"libhoist.so", "libhoist.so.0",
             (self.lib / "libhoist.so").resolve().name})


class OfThePackages(Consumers, unittest.TestCase):
    @classmethod
    def unpack(cls, made, moved):
        if shutil.which("dpkg-deb") is None:
            raise unittest.SkipTest("no dpkg-deb here")
        run(ROOT / "scripts/package.sh", "--deb", "--from", BUILD, "--dir", made)
        for name in ("libhoist0", "libhoist-dev"):
            package, = made.glob(f"{name}_*.deb")
            run("dpkg-deb", "-x", package, moved)
        cls.prefix = moved / "usr"
        cls.lib = next((moved / "usr/lib").glob("*-linux-gnu"))


if __name__ == "__main__":
    unittest.main()
