"""deploy/SCREENS.md is what scripts/screens.sh prints: the same commands, and
each of them answers.

screens_test.py BUILD_FOLDER
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = sys.argv.pop(1)
COMMAND = re.compile(r"^    hoistctl (.*)$", re.MULTILINE)
SCREEN = re.compile(r"^    hoistctl ([^\n]*)\n\n```\n(.*?)```$",
                    re.MULTILINE | re.DOTALL)


class Screens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([ROOT / "scripts/screens.sh", BUILD], text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        cls.printed = done.stdout
        cls.written = (ROOT / "deploy/SCREENS.md").read_text("utf-8")

    def test_the_page_has_the_commands_that_the_script_runs(self):
        self.assertEqual(COMMAND.findall(self.written),
                         COMMAND.findall(self.printed),
                         "scripts/screens.sh > deploy/SCREENS.md")

    def test_each_command_shows_something(self):
        shown = dict(SCREEN.findall(self.printed))
        self.assertEqual(list(shown), COMMAND.findall(self.printed))
        for command, screen in shown.items():
            with self.subTest(command=command):
                self.assertGreater(len(screen.splitlines()), 1)
                self.assertNotRegex(screen, r"(?m)^hoistctl: ")

    # Headings and words, without numbers and names of the run.
    def test_the_page_shows_what_hoistctl_does_today(self):
        def columns(text):
            return [line.split() for line in text.splitlines()
                    if re.match(r"^[A-Z]{4,} {2,}", line)]

        self.assertEqual(columns(self.written), columns(self.printed))


if __name__ == "__main__":
    unittest.main()
