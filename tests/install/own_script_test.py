"""README's "Your own script", literally, as a user without rights.

own_script_test.py HOISTD HOISTCTL LIBHOIST. It runs in a copy of what the
checkout has after scripts/quickstart.sh, and is skipped where pip reaches no
index to take NumPy from.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOISTD, HOISTCTL, LIBHOIST = map(pathlib.Path, sys.argv[1:4])
del sys.argv[1:4]
SOMEBODY = 54321
# The system's: every user can run it.
PYTHON = "/usr/bin/python3"


def blocks():
    """The shell's and Python's blocks of the section."""
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Your own script\n")[1].split("\n## ")[0]
    return [re.search(rf"```{language}\n(.*?)```", section, re.S)[1]
            for language in ("sh", "python")]


class OwnScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-own-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.checkout = self.path / "hoist"
        shutil.copytree(ROOT / "client/python", self.checkout / "client/python",
                        ignore=shutil.ignore_patterns("__pycache__", "tests"))
        shutil.copy(ROOT / "LICENSE", self.checkout)
        programs = self.checkout / "build/bin"
        programs.mkdir(parents=True)
        for program in (HOISTD, HOISTCTL):
            shutil.copy(program, programs)
        library = self.checkout / "build/release/client/libhoist.so.0"
        library.parent.mkdir(parents=True)
        shutil.copy(LIBHOIST, library)
        self.wheels = self.path / "wheels"

    def fetch_numpy(self):
        done = subprocess.run(
            [PYTHON, "-m", "venv", str(self.path / "fetch")], check=False,
            capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"no virtual environments here: {done.stdout}")
        done = subprocess.run(
            [self.path / "fetch/bin/pip", "download", "-q", "--no-deps",
             "--only-binary", ":all:", "-d", str(self.wheels), "numpy"],
            check=False, capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"pip reaches no index: {done.stderr[-200:]}")

    def test_its_commands_run_as_they_stand(self):
        self.fetch_numpy()
        shell, script = blocks()
        (self.checkout / "my_worker.py").write_text(script)
        who = {}
        if os.getuid() == 0:
            for path in [self.path, *self.path.rglob("*")]:
                os.chown(path, SOMEBODY, SOMEBODY)
            who = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []}
        runtime = self.path / "run"
        runtime.mkdir(mode=0o700)
        if who:
            os.chown(runtime, SOMEBODY, SOMEBODY)
        # -m: jobs have numbers, as at a prompt.
        done = subprocess.run(
            ["bash", "-m", "-e", "-c", shell], check=False,
            cwd=self.checkout, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=250,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.path),
                 "XDG_RUNTIME_DIR": str(runtime), "PIP_NO_INDEX": "1",
                 "PIP_FIND_LINKS": str(self.wheels),
                 "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, **who)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("4 MiB through hoistd: [", done.stdout)
        self.assertIn("TIER", done.stdout)


if __name__ == "__main__":
    unittest.main()
