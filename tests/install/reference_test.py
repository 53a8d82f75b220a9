"""The reference: rendered without a complaint, with all that is public in it,
and with complaints where something is not described.

reference_test.py BUILD [unittest options]
"""

import ast
import html.parser
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
INCLUDE = ROOT / "client/include/hoist"
# hoist.checkpoint says itself that it is none.
PACKAGES = ("hoist", "hoist.nn", "hoist.activations", "hoist.compat")


def lacking():
    tools = [tool for tool in ("doxygen", "mandoc", "protoc")
             if shutil.which(tool) is None]
    return tools + [name for name in ("sphinx",)
                    if importlib.util.find_spec(name) is None]


def render(out, root=ROOT):
    return subprocess.run(
        [sys.executable, "-B", root / "docs/reference.py", BUILD / "deploy/man",
         BUILD / "client/ctl/hoistctl", out, "0.1.0"], check=False, capture_output=True, text=True,
        env={**os.environ, "HOIST_ROOT": str(root)})


class Links(html.parser.HTMLParser):
    """A page's anchors and links."""

    def __init__(self, page):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.anchors.update({named.get("id"), named.get("name")} - {None})
        if tag == "a" and named.get("href"):
            self.links.append(named["href"])


def plain(fragment):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", fragment)).strip()


def exported(package):
    """`__all__`, of the source: nothing of it is imported."""
    path = ROOT / "client/python" / package.replace(".", "/") / "__init__.py"
    names = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign):
            names[ast.unparse(node.targets[0])] = node.value
    found = set(ast.literal_eval(names["__all__"]))
    for late in {"_NN", "_ACTIVATIONS"} & set(names):  # When asked for.
        found |= ast.literal_eval(names[late])
    return sorted(found)


def keys_of(table):
    for key, value in table.items():
        yield from keys_of(value) if isinstance(value, dict) else [key]


@unittest.skipIf(lacking(), f"no {', '.join(lacking())} here "
                            "(scripts/setup.sh --for-tests)")
class Reference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = BUILD / "tests/install/reference"
        cls.done = render(cls.out)
        cls.html = cls.out / "html"

    def page(self, name):
        return (self.html / name).read_text()

    def shown(self, name):
        return plain(self.page(name))

    def test_there_is_no_complaint(self):
        self.assertEqual((self.done.returncode, self.done.stderr), (0, ""))

    def test_each_public_name_of_python_is_described(self):
        page = self.page("python.html")
        of_hoist = exported("hoist")
        self.assertIn("attach", of_hoist)
        for package in PACKAGES:
            for name in exported(package):
                home = "hoist" if name in of_hoist else package
                entry = re.search(rf'id="{re.escape(home)}\.{name}">.*?'
                                  r"<dd>(.*?)</d[dl]>", page, re.S)
                self.assertIsNotNone(entry, f"{package}.{name}")
                self.assertRegex(plain(entry[1]), r"\w", f"{package}.{name}")

    def test_each_function_of_c_is_described(self):
        pages = [self.page(f"cpp/{path.name}") for path in
                 sorted((self.html / "cpp").glob("*_8h.html"))]
        described = {}
        for page in pages:
            for name, text in re.findall(
                    r"</span>(hoist_\w+)\(\)</h2>.*?"
                    r'<div class="memdoc">(.*?)</div>', page, re.S):
                described[name] = plain(text)
        declared = set()
        for header in (INCLUDE / "c").glob("*.h"):
            declared.update(re.findall(r"^HOIST_API [^;(]*?(hoist_\w+)\(",
                                       header.read_text(), re.M))
        self.assertGreater(len(declared), 70)
        for name in sorted(declared):
            self.assertRegex(described.get(name, ""), r"\w", name)

    def test_each_class_of_cpp_is_described(self):
        found = 0
        for header in [*INCLUDE.glob("*.h"), *(INCLUDE / "torch").glob("*.h")]:
            text = re.sub(r"^namespace internal \{.*?^\}  // namespace internal$",
                          "", header.read_text(), flags=re.S | re.M)
            space = ("hoist", "torch") if "namespace torch {" in text else (
                "hoist",)
            for kind, name in re.findall(
                    r"^(class|struct) (?:\[\[\w+\]\] )?([\w:]+)[^;\n]* \{",
                    text, re.M):
                page = kind + "_1_1".join([*space, *name.split("::")])
                shown = self.shown(f"cpp/{page}.html")
                self.assertRegex(shown, r"Detailed Description.* \w+ ", page)
                found += 1
        self.assertGreater(found, 25)

    def test_each_verb_key_and_call_is_there(self):
        verbs = subprocess.run([BUILD / "client/ctl/hoistctl", "--help"],
                               check=True, capture_output=True, text=True).stdout
        page = self.shown("hoistctl.1.html")
        for verb in re.findall(r"^  (\w+) ", verbs.split("Subcommands:")[1],
                               re.M):
            self.assertIn(f"hoistctl {verb} ", page)
        page = self.shown("hoistd.toml.5.html")
        for key in keys_of(tomllib.loads(
                (ROOT / "deploy/hoistd.toml").read_text())):
            self.assertIn(f" {key} = ", page)
        page = self.shown("grpc.html")
        for file in ("admin", "worker"):
            text = (ROOT / f"proto/hoist/v1/{file}.proto").read_text()
            for name in re.findall(r"^ *(?:rpc|message) (\w+)", text, re.M):
                self.assertIn(name, page)

    def test_links_lead_somewhere(self):
        pages = {path: Links(path) for path in self.html.rglob("*.html")}
        self.assertGreater(len(pages), 50)
        for path, page in pages.items():
            for link in page.links:
                to = urllib.parse.urlsplit(link)
                if to.scheme or to.netloc or not (to.path or to.fragment):
                    continue
                there = path.parent / urllib.parse.unquote(to.path) if (
                    to.path) else path
                there = pathlib.Path(os.path.normpath(there))
                self.assertTrue(there.exists(), f"{path.name}: {link}")
                # Doxygen has looked after its own.
                if to.fragment and there in pages and "cpp" not in path.parts:
                    self.assertIn(urllib.parse.unquote(to.fragment),
                                  pages[there].anchors, f"{path.name}: {link}")


PLANTED = (
    # Where, what is there, what is put in its place, the complaint.
    ("client/include/hoist/c/plan.h", "/* What the plan is by now. */\n", "",
     r"plan\.h:\d+: .*hoist_plan_describe.*is not documented"),
    ("client/include/hoist/c/stage.h", "see hoist_done_with_model.",
     "see hoist_done_with_it.", r"reference to 'hoist_done_with_it'"),
    ("client/include/hoist/hoist_plan.h", "// Of Session::SetPlan.\n", "",
     r"hoist_plan\.h:\d+: .*hoist::PlanOptions is not documented"),
    ("client/python/hoist/_plan.py", '"""The plan\'s current facts."""', "",
     r"hoist\.Plan\.info has no docstring"),
    ("client/python/hoist/_session.py", '"""Connects to hoistd.',
     '"""Connects, see hoist.connected.',
     r"target not found: hoist\.connected"),
    ("client/python/hoist/_session.py", "            then learned from that pass.",
     "        then learned from that pass.",
     r"set_plan: neither a parameter nor set in"),
)


@unittest.skipIf(lacking(), f"no {', '.join(lacking())} here")
class Complaints(unittest.TestCase):
    def test_what_is_not_described_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder) / "hoist"
            for part in ("docs", "client/include", "client/python/hoist",
                         "proto"):
                shutil.copytree(ROOT / part, root / part)
            for name, before, after, _ in PLANTED:
                text = (root / name).read_text()
                self.assertIn(before, text)
                (root / name).write_text(text.replace(before, after, 1))
            done = render(pathlib.Path(folder) / "out", root)
            self.assertEqual(done.returncode, 1, done.stderr)
            for name, _, _, complaint in PLANTED:
                self.assertRegex(done.stderr, complaint, name)


if __name__ == "__main__":
    unittest.main()
