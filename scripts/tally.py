#!/usr/bin/env python3
"""Sums JUnit files into 'N passed, N failed, N skipped'.

tally.py RESULT.xml...           prints the skipped tests' reasons, those that
                                 passed at a second attempt only (FLAKY), the
                                 failed tests with the end of what each said,
                                 'N flaky' if there are any and, last, the sum;
                                 exits 1 on a failure.
tally.py --step NAME RC LOG OUT.xml
                                 writes a result of one case for a step that is
                                 no test by itself, such as a build; LOG, if it
                                 is there, says why it failed.
tally.py --flaky-from LOG RESULT.xml
                                 ctest's result does not say which tests
                                 `--repeat until-pass` ran again; its log
                                 (`ctest --output-log LOG`) does, and from there
                                 it is written into the result.
tally.py --limits OUT.xml RESULT.xml...
                                 writes a result of one case, which fails if the
                                 tests of a Python file took over 45 s of CPU
                                 and a 10th of all files' CPU, or a program over
                                 30 s (gtest's result of it) that is no
                                 simulation.

A program of ctest's whose own result is among the RESULTs too, in a folder
gtest/ under the name of ctest's entry, counts by its cases; by itself only if
it failed.

A test that was run again has the property `reruns`, and `rerun_after`, which
says what its first attempt ended with; `cpu_seconds` is what it used, and in a
program's result an attribute of the whole.
"""

import collections
import os
import pathlib
import re
import sys
import xml.etree.ElementTree as ET

# Who keeps only the end of a log still reads there why a test failed.
SHOWN_LINES = 25
SHOWN_TESTS = 20
LINE_WIDTH = 200
NOT_BUILT = "Unable to find executable"  # ctest calls such a test skipped.
CTEST_LINE = re.compile(r"\s*(?:\d+/\d+\s+)?Test\s+#\d+: (.+?) \.{3,}(.*)")
# A file of Python tests in the name of a class, or of a module.
FILE = re.compile(r"(?:.*?\btest_\w+)?")
# 30 and 20 are the aim. The same work takes up to half as much CPU time again
# on cores whose caches, or whose other thread, something else uses. A slower
# machine takes longer for all files: their sum scales the limit.
FILE_LIMIT, FILE_PART, PROGRAM_LIMIT = 45, 1 / 10, 30
LONG_KIND = "sim."  # The label of programs that run for long.


def outcome(case):
    """Returns ('passed' | 'failed' | 'skipped', reason) of one test case."""
    for child in case:
        if child.tag in ("failure", "error"):
            return "failed", child.get("message", "")
    skipped = case.find("skipped")
    if skipped is not None:
        text = skipped.get("message", "")
        if text == NOT_BUILT:
            return "failed", text
        if not text or text.startswith("SKIP_"):  # ctest; gtest said why.
            said = case.findtext("system-out", "")
            found = re.search(r"[Ss]kipped(?:\n|: )(.+)", said)
            text = found.group(1).strip() if found else text
        return "skipped", text
    if case.get("status") in ("fail", "notrun"):
        return "failed", case.get("status")
    return "passed", ""


def properties(case):
    return {each.get("name"): each.get("value", "")
            for each in case.findall("properties/property")}


def cases_of(path):
    """The tests of a result, each once: of one that was run again pytest's has
    every attempt, and the last has the property `reruns`. gtest's has those
    that its filter left out."""
    found = []
    for case in ET.parse(path).getroot().iter("testcase"):
        if case.get("result") == "suppressed":
            continue
        again = int(properties(case).get("reruns", 0)) and key(case)
        if again:
            found = [one for one in found if key(one) != again]
        found.append(case)
    return found


def key(case):
    return case.get("classname"), case.get("name")


def shown(line):
    """One line of a test's words, cut where a terminal's would end."""
    return line if len(line) <= LINE_WIDTH else line[:LINE_WIDTH - 3] + "..."


def said_last(case):
    """Returns the last lines that a failed case's result holds."""
    lines = []
    for tag in ("system-out", "system-err", "error", "failure"):
        for child in case.findall(tag):
            text = (child.text or child.get("message", "")).rstrip()
            lines += text.splitlines()
    return [shown(line) for line in lines[-SHOWN_LINES:]]


def tally(paths):
    counts = collections.Counter()
    skips = collections.Counter()
    failed = []
    flaky = []
    programs = {pathlib.Path(path).stem for path in paths
                if pathlib.Path(path).parent.name == "gtest"}
    for path in paths:
        try:
            cases = cases_of(path)
        except (OSError, ET.ParseError) as error:
            failed.append((f"{path}: no test result: {error}", []))
            counts["failed"] += 1
            continue
        for case in cases:
            kind, reason = outcome(case)
            if case.get("name") in programs and kind == "passed":
                continue
            counts[kind] += 1
            if kind == "failed":
                failed.append((f"{case.get('name')}  ({path})",
                               said_last(case)))
            elif kind == "skipped":
                skips[reason] += 1
            elif properties(case).get("reruns"):
                flaky.append(f"{case.get('name')}  ({path}): "
                             f"{properties(case).get('rerun_after', '')}")
    for reason, count in sorted(skips.items()):
        print(shown(f"SKIPPED {count} x {reason or 'no reason given'}"))
    for line in flaky:
        print(shown(f"FLAKY   {line}"))
    for number, (name, lines) in enumerate(failed):
        print(f"FAILED  {name}")
        for line in lines if number < SHOWN_TESTS else ():
            print(f"    {line}")
    if flaky:
        print(f"{len(flaky)} flaky")
    print(f"{counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


def write_step(name, code, log, path):
    suite = ET.Element("testsuite", name="steps")
    case = ET.SubElement(suite, "testcase", name=name)
    if code != "0":
        message = f"exit status {code}"
        failure = ET.SubElement(case, "failure", message=message)
        if os.path.exists(log):
            with open(log, encoding="utf-8", errors="replace") as lines:
                said = collections.deque(lines, SHOWN_LINES)
            # XML has no other control characters.
            failure.text = re.sub(r"[^\t\n -\ud7ff]", "?",
                                  f"{''.join(said)}{message}")
    ET.ElementTree(suite).write(path)


def write_limits(out, paths):
    """Holds CPU seconds to the limits; the time on the clock is that of whatever
    else a machine does."""
    used, files, limits = collections.Counter(), collections.Counter(), {}
    for path in paths:
        whole = ET.parse(path).getroot().get("cpu_seconds")
        name = os.path.basename(path)
        if whole and not name.startswith(LONG_KIND):
            used[name], limits[name] = float(whole), PROGRAM_LIMIT
        for case in cases_of(path):
            if took := properties(case).get("cpu_seconds"):
                files[FILE.match(case.get("classname", ""))[0]] += float(took)
    used.update(files)
    limits.update(dict.fromkeys(
        files, max(FILE_LIMIT, FILE_PART * sum(files.values()))))
    suite = ET.Element("testsuite", name="limits")
    case = ET.SubElement(suite, "testcase", name="CPU time of each file")
    over = [f"{name}: {took:.0f} s of CPU, of which {limits[name]:.0f} are the "
            "most; it wants to be faster, or a label for its longest tests"
            for name, took in used.most_common() if took > limits[name]]
    if over:
        ET.SubElement(case, "failure", message=over[0]).text = "\n".join(over)
    ET.ElementTree(suite).write(out)


def mark_flaky(log, path):
    """Writes into ctest's result which of its tests had failed at first."""
    first = {}
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            found = CTEST_LINE.fullmatch(line.rstrip())
            if found and "***" in found[2]:
                first.setdefault(found[1], found[2].split("***")[1].split()[0])
    tree = ET.parse(path)
    for case in tree.getroot().iter("testcase"):
        if case.get("name") in first and outcome(case)[0] == "passed":
            added = ET.SubElement(case, "properties")
            for name, value in (("reruns", "1"),
                                ("rerun_after", first[case.get("name")])):
                ET.SubElement(added, "property", name=name, value=value)
    tree.write(path)


def main(args):
    if len(args) == 5 and args[0] == "--step":
        write_step(*args[1:])
        return 0
    if len(args) == 3 and args[0] == "--flaky-from":
        mark_flaky(*args[1:])
        return 0
    if len(args) > 2 and args[0] == "--limits":
        write_limits(args[1], args[2:])
        return 0
    if args in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if not args or args[0].startswith("-"):
        print(f"tally.py: wants results, and not {args}; see --help",
              file=sys.stderr)
        return 2
    return tally(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
