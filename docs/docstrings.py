"""Docstrings and comments of the Python package, as Sphinx is to have them.

Docstrings are prose; a paragraph of "name: text" that begins with a parameter's
name is a list of parameters, what is set in by four is code, and what is in
backticks is code. Public names, "hoist.attach", become references. Nothing else
is markup. What an attribute is a comment says, behind it or above.
"""

import inspect
import re

from sphinx.pycode import ModuleAnalyzer

ENTRY = re.compile(r"^(\w+): (.*)$")
TOKEN = re.compile(r"`([^`]+)`|\b(hoist(?:\.[A-Za-z]\w*)+)|[\\`*|_]")
FIELD = r"(?P<field> +(?:self\.)?[a-z]\w*(?:: [^=#]+?)?(?: = .+?)?)"


def prose(text):
    """As reStructuredText."""
    def marked(found):
        if found[1]:
            made = f"``{found[1]}``"
        elif found[2]:
            made = f":py:obj:`{found[2]}`"
        else:
            return "\\" + found[0]
        after = text[found.end():found.end() + 1]
        return made + ("\\ " if after.isalnum() or after == "(" else "")
    return TOKEN.sub(marked, text)


def joined(lines):
    return prose(" ".join(line.strip() for line in lines))


def entries(lines, names):
    """[(name, lines)] if the paragraph begins with a parameter, else []."""
    found = []
    for line in lines:
        entry = ENTRY.match(line)
        if entry and entry[1] in names:
            found.append((entry[1], [entry[2]]))
        elif found and line.startswith("    "):
            found[-1][1].append(line)
        elif found:
            raise ValueError(f"neither a parameter nor set in: {line!r}")
        else:
            break
    return found


def paragraphs(lines):
    made = [[]]
    for line in lines:
        if line.strip():
            made[-1].append(line)
        elif made[-1]:
            made.append([])
    return [lines for lines in made if lines]


def converted(lines, names=()):
    """A docstring's lines; `names` are the parameters."""
    made = []
    for one in paragraphs(lines):
        listed = entries(one, names)
        if all(line.startswith("    ") for line in one):
            made += ["::", "", *one, ""]
        elif listed:
            made += [f":param {name}: {joined(text)}" for name, text in listed]
            made.append("")
        else:
            made += [joined(one), ""]
    return made


def parameters(what):
    try:
        return frozenset(inspect.signature(what).parameters)
    except (TypeError, ValueError):
        return frozenset()


def with_said_fields(text):
    """Source whose attributes' comments are those that Sphinx reads."""
    lines, made = text.splitlines(), []
    for line in lines:
        behind = re.fullmatch(FIELD + r"  # (?P<said>.+)", line)
        if behind and "noqa" not in behind["said"]:
            line = f"{behind['field']}  #: {prose(behind['said'])}"
        elif re.fullmatch(FIELD, line) and made:
            at = len(made)
            while re.match(r" +# ", made[at - 1]):
                at -= 1
                made[at] = re.sub(r"# (.*)",
                                  lambda said: "#: " + prose(said[1]), made[at])
        made.append(line)
    return "\n".join(made) + "\n"


def read_fields(package):
    """Has Sphinx find them, in all modules below this folder."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        ModuleAnalyzer.cache["module", name] = ModuleAnalyzer.for_string(
            with_said_fields(path.read_text()), name, str(path))
