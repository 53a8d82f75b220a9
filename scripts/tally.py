#!/usr/bin/env python3
"""Sums JUnit files into 'N passed, N failed, N skipped'.

tally.py RESULT.xml...           prints the failed tests' names, the skipped
                                 tests' reasons and, last, the sum; exits 1 on
                                 a failure.
tally.py --step NAME RC OUT.xml  writes a result of one case for a step that is
                                 no test by itself, such as a build.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ET


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


def tally(paths):
    counts = collections.Counter()
    skips = collections.Counter()
    for path in paths:
        try:
            cases = ET.parse(path).getroot().iter("testcase")
        except (OSError, ET.ParseError) as error:
            print(f"FAILED  {path}: no test result: {error}")
            counts["failed"] += 1
            continue
        for case in cases:
            kind, reason = outcome(case)
            counts[kind] += 1
            if kind == "failed":
                print(f"FAILED  {case.get('name')}  ({path})")
            elif kind == "skipped":
                skips[reason] += 1
    for reason, count in sorted(skips.items()):
        print(f"SKIPPED {count} x {reason or 'no reason given'}")
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
