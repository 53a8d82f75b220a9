"""What libhoist.so shows to the process that loads it.

library_test.py LIBHOIST [unittest options]
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

LIBRARY = os.path.realpath(sys.argv.pop(1))
MIB = 1 << 20
ALLOWED = {"libc.so.6", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1",
           "ld-linux-x86-64.so.2"}


def output(*command):
    return subprocess.run(command, check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def sanitized():
    return re.search(r"lib(a|t|ub)san", output("readelf", "-d", LIBRARY))


class Libhoist(unittest.TestCase):
    def test_exports_hoist_symbols_alone(self):
        names = [line.split()[-1].split("@")[0] for line in
                 output("nm", "-D", "--defined-only", LIBRARY).splitlines()]
        self.assertIn("hoist_connect", names)
        others = [name for name in names
                  if not re.match(r"hoist_[a-z_]+$|HOIST_0$", name)]
        self.assertEqual(others, [])

    def test_exports_all_that_the_header_declares(self):
        headers = pathlib.Path(__file__).parents[3] / "client/include/hoist/c"
        text = "".join(file.read_text() for file in headers.glob("*.h"))
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        declared = set(re.findall(r"HOIST_API[^;]*?\b(hoist_\w+)\(", text))
        exported = {line.split()[-1].split("@")[0] for line in
                    output("nm", "-D", "--defined-only", LIBRARY).splitlines()}
        self.assertGreater(len(declared), 30)
        self.assertEqual(declared, exported - {"HOIST_0"})

    def test_needs_libc_and_libstdcxx_alone(self):
        if sanitized():
            self.skipTest("a sanitizer's library comes on top")
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]",
                                output("readelf", "-d", LIBRARY)))
        self.assertIn("libc.so.6", needed)
        self.assertLessEqual(needed, ALLOWED)

    def test_is_below_one_mib_stripped(self):
        if sanitized():
            self.skipTest("instrumented code is larger")
        with tempfile.TemporaryDirectory() as folder:
            stripped = os.path.join(folder, "lib.so")
            subprocess.run(["strip", "-o", stripped, LIBRARY], check=True)
            self.assertLess(os.path.getsize(stripped), MIB)

    def test_stays_loaded(self):
        # Its threads and fork handlers must not lose their code.
        self.assertIn("NODELETE", output("readelf", "-d", LIBRARY))

    def load_beside(self, modules):
        found = subprocess.run(
            [sys.executable, "-c",
             "import importlib.util as u, sys; sys.exit(not all("
             "u.find_spec(m) for m in sys.argv[1:]))", *modules], check=False)
        if found.returncode:
            self.skipTest(f"{' and '.join(modules)} not installed")
        if sanitized():
            self.skipTest("Python does not load a sanitizer's runtime first")
        for order in (["lib", *modules], [*modules, "lib"]):
            code = "import ctypes\n" + "".join(
                f"lib = ctypes.CDLL({LIBRARY!r})\n" if name == "lib" else
                f"import {name}\n" for name in order) + (
                "lib.hoist_version.restype = ctypes.c_char_p\n"
                "assert lib.hoist_version()\n"
                "assert lib.hoist_connect(None, None, None) == 3\n")
            subprocess.run([sys.executable, "-c", code], check=True)

    def test_loads_beside_grpc_and_protobuf(self):
        self.load_beside(["grpc", "google.protobuf.message"])

    def test_loads_beside_torch(self):
        self.load_beside(["torch"])

    def test_loads_beside_numpy(self):
        self.load_beside(["numpy"])


if __name__ == "__main__":
    unittest.main()
