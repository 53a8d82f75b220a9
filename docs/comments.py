#!/usr/bin/env python3
"""Doxygen's input filter: hoist's plain comments as those that it reads.

comments.py HEADER

The headers have `//` and `/* */`, and a layout that says what a comment is of:

- above a declaration, without an empty line: that declaration's;
- behind one, on its line: that one's;
- apart, between empty lines: the file's, as its first one is.

"Errors:   text" with its other lines set in is an entry of a list, and lines
that are set in by themselves are code. What is in backticks is code. Names of
the C API become references, so that one that is gone is a warning of Doxygen's.
Of a function without a comment it is said which of the C API's it calls.
Comments within functions are left alone, and so is all of a namespace
`internal`. The inline namespace, which callers do not write, is left out.
"""

import dataclasses
import pathlib
import re
import sys

SCOPE = re.compile(r'(typedef\s+)?(inline\s+)?'
                   r'((namespace|class|struct|union|enum)\b|extern "C")')
QUOTED = r'"(?:\\.|[^"\\])*"|(?<![0-9])\'(?:\\.|[^\'\\])+\''
HEADING = re.compile(r"^-+ .* -+$")
ENTRY = re.compile(r"^([A-Z]\w*(?: \w+)?):(\s+)(?=\S)")


def escaped(text):
    return re.sub(r"[\\@<>&#$%]", lambda found: "\\" + found[0], text)


def said(text):
    """Prose: code in backticks, and references to names of the C API."""
    parts = re.split(r"`([^`]*)`", text)
    for at, part in enumerate(parts):
        if at % 2:
            parts[at] = f"<code>{escaped(part)}</code>"
        else:
            parts[at] = re.sub(
                r"(?<![\w/$])((?:hoist_|HOIST_)\w*[A-Za-z0-9])"
                r"(?![\w*]|\.h|_\*)", r'\\ref \1 "\1"', escaped(part))
    return "".join(parts)


def entries(lines):
    """[(name, text)] if the paragraph is a list of such, else None."""
    found, hangs = [], False
    for line in lines:
        entry = ENTRY.match(line)
        if entry:
            hangs = hangs or len(entry[2]) > 1
            found.append((entry[1], line[entry.end():]))
        elif found and line.startswith("  "):
            hangs = True
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            return None
    return found if hangs else None


def paragraph(lines):
    if all(line.startswith("  ") for line in lines):
        shift = min(len(line) - len(line.lstrip()) for line in lines)
        return ["\\code{.cc}", *(line[shift:] for line in lines), "\\endcode"]
    listed = entries(lines)
    if listed:
        return ["<dl>" + "".join(
            f"<dt>{escaped(name)}</dt><dd>{said(text)}</dd>"
            for name, text in listed) + "</dl>"]
    return [said(" ".join(line.strip() for line in lines))]


def rendered(lines):
    """A comment's text, as Doxygen is to have it."""
    paragraphs = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    made = []
    for lines_of_one in paragraphs:
        if lines_of_one:
            made += ([""] if made else []) + paragraph(lines_of_one)
    return made


@dataclasses.dataclass
class Comment:
    first: int   # Its lines in the file,
    last: int
    column: int  # where it begins,
    text: list   # and what it says.


def split(line):
    """(code, where its comment begins or None)."""
    within = r"|/\*.*?\*/(?=\s*[^\s])"  # Of an argument.
    for found in re.finditer(QUOTED + within + r"|(//|/\*)", line):
        if found[1]:
            return line[:found.start()], found.start()
    return line, None


def comment_at(lines, at):
    """The comment that begins on this line, and the code before it."""
    code, column = split(lines[at])
    if column is None:
        return code, None
    text, last = [], at
    if lines[at].startswith("//", column):
        text.append(lines[at][column + 2:])
        own_line = re.compile(r"\s" * column + "//") if code.strip() else (
            re.compile(r"\s*//"))
        while last + 1 < len(lines) and own_line.match(lines[last + 1]):
            last += 1
            text.append(lines[last].split("//", 1)[1])
    else:
        text.append(lines[at][column + 2:])
        while "*/" not in text[-1]:
            last += 1
            text.append(re.sub(r"^\s*\*(?!/)", "", lines[last]))
        text[-1] = text[-1].partition("*/")[0].rstrip()
    text = [re.sub(r"^ ", "", line) for line in text]
    return code, Comment(at, last, column, text)


class Filter:
    def __init__(self, text):
        self.lines = text.splitlines()
        self.made = []
        self.scopes = []  # "scope", "inline", "internal" or "body", outermost first.
        self.parentheses = 0
        self.statement = ""
        self.began = 0         # Where in `made` the statement does.
        self.told = False      # Something says what it is.
        self.directive = False  # Goes on on the next line.
        self.function = None   # Where the one whose body this is begins,
        self.calls = []        # and whom of the C API it calls.

    def documents(self):
        return "body" not in self.scopes and self.parentheses == 0

    def run(self):
        at = 0
        while at < len(self.lines):
            code, comment = comment_at(self.lines, at)
            if comment is None:
                self.code(code)
                at += 1
                continue
            if code.strip():
                self.behind(code, comment)
            else:
                self.above(comment)
            at = comment.last + 1
        return "\n".join(self.made) + "\n"

    def above(self, comment):
        after = (self.lines[comment.last + 1].strip()
                 if comment.last + 1 < len(self.lines) else "")
        first = not self.made
        if not self.documents() or HEADING.match(comment.text[0].strip()):
            self.plain(comment)
        elif first or (not after and not self.statement):
            self.put(comment, "/** \\file\n")
        elif after and not re.match(
                r"}|#(?! *define)|(private|public):|inline namespace", after):
            self.put(comment, "/** ")
        else:
            self.plain(comment)

    def put(self, comment, opening):
        made = (opening + "\n".join(rendered(comment.text)) + " */").split("\n")
        self.told = True
        # As many lines as there were, so that warnings name the right one.
        made += [""] * (comment.last - comment.first + 1 - len(made))
        self.made += made

    def plain(self, comment):
        self.made += [""] * (comment.last - comment.first + 1)

    def behind(self, code, comment):
        text = "NOLINT" not in comment.text[0] and " ".join(
            rendered(comment.text))
        ends = code.rstrip()
        if not self.documents() or re.match(
                r"\s*(}|#(?! *define))", ends):
            text = ""
        began = self.began if self.statement else len(self.made)
        self.told = self.told or bool(text)
        self.code(code)
        if text and ends.endswith("{"):  # Of what begins here.
            self.made[began] = f"/** {text} */ {self.made[began]}"
        elif text:
            self.made[-1] += f" /**< {text} */"
        self.made += [""] * (comment.last - comment.first)

    def code(self, line):
        if not self.statement:
            self.began = len(self.made)
        self.made.append(line)
        if self.directive or re.match(r"\s*#", line):
            self.directive = line.endswith("\\")
            return
        # hoist.h also hands their names on: Call(hoist_plan_check).
        self.calls += re.findall(r"\b(hoist_\w+)[(,)]", line)
        text = line if 'extern "C"' in line else re.sub(QUOTED, "0", line)
        for mark in re.findall(r"[^{}();]+|.", text + " "):
            if mark == "{":
                self.open()
            elif mark == "}":
                self.close()
            elif mark == ";" and self.parentheses == 0:
                self.end()
            else:
                self.parentheses += {"(": 1, ")": -1}.get(mark, 0)
                self.statement += mark
        if re.fullmatch(r"\s*(public|private|protected):\s*", self.statement):
            self.statement = ""
        self.statement = self.statement.lstrip()

    def end(self):
        self.statement = ""
        if self.documents():
            self.told, self.calls = False, []

    def open(self):
        opened = re.sub(r"^(\s*template\s*<[^{}]*?>\s*)+(?=struct|class)", "",
                        self.statement.strip())
        if opened == "inline namespace v0":
            self.scopes.append("inline")
            self.made[-1] = ""
        elif opened == "namespace internal":
            self.scopes.append("internal")
            self.made[-1] = "/** \\cond */ " + self.made[-1]
        elif SCOPE.match(opened):
            self.scopes.append("scope")
        else:
            if self.documents():
                self.function = None if self.told else self.began
            self.scopes.append("body")
            return
        self.end()

    def close(self):
        closed = self.scopes.pop()
        calls = sorted(set(self.calls))
        if closed == "body" and self.documents() and self.function is not None:
            if calls:
                see = ", ".join(said(name) for name in calls)
                self.made[self.function] = (f"/** See {see}. */ "
                                            + self.made[self.function])
        self.end()
        if closed == "inline":
            self.made[-1] = ""
        elif closed == "internal":
            self.made[-1] += " /** \\endcond */"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(Filter(pathlib.Path(sys.argv[1]).read_text()).run(), end="")
