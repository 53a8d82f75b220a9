#!/usr/bin/env python3
"""Sums JUnit files into 'N passed, N failed, N skipped'.

tally.py RESULT.xml...           prints the skipped tests' reasons, the failed
                                 tests with the end of what each said and,
                                 last, the sum; exits 1 on a failure.
tally.py --step NAME RC OUT.xml  writes a result of one case for a step that is
                                 no test by itself, such as a build.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ET

# Who keeps only the end of a log still reads there why a test failed.
SHOWN_LINES = 25
SHOWN_TESTS = 20
LINE_WIDTH = 200


def outcome(case):
    """Returns ('passed' | 'failed' | 'skipped', reason) of one test case."""
    for child in case:
        if child.tag in ("failure", "error"):
            return "failed", child.get("message", "")
    skipped = case.find("skipped")
    if skipped is not None:
        text = skipped.get("message", "")
        if not text or text.startswith("SKIP_"):  # ctest; gtest said why.
            said = case.findtext("system-out", "")
            found = re.search(r"[Ss]kipped(?:\n|: )(.+)", said)
            text = found.group(1).strip() if found else text
        return "skipped", text
    if case.get("status") in ("fail", "notrun"):
        return "failed", case.get("status")
    return "passed", ""


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
    for path in paths:
        try:
            cases = ET.parse(path).getroot().iter("testcase")
        except (OSError, ET.ParseError) as error:
            failed.append((f"{path}: no test result: {error}", []))
            counts["failed"] += 1
            continue
        for case in cases:
            kind, reason = outcome(case)
            counts[kind] += 1
            if kind == "failed":
                failed.append((f"{case.get('name')}  ({path})",
                               said_last(case)))
            elif kind == "skipped":
                skips[reason] += 1
    for reason, count in sorted(skips.items()):
        print(shown(f"SKIPPED {count} x {reason or 'no reason given'}"))
    for number, (name, lines) in enumerate(failed):
        print(f"FAILED  {name}")
        for line in lines if number < SHOWN_TESTS else ():
            print(f"    {line}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


def write_step(name, code, path):
    suite = ET.Element("testsuite", name="steps")
    case = ET.SubElement(suite, "testcase", name=name)
    if code != "0":
        ET.SubElement(case, "failure", message=f"exit status {code}")
    ET.ElementTree(suite).write(path)


def main(args):
    if len(args) == 4 and args[0] == "--step":
        write_step(*args[1:])
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
