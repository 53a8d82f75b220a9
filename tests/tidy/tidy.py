#!/usr/bin/env python3
"""Checks one rule about the tree: tidy.py RULE, or tidy.py --self-test RULE.

Exits 0 if the rule holds, 1 if not, 77 if it cannot run here.
"""

import argparse
import pathlib
import sys

import counts
import prose
import rules
import samples

rules.RULES["Counts"] = counts.ratchet
rules.RULES["Prose"] = prose.prose
ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def self_test(name, tools):
    """Fails unless the rule finds exactly what is wrong in its samples."""
    wrong = 0
    for files, expected in samples.CASES[name]:
        found = rules.RULES[name](rules.Tree(files, tools))
        if len(found) != expected:
            wrong += 1
            print(f"{name} should complain {expected} times, but complained "
                  f"{len(found)} times, of {sorted(files)}:")
            print("".join(f"  {complaint}\n" for complaint in found))
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rule", choices=sorted(rules.RULES) + ["all"])
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--clang-format", default="")
    parser.add_argument("--cxx", default="")
    args = parser.parse_args()
    tools = {"clang-format": args.clang_format, "cxx": args.cxx}
    names = sorted(rules.RULES) if args.rule == "all" else [args.rule]
    status = 0
    for name in names:
        try:
            if args.self_test:
                status |= self_test(name, tools)
                continue
            found = rules.RULES[name](rules.Tree.of_folder(ROOT, tools))
        except rules.Skip as reason:
            print(f"Skipped\n{reason}")
            return SKIPPED
        if found:
            print(f"{name}: {rules.RULES[name].__doc__} But:")
            print("\n".join(found))
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
