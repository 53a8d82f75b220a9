"""The manual pages: whole, and without a complaint of those who render them.

man_test.py BUILD
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()
del sys.argv[1]
PAGES = sorted((BUILD / "deploy/man").glob("*.[158]"))
HOISTCTL = BUILD / "client/ctl/hoistctl"
PLAIN = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "500",
         "MAN_KEEP_FORMATTING": "", "GROFF_NO_SGR": "1"}


def run(*command):
    done = subprocess.run([str(word) for word in command], check=True,
                          capture_output=True, env=PLAIN)
    # Without what the terminal prints twice, for bold.
    return re.sub(".\b", "", done.stdout.decode()), done.stderr.decode()


def shown(name):
    page, = (page for page in PAGES if page.name == name)
    return re.sub(r"\s+", " ", run("man", "-P", "cat", "-l", page)[0])


@unittest.skipIf(shutil.which("man") is None, "no man here")
class Manual(unittest.TestCase):
    def test_these_are_all(self):
        self.assertEqual([page.name for page in PAGES], [
            "hoist-keeper.8", "hoistctl.1", "hoistd.8", "hoistd.toml.5"])

    def test_man_has_no_complaint(self):
        for page in PAGES:
            self.assertEqual(run("man", "--warnings", "-E", "UTF-8", "-l",
                                 "-Tutf8", "-Z", page)[1], "", page.name)

    def test_mandoc_has_no_complaint(self):
        if shutil.which("mandoc") is None:
            self.skipTest("no mandoc here (scripts/setup.sh --for-tests)")
        for page in PAGES:
            done = subprocess.run(["mandoc", "-Tlint", str(page)], check=False,
                                  capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_hoistctl_has_each_command_and_option(self):
        page = shown("hoistctl.1")
        top = run(HOISTCTL, "--help")[0]
        commands = re.findall(r"^  (\w+) ", top.split("Subcommands:")[1], re.M)
        self.assertIn("status", commands)
        for command in commands:
            self.assertIn(f" hoistctl {command} ", page)
        for text in [top, *(run(HOISTCTL, "help", one)[0] for one in commands)]:
            for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M):
                self.assertIn(f" {option} ", page)

    def test_hoistd_and_its_keeper_have_each_option(self):
        for name in ("hoistd", "keeper/hoist-keeper"):
            text = run(BUILD / "daemon" / name, "--help")[0]
            found = re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M)
            self.assertIn("--version", found)
            page = shown(f"{pathlib.Path(name).name}.8")
            for option in found:
                self.assertIn(f" {option} ", page)

    def test_the_configuration_has_each_key_with_its_default(self):
        page = shown("hoistd.toml.5")
        text = (ROOT / "deploy/hoistd.toml").read_text()
        keys = re.findall(r"^(?:\w+ = .*|\[.*\])$", text, re.M)
        self.assertGreater(len(keys), 30)
        for key in keys:
            self.assertIn(re.sub(r"\s+", " ", key), page)
        self.assertIn("[[tenant]] name = \"team-a\"", page)
        for line in re.findall(r"^# (.*)$", text, re.M):
            if not re.match(r"\[\[|\w+ = ", line):
                said = re.sub(r"\s+", " ", line.replace("`", "")).strip()
                self.assertIn(said, page)


if __name__ == "__main__":
    unittest.main()
