#!/usr/bin/env python3
"""Makes the manual pages out of the *.in beside this file.

man_pages.py OUT VERSION HOISTD HOIST_KEEPER HOISTCTL

Commands, options and keys are not written down there: they come from what the
programs say of themselves (--help) and from deploy/hoistd.toml, so that a page
cannot tell of an option that is gone, or miss a new one.
"""

import pathlib
import re
import subprocess
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
COLUMN = 30  # Where CLI11 puts the descriptions.
SECTIONS = ("Positionals", "Options", "Subcommands")


def escaped(text):
    """For a line of roff, wherever in it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def prose(text):
    """Sentences; what is in backticks is set as typed."""
    parts = re.split(r"`([^`]*)`", text)
    for at in range(len(parts)):
        said = escaped(parts[at])
        if at % 2:
            parts[at] = f"\\fB{said}\\fR"
        else:
            # A hyphen within a word is one, and may end a line.
            parts[at] = re.sub(r"(?<=\w)\\-(?=\w)", "-", said)
    lines = textwrap.wrap("".join(parts), 78, break_long_words=False,
                          break_on_hyphens=False)
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line
                     for line in lines)


def entries(help_text):
    """{"Options": [(name, description)], ...} of what CLI11 prints."""
    found = {section: [] for section in SECTIONS}
    section, lines = None, help_text.splitlines()
    for at, line in enumerate(lines):
        if line.rstrip(":") in SECTIONS:
            section = line.rstrip(":")
        elif not line.startswith("  "):
            section = None if line else section
        elif section and line.startswith(" " * COLUMN):
            name, about = found[section][-1]
            found[section][-1] = (name, f"{about} {line.strip()}".strip())
        elif section:
            alone = at + 1 < len(lines) and lines[at + 1].startswith(" " * COLUMN)
            split = len(line) if alone else COLUMN
            found[section].append((line[:split].strip(), line[split:].strip()))
    return found


def shape(name):
    """("-c,--config TEXT", "x") -> how it is typed, and what limits it."""
    name, _, excluded = name.replace(" REQUIRED", "").partition(" Excludes:")
    first, _, kind = name.partition(" ")
    kind, limits = kind.strip(), []
    if (choices := re.search(r":\{(.*)\}", kind)):
        kind = choices[1].replace(",", "|")
    elif (span := re.search(r" in \[(\S+) - (\S+)\]", kind)):
        kind = kind.partition(":")[0]
        limits.append(f"from {span[1]} to {span[2]}")
    kind = re.sub(r"^\w+:(\w+)$", r"\1", kind)  # "UINT:RATE" is a RATE.
    if excluded:
        limits.append(f"not together with {', '.join(excluded.split())}")
    return first, kind, limits


def typed(first, kind):
    names = ", ".join(f"\\fB{escaped(one)}\\fR" for one in first.split(","))
    if not first.startswith("-"):
        return f"\\fI{escaped(first)}\\fR" + (" ..." if "..." in kind else "")
    return names + (f" \\fI{escaped(kind)}\\fR" if kind else "")


def listed(found):
    """What can be given, and what it does."""
    lines = []
    for name, about in found:
        first, kind, limits = shape(name)
        if first == "-h,--help":
            about = "print a help message and exit"
        elif first == "--version":
            about = "print the version and exit"
        lines += [".TP", typed(first, kind), prose("; ".join([about, *limits]))]
    return lines


def help_of(program, *words):
    return subprocess.run([program, *words], check=True, text=True,
                          capture_output=True).stdout


def options(program):
    found = entries(help_of(program, "--help"))
    return "\n".join(listed(found["Positionals"] + found["Options"]))


def synopsis(name, found):
    line = f"\\fBhoistctl {escaped(name)}\\fR"
    takes = [one for one, _ in found["Options"] if one != "-h,--help"]
    if takes:
        line += " [\\fIOPTION\\fR]..."
    for one, _ in found["Positionals"]:
        first = f"\\fI{shape(one)[0]}\\fR"
        line += f" {first}" if " REQUIRED" in one else f" [{first}]"
    return line


def commands(program):
    lines = []
    for name, about in entries(help_of(program, "--help"))["Subcommands"]:
        found = entries(help_of(program, "help", name))
        given = [one for one in found["Positionals"] + found["Options"]
                 if one[0] != "-h,--help"]
        lines += [".TP", synopsis(name, found), prose(about)]
        if given:
            lines += [".RS", *listed(given), ".RE"]
    return "\n".join(lines)


def toml_items(text):
    """What hoistd.toml is made of: ("section", line), ("keys", lines, about),
    ("said", about), ("example", lines)."""
    items, said, example = [], [], []

    def end():
        if said:
            items.append(("said", " ".join(said)))
        if example:
            items.append(("example", list(example)))
        said.clear()
        example.clear()

    for line in [*text.splitlines(), ""]:
        if line.startswith("# [[" if not example else "#"):
            example.append(line[1:].strip())
        elif line.startswith("#"):
            said.append(line[1:].strip())
        elif line.startswith("["):
            end()
            items.append(("section", line))
        elif line and not said and items[-1][0] == "keys":
            items[-1][1].append(line)  # Its comment is of both.
        elif line:
            items.append(("keys", [line], " ".join(said)))
            said.clear()
            end()  # Its example.
        else:
            end()
    return items


def keys():
    lines = []
    for kind, what, *about in toml_items(
            (HERE.parent / "hoistd.toml").read_text()):
        if kind == "section":
            lines.append(f".SS {escaped(what)}")
        elif kind == "keys":
            lines.append(".TP")
            lines += "\n.TQ\n".join(
                f"\\fB{escaped(key)}\\fR" for key in what).splitlines()
            lines += [prose(one) for one in about if one]
        elif kind == "said":
            lines += [".PP", prose(what)] if lines else [prose(what)]
        else:
            lines += [".PP", ".RS 4", ".nf", *map(escaped, what), ".fi", ".RE"]
    return "\n".join(lines)


def main(out, version, hoistd, keeper, hoistctl):
    made = {"VERSION": version, "HOISTD_OPTIONS": options(hoistd),
            "KEEPER_OPTIONS": options(keeper),
            "HOISTCTL_OPTIONS": options(hoistctl),
            "HOISTCTL_COMMANDS": commands(hoistctl), "KEYS": keys()}
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for source in HERE.glob("*.in"):
        page = re.sub(r"@(\w+)@", lambda name: made[name[1]],
                      source.read_text())
        (folder / source.stem).write_text(page)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
