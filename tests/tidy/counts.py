#!/usr/bin/env python3
"""Counts what makes a change dear: large classes, and names that many files carry.

    tests/tidy/counts.py           prints the counts
    tests/tidy/counts.py --write   writes them to counts.json, the ratchet's bounds

A class counts with all its files: the lines of its declaration and of every
member function that is defined outside of it (clang-format's shape, as
FunctionLength), without comments and blank lines. A field or a verb of session.proto,
and a counter of core/counters.h, counts each product file that names it. Names of one
word are not counted: they mean other things, too.
"""

import collections
import json
import pathlib
import re
import statistics
import sys

import rules

BOUNDS = "tests/tidy/counts.json"
PRODUCT = ("daemon/", "client/", "shared/", "proto/")
NO_PRODUCT = ("client/examples/", "client/python/tests/")
SOURCE = (".cc", ".h", ".c", ".py", ".proto")
CLASS = re.compile(r"^(?:class|struct) (?:ABSL_\w+(?:\([^)]*\))? )?(\w+)"
                   r"(?: final)?(?:\s*:\s[^{;]*)?\s*\{$(.*?)^\};", re.M | re.S)
MEMBER = re.compile(r"\b\w+_(?: ABSL_\w+\([^)]*\))?(?: = .*|\{.*)?\s*$", re.S)
FUNCTION = re.compile(r"^(?:[\w:<][^;{}#/]*?[\s*&])?(\w+)::~?[\w:]+\([^;]*?\{"
                      r"(?:\}$|.*?^\}$)", re.M | re.S)
LARGE = 600  # Lines; smaller classes have no bound.
# Of a new counter: counters.h, status.proto, and where it is counted.
COUNTER = 3


def product(tree):
    for path, text in tree.code(*PRODUCT, ends=SOURCE):
        if not path.startswith(NO_PRODUCT):
            yield path, text


def lines(tree):
    """Of code and comment, by top folder."""
    found = collections.Counter()
    for path, text in product(tree):
        found[path.split("/")[0]] += sum(
            1 for line in text.splitlines() if line.strip())
    return found


def code_lines(text):
    return sum(1 for line in rules.without_comments(text).splitlines()
               if line.strip())


def members(body):
    """Data members of a class's body: statements that end in `name_`."""
    depth, statement, found = 0, "", 0
    for line in rules.without_comments(body).splitlines():
        opened = line.count("{") - line.count("}")
        if depth == 0 and opened == 0:
            statement += line + " "
            while ";" in statement:
                one, statement = statement.split(";", 1)
                found += bool(MEMBER.search(one)) and not re.search(
                    r"\b(?:using|return) ", one)
        depth += opened
        if depth == 0 and line.rstrip().endswith(("}", ":", "};")):
            statement = ""
    return found


def classes(tree):
    """{"zone Class": (lines, data members, files)}."""
    sizes, counted = collections.Counter(), collections.Counter()
    files = collections.defaultdict(set)
    for path, text in product(tree):
        if not path.endswith((".h", ".cc")):
            continue
        zone = path.split("/")[0]
        for match in CLASS.finditer(text):
            name = f"{zone} {match[1]}"
            sizes[name] += code_lines(match[0])
            counted[name] += members(match[2])
            files[name].add(path)
        for match in FUNCTION.finditer(text):
            name = f"{zone} {match[1]}"
            sizes[name] += code_lines(match[0])
            files[name].add(path)
    return {name: (size, counted[name], len(files[name]))
            for name, size in sizes.items() if counted[name]}


def named(tree, pattern):
    return sum(1 for _, text in product(tree) if re.search(pattern, text))


def messages(tree):
    """{message: its fields} of session.proto."""
    text = tree.files.get("proto/hoist/v1/session.proto", "")
    found = {}
    for match in re.finditer(r"^message (\w+) \{(.*?)^\}", text, re.M | re.S):
        found[match[1]] = re.findall(r"(\w+) = \d+;", match[2])
    return found


def fields(tree):
    """{field of a request: product files that name it}."""
    names = {field for message, own in messages(tree).items()
             if message.endswith("Request") for field in own if "_" in field}
    return {name: named(tree, rf"\b{name}\b") for name in sorted(names)}


def verbs(tree):
    """{verb of a worker: product files that name it}."""
    found = {}
    for snake in messages(tree).get("ClientMessage", []):
        if "_" not in snake or snake == "request_id":
            continue
        camel = "".join(word.title() for word in snake.split("_"))
        found[snake] = named(tree, rf"\bk?{camel}(?![a-z])|\b{snake}")
    return found


def counters(tree):
    """{counter of a node: product files that name it}."""
    body = re.search(r"^struct Counters \{(.*?)^\};",
                     tree.files.get("daemon/core/counters.h", ""), re.M | re.S)
    names = re.findall(r"uint64_t (\w+_\w+) = 0;", body[1] if body else "")
    return {name: named(tree, rf"\b{name}\b") for name in sorted(names)}


def counts(tree):
    """What the ratchet holds; each may fall and not rise."""
    large = {name: found for name, found in classes(tree).items()
             if found[0] > LARGE}
    return {
        "lines of a class": {name: size for name, (size, _, _)
                             in sorted(large.items())},
        "members of a class": {name: data for name, (_, data, _)
                               in sorted(large.items())},
        "files of a field": fields(tree),
        "files of a verb": verbs(tree),
        "files of a counter": counters(tree),
    }


def ratchet(tree):
    """No large class, field or verb outgrows its bound (tests/tidy/counts.json)."""
    bounds = json.loads(tree.files.get(BOUNDS, "{}"))
    complaints = []
    for kind, found in counts(tree).items():
        known = bounds.get(kind, {})
        # A new one is held to the worst of those that are there.
        worst = (COUNTER if kind == "files of a counter" else
                 max(known.values(), default=0))
        for name, count in found.items():
            bound = known.get(name, LARGE if "lines" in kind else worst)
            if count > bound:
                complaints.append(
                    f"{BOUNDS}:1: {kind}: {name} has {count}, and may have "
                    f"{bound}; split state, or carry it in fewer places")
    return complaints


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    tree = rules.Tree.of_folder(root, {})
    found = counts(tree)
    if "--write" in sys.argv:
        (root / BOUNDS).write_text(json.dumps(found, indent=1) + "\n")
    by_folder = lines(tree)
    print(f"product lines, code and comment: {sum(by_folder.values()):,} (" +
          ", ".join(f"{name} {count:,}" for name, count
                    in sorted(by_folder.items())) + ")")
    large = sorted(classes(tree).items(), key=lambda one: -one[1][0])[:8]
    print("largest classes: lines, data members, files")
    for name, (size, data, files_) in large:
        print(f"  {name:24} {size:6,} {data:4} {files_:4}")
    for kind in ("files of a field", "files of a verb", "files of a counter"):
        top = sorted(found[kind].items(), key=lambda one: -one[1])
        print(f"{kind}: median {statistics.median(c for _, c in top):g}, most " +
              ", ".join(f"{name} {count}" for name, count in top[:5]))


if __name__ == "__main__":
    main()
