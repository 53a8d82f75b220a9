"""The figures of the documents are what plot.py draws of the tree's numbers."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Plots(unittest.TestCase):
    def drawn(self, *files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        subprocess.run([sys.executable, "-B", HERE / "plot.py", *files, "--out",
                        folder.name], check=True, stdout=subprocess.DEVNULL)
        return sorted(pathlib.Path(folder.name).iterdir())

    def check(self, drawn):
        for file in drawn:
            there = HERE / "plots" / file.name
            self.assertEqual(there.read_text(), file.read_text(),
                             f"tests/bench/plot.py draws another {there}")

    def test_peers_are_the_tables_of_RESULTS(self):
        drawn = self.drawn()
        self.assertEqual(len(drawn), 3)
        self.check(drawn)

    def test_the_timeline_is_the_trace(self):
        drawn = self.drawn(HERE / "plots/one-pass.json")
        self.assertEqual(len(drawn), 1)
        self.check(drawn)


if __name__ == "__main__":
    unittest.main()
