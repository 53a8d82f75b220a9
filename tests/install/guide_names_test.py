"""What the documents name is there: commands of hoistctl, keys of hoistd.toml,
error messages, headings, source files, tests.

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
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")),
             *sorted((ROOT / "deploy").rglob("*.md"))]
PARTS = ("client", "daemon", "proto", "scripts", "shared", "tests")


def section(page, heading):
    """A page's text below a heading, up to the next heading of its level."""
    text = (ROOT / page).read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text,
                      re.M | re.S)
    return None if found is None else found[2]


def rows(text):
    """The cells of a table's rows, without its head."""
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in re.findall(r"^\|.*$", text, re.M)][2:]


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


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

    def test_sources_are_there(self):
        """Those that ARCHITECTURE and HACKING name; a table's row may leave out
        the folder that it began with."""
        there = {path.name for part in PARTS
                 for path in (ROOT / part).rglob("*.*")}
        text = re.sub(r"^```.*?^```", "", "".join(
            (ROOT / "docs" / page).read_text()
            for page in ("ARCHITECTURE.md", "HACKING.md")), flags=re.M | re.S)
        named = [name for name in re.findall(r"`([^`\s]+)`", text)
                 if name.endswith((".cc", ".h", ".py", ".proto", ".toml"))]
        self.assertGreater(len(named), 50)
        for name in named:
            if name.startswith(PARTS):
                self.assertTrue((ROOT / name).exists(), name)
            else:
                self.assertIn(pathlib.Path(name).name,
                              there | {"hoistd.toml"}, name)

    def test_tests_of_bounds_are_there(self):
        """`Suite.Begin...` of a test's name, `Suite.*`, or `test_name`."""
        sources = "".join(path.read_text() for kind in ("cc", "h", "py")
                          for path in (ROOT / "tests").rglob(f"*.{kind}"))
        there = re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", sources, re.M)
        cells = [line.rstrip("| ").rsplit("|", 1)[-1] for line in (
            ROOT / "docs/BOUNDS.md").read_text().splitlines()
            if line.startswith("| ")]
        named = 0
        for cell in cells:
            for suite, begin in re.findall(r"\b([A-Z]\w+)\.([A-Z]\w*|\*)", cell):
                named += 1
                self.assertTrue(
                    any(a == suite and b.startswith(begin.rstrip("*"))
                        for a, b in there), f"{suite}.{begin}")
            for name in re.findall(r"`(test_\w+?)_?(?:\.\.\.)?`", cell):
                named += 1
                self.assertIn(f"def {name}", sources)
        self.assertGreater(named, 40)

    def test_messages_are_in_the_source(self):
        """Each that the troubleshooting table quotes, "..." for what varies: all
        of its parts stand in the strings of one file."""
        sources = [
            re.sub(r'"\s*f?"', "", re.sub(r"^\s*(//|#).*", "",
                                         path.read_text(), flags=re.M))
            for part in ("client", "daemon", "shared")
            for path in (ROOT / part).rglob("*")
            if path.suffix in (".cc", ".h", ".py") and "tests" not in path.parts]
        table = rows(section("deploy/GUIDE.md",
                             "Troubleshooting by error message"))
        self.assertGreater(len(table), 25)
        for message, *_ in table:
            for quoted in re.findall(r"`([^`]+)`", message):
                parts = [part.strip() for part in quoted.split("...")]
                self.assertTrue(any(all(part in text for part in parts)
                                    for text in sources), quoted)

    def test_libtorchs_code_is_the_examples(self):
        """Which component.LibTorch builds and runs."""
        code, = re.findall(r"```cpp\n(.*?)```",
                           (ROOT / "client/README.md").read_text(), re.S)
        example = (ROOT / "client/examples/libtorch/transformer.cc").read_text()
        self.assertIn("".join(code.split()), "".join(example.split()))

    def test_a_reader_finds_the_answers(self):
        """HACKING's questions: each answer stands below the heading it names, in
        README or ARCHITECTURE."""
        table = rows(section("docs/HACKING.md", "A reader's test"))
        self.assertGreater(len(table), 20)
        for question, where, answers in table:
            page, heading = re.match(r"\[(\w+): (.+)\]\(", where).groups()
            page = {"README": "README.md",
                    "ARCHITECTURE": "docs/ARCHITECTURE.md"}[page]
            text = " ".join((section(page, heading) or "").split())
            for answer in re.findall(r"`([^`]+)`", answers):
                self.assertIn(answer, text, question)

    def test_links_lead_somewhere(self):
        pages = [path for path in ROOT.glob("*/**/*.md")
                 if not any(part == "build" or part.startswith(".")
                            for part in path.relative_to(ROOT).parts)]
        for document in [*ROOT.glob("*.md"), *pages]:
            for link, place in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)",
                                          document.read_text()):
                page = document.parent / link if link else document
                self.assertTrue(page.exists(), f"{document}: {link}")
                if place:
                    self.assertIn(place, map(anchor, re.findall(
                        r"^#+ (.*)$", page.read_text(), re.M)), document)


if __name__ == "__main__":
    unittest.main()
