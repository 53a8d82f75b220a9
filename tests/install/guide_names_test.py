"""What the operator's documents name is there: commands of hoistctl, keys of
hoistd.toml, alerts' files.

guide_names_test.py HOISTCTL [unittest options]
"""

import pathlib
import re
import subprocess
import sys
import tomllib
import unittest

HOISTCTL = sys.argv.pop(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "deploy").rglob("*.md"))]


def keys_of(table, prefix=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key


class Names(unittest.TestCase):
    def test_commands_are_hoistctls(self):
        """Those in code: `hoistctl X`, or a line that is indented."""
        named = set()
        for document in DOCUMENTS:
            text = document.read_text()
            for code in re.findall(r"`([^`\n]+)`", text) + re.findall(
                    r"^ {4}(.+)$", text, re.M):
                named.update(re.findall(r"(?:^|[;&] *|then )hoistctl "
                                        r"([a-z][a-z-]*)", code))
        for command in sorted(named):
            done = subprocess.run([HOISTCTL, "help", command],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(named), 15)

    def test_keys_are_hoistd_tomls(self):
        shipped = tomllib.loads((ROOT / "deploy/hoistd.toml").read_text())
        known = set(keys_of(shipped))
        tables = {key.split(".")[0] for key in known}
        named = 0
        for document in DOCUMENTS:
            for code in re.findall(r"`([^`\n]+)`", document.read_text()):
                match = re.match(r"([a-z]+(?:\.[a-z_]+)+)(?: = .*)?$", code)
                if match and match[1].split(".")[0] in tables:
                    named += 1
                    self.assertIn(match[1], known, document)
        self.assertGreater(named, 10)

    def test_links_lead_somewhere(self):
        for document in DOCUMENTS:
            for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
                self.assertTrue((document.parent / link).exists(),
                                f"{document}: {link}")


if __name__ == "__main__":
    unittest.main()
