"""The rule Prose: short sentences, and lines that fit beside each other.

prose.py [PATH...] lists the 100 longest sentences of those files, or of all.
"""

import pathlib
import re
import sys
import textwrap

import rules

WORDS = 30
COLUMNS = 100
# Printed by scripts/screens.sh.
GENERATED = ("deploy/SCREENS.md",)
HASHED = (".sh", ".cmake", "CMakeLists.txt")
COMMENTED = rules.CODE + (".proto", ".py") + HASHED

# A comment, or what may look like one inside: strings, characters, raw strings.
C_TOKEN = re.compile(
    r'(?P<line>//[^\n]*)|/\*(?P<block>.*?)\*/|R"(?P<raw>\w*)\(.*?\)(?P=raw)"'
    r'''|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+\'''', re.S)
PYTHON_TOKEN = re.compile(
    r'''(?P<comment>#(?!!)[^\n]*)|"""(?P<doc>(?:\\.|[^\\])*?)"""|'{3}.*?'{3}'''
    r'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*[']''', re.S)
ITEM = re.compile(r"([-*+] +|\d+[.)] +)\S")
LABEL = re.compile(r"(\w+( \w+)?: +)\S")  # "Threads:  one.", "name: its use."
CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
SENTENCE_END = re.compile(r"""(?<=[.!?:;])[)\]"'*_]*\s+""")


def sentences(text):
    """(line within `text`, words) of each sentence of one paragraph."""
    def one_word(match):
        return "Code" + "\n" * match.group(0).count("\n")
    text = CODE_SPAN.sub(one_word, text)
    text = re.sub(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"<!--.*?-->", one_word, text, flags=re.S)
    at = 0
    for end in [match.end() for match in SENTENCE_END.finditer(text)] + [
            len(text)]:
        sentence = text[at:end]
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if words:
            lead = len(sentence) - len(sentence.lstrip())
            yield text.count("\n", 0, at + lead), words
        at = end


class Paragraphs:
    """Gathers lines, and yields (number of the first, text) of paragraphs."""

    def __init__(self):
        self.found = []
        self._lines = []

    def add(self, number, line):
        if not self._lines:
            self._first = number
        self._lines.append(line)

    def end(self):
        if self._lines:
            self.found.append((self._first, "\n".join(self._lines)))
        self._lines = []


def of_markdown(text):
    """Paragraphs, list items and cells of tables; no code."""
    out = Paragraphs()
    fence, items, blank, code = None, [], True, False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if fence or re.match(r"(```|~~~)", bare):
            out.end()
            if not fence:
                fence = bare[:3]
            elif bare.startswith(fence):
                fence = None
            continue
        if not bare:
            out.end()
            blank = True
            continue
        while items and blank and indent < items[-1]:
            items.pop()
        code = indent >= (items[-1] if items else 0) + 4 and (blank or code)
        blank = False
        item = ITEM.match(bare)
        if code:
            continue
        if bare.startswith("|"):
            out.end()
            for cell in re.split(r"(?<!\\)\|", CODE_SPAN.sub("Code", bare)):
                out.add(number, cell)
                out.end()
        elif re.match(r"#+ |[-=*_]{3,}$", bare):
            out.end()
            out.add(number, bare)
            out.end()
        else:
            if item:
                out.end()
                while items and indent < items[-1]:
                    items.pop()
                items.append(indent + len(item.group(1)))
            out.add(number, bare[len(item.group(1)):] if item else bare)
    out.end()
    return out.found


def indent_of(line):
    return len(line) - len(line.lstrip())


def hanging(lines, at):
    """(column, text) of the item that line `at` begins: a list item, or a label
    whose next line stands under its text or four to the right. Else None."""
    bare, indent = lines[at].strip(), indent_of(lines[at])
    item = ITEM.match(bare)
    if item:
        return indent + len(item.group(1)), bare[len(item.group(1)):]
    label = LABEL.match(bare)
    after = lines[at + 1] if label and at + 1 < len(lines) else ""
    if after.strip() and indent_of(after) - indent in (4, len(label.group(1))):
        return indent_of(after), bare[len(label.group(1)):]
    return None


def of_comment(number, lines):
    """Paragraphs and items of a comment or docstring whose first line is
    `number`; neither layouts nor what is indented."""
    out = Paragraphs()
    margin = min((indent_of(line) for line in lines if line.strip()), default=0)
    text_at = margin
    for at, line in enumerate(lines):
        bare = line.strip()
        indent = indent_of(line)
        item = hanging(lines, at)
        if item and (indent <= text_at or ITEM.match(bare)):
            out.end()
            text_at = item[0]
            out.add(number + at, item[1])
        elif not bare:
            out.end()
            text_at = margin
        elif indent >= text_at + 2 or re.search(r"\S {2,}\S", bare):
            out.end()
        else:
            if indent < text_at:
                out.end()
                text_at = margin
            out.add(number + at, bare)
    out.end()
    return out.found


def of_blocks(comments):
    """Paragraphs of comments [(line, column, text)], of which those that begin
    in one column of successive lines are one."""
    found, block, last = [], [], None
    for number, column, text, alone in comments:
        if block and not (alone and (number, column) == (
                last[0] + 1, last[1])):
            found += of_comment(*block)
            block = []
        if not block:
            block = [number, []]
        block[1].append(text)
        last = (number, column)
    return found + (of_comment(*block) if block else [])


def of_c(text):
    single, found = [], []
    for match in C_TOKEN.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        before = text[match.start() - column + 1:match.start()]
        if match["line"]:
            single.append((number, column, re.sub("^///?<?", "", match["line"]),
                           not before.strip()))
        elif match["block"]:
            lines = [re.sub(r"^\s*\*(?=\s|$)", "", line)
                     for line in match["block"].splitlines()]
            lines[0] = " " + lines[0].lstrip("*!< ")
            found += of_comment(number, lines)
    return of_blocks(single) + found


def of_python(text):
    single, found = [], []
    for match in PYTHON_TOKEN.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        before = text[start:match.start()].strip()
        number = text.count("\n", 0, start) + 1
        if match["comment"]:
            single.append((number, match.start() - start, match["comment"][1:],
                           not before))
        # A docstring stands behind a colon, or first in the file.
        elif match["doc"] and not before and re.search(
                r"(:|^)[ \t]*(#[^\n]*\s*)*\s*\Z", text[max(0, start - 200):start]):
            first, *rest = match["doc"].splitlines()
            rest = textwrap.dedent("\n".join(rest)).split("\n")
            found += of_comment(number, [first.strip(), *rest])
    return of_blocks(single) + found


def of_hashed(text):
    return of_blocks(
        (number, line.index("#"), line.lstrip()[1:], True)
        for number, line in enumerate(text.splitlines(), 1)
        if re.match(r"\s*#(?!!)", line))


def paragraphs(path, text):
    if path.endswith(".md"):
        return of_markdown(text)
    if path.endswith(".py"):
        return of_python(text)
    return of_hashed(text) if path.endswith(HASHED) else of_c(text)


def text_lines(path, text):
    """(number, line) of Markdown's text, or of comments."""
    lines = text.splitlines()
    if not path.endswith(".md"):
        for first, paragraph in paragraphs(path, text):
            for number in range(first, first + paragraph.count("\n") + 1):
                yield number, lines[number - 1]
        return
    fence = False
    for number, line in enumerate(lines, 1):
        if re.match(r"\s*(```|~~~)", line):
            fence = not fence
        elif not fence and not re.match(r"    | *\|", line):
            yield number, line


def wide_lines(path, text):
    link = re.compile(r"([-*] +)?(\S*\[[^\]]*\]\([^)]*\)\S*"
                      r"|\[[^\]]*\]: \S+|\W*\w+://\S+)")
    return [f"{path}:{number}: {len(line)} columns, the limit is {COLUMNS}"
            for number, line in text_lines(path, text)
            if len(line) > COLUMNS and not link.fullmatch(line.strip())]


def read(tree):
    for path, text in tree.code(ends=COMMENTED + (".md",)):
        if "/." not in path:
            yield path, text


def prose(tree):
    """No sentence of Markdown, a comment or a docstring has more than 30 words,
    and no line of them more than 100 columns.

    A sentence ends at . ! ? : or ; and a code span is one word. Not seen: lines
    with two spaces inside, or indented by two more than the text around them,
    which are layouts; comments after code in a shell script or CMake; strings.
    Tables, code and links may be wide. "e.g. " ends a sentence.
    """
    found = []
    for path, text in read(tree):
        for first, paragraph in paragraphs(path, text):
            for line, words in sentences(paragraph):
                if len(words) > WORDS:
                    found.append(f"{path}:{first + line}: {len(words)} words, "
                                 f"the limit is {WORDS}: "
                                 f"{' '.join(words[:12])} ...")
        if path not in GENERATED:
            found += wide_lines(path, text)
    return found


def main():
    tree = rules.Tree.of_folder(pathlib.Path(__file__).resolve().parents[2], {})
    lengths = [(len(words), f"{path}:{first + line}", " ".join(words))
               for path, text in read(tree)
               if not sys.argv[1:] or path in sys.argv[1:]
               for first, paragraph in paragraphs(path, text)
               for line, words in sentences(paragraph)]
    for length, where, text in sorted(lengths, reverse=True)[:100]:
        print(f"{length:3} {where}: {text}")


if __name__ == "__main__":
    main()
