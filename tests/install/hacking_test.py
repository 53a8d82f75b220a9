"""What docs/HACKING.md prints: its change applies, its commands run.

hacking_test.py BUILD [unittest options]; CI looks at the tree and at BUILD. The
night follows the whole walk, in a copy of the tree (HackingWalk).
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
PAGE = (ROOT / "docs/HACKING.md").read_text()


def section(heading):
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(text, language):
    """Fenced ones, without their indentation."""
    return [textwrap.dedent(block) for block in re.findall(
        rf"^ *```{language}\n(.*?)^ *```", text, re.M | re.S)]


def commands(text):
    """What is indented by four more than the text around it."""
    bare = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    return [line.strip() for line in re.findall(r"^ {4,}\S.*$", bare, re.M)]


def change():
    return "".join(blocks(section("A change: a counter"), "diff"))


def apply(folder, *options):
    return subprocess.run(
        ["git", "apply", "--unidiff-zero", *options], input=change(), text=True,
        cwd=folder, capture_output=True, check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)})


class Page(unittest.TestCase):
    def test_the_change_applies_where_it_says(self):
        self.assertEqual(change().count("\n+++ "), 4)
        done = apply(ROOT, "--check", "-v")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_verbs_code_is_the_trees(self):
        sources = " ".join("".join(path.read_text().split())
                           for folder in ("daemon", "tests")
                           for path in sorted((ROOT / folder).rglob("*"))
                           if path.suffix in (".h", ".cc"))
        found = blocks(section("A change: a verb of the session"), "cpp")
        self.assertEqual(len(found), 3)
        for code in found:
            self.assertTrue("".join(code.split()) in sources, code)

    def test_targets_and_tests_are_there(self):
        targets = subprocess.run(
            ["cmake", "--build", BUILD, "--target", "help"], check=True,
            capture_output=True, text=True).stdout
        named = 0
        for line in commands(PAGE):
            words = shlex.split(line)
            if words[:2] == ["cmake", "--build"]:
                for target in words[words.index("--target") + 1:]:
                    self.assertRegex(targets, rf"(?m)^(\.\.\. )?{target}\b")
                    named += 1
            elif "--gtest_filter" in line:  # CI's dev builds no such program
                sources = "".join(path.read_text() for path in (
                    ROOT / pathlib.Path(words[0]).parent.relative_to(
                        "build/dev")).rglob("*.cc"))
                for suite in re.findall(r"[=:](\w+)\.", words[1]):
                    self.assertRegex(sources, rf"\bTEST(_[FP])?\({suite},")
                    named += 1
            elif words[0] == "ctest":
                said = subprocess.run(
                    ["ctest", "--test-dir", BUILD, "-N", *words[3:]],
                    check=True, capture_output=True, text=True).stdout
                self.assertNotIn("Total Tests: 0", said)
                named += 1
        self.assertGreater(named, 10)

    def test_what_needs_no_build_runs(self):
        """hoistd --user as step 5 has it, and the planner's figures."""
        lines = [line for text in ("A change: a counter",
                                   "An experiment: a rule of the planner")
                 for line in commands(section(text))
                 if re.match("build/dev/(daemon|tests/bench)|until|kill|diff",
                             line)]
        self.assertEqual(len(lines), 6)
        follow(self, lines, BUILD, "build/dev")


def follow(test, lines, build, named=None):
    """Runs the lines in one shell, as a user who has a runtime folder."""
    folder = tempfile.TemporaryDirectory(prefix="hoist-", dir="/tmp")
    test.addCleanup(folder.cleanup)
    script = "\n".join(lines)
    if named:
        script = script.replace(named, str(build))
    done = subprocess.run(
        ["bash", "-m", "-euc", script], check=False, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, cwd=folder.name if named else build,
        env={**os.environ, "XDG_RUNTIME_DIR": folder.name})
    test.assertEqual(done.returncode, 0, done.stdout[-4000:])
    return done.stdout


class HackingWalk(unittest.TestCase):
    """Builds the counter, and runs the page from its first command to its last."""

    def test_the_page_is_followed(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-hacking-")
        self.addCleanup(folder.cleanup)
        tree = pathlib.Path(folder.name) / "hoist"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(
            "build", ".git", "__pycache__"))
        done = apply(tree)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in commands(PAGE)
                 if not line.startswith("scripts/")]
        self.assertIn("stages_waited", follow(self, lines, tree))


if __name__ == "__main__":
    unittest.main(defaultTest=None if "HackingWalk" in sys.argv else "Page")
