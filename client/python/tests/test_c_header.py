"""hoist/_c.py is what the C headers declare, and what a C compiler makes of them.

ctypes would read a field at another place, or a number of another size, without
a word.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from hoist import _c
from hoist import _library as lib

PYTHON = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = PYTHON.parent / "include"
TEXT = "".join(part.read_text()
               for part in sorted((INCLUDE / "hoist" / "c").glob("*.h")))
STRUCTS = {kind.__name__: kind for kind in vars(_c).values()
           if isinstance(kind, type) and issubclass(kind, c.Structure)}
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None,
                                    reason="there is no C compiler")


def test_it_is_what_declare_writes():
    spec = importlib.util.spec_from_file_location("declare",
                                                  PYTHON / "declare.py")
    assert spec is not None and spec.loader is not None
    declare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(declare)
    assert pathlib.Path(_c.__file__).read_text() == declare.generate(), (
        "run client/python/declare.py")


def test_the_headers_are_read_as_a_whole():
    assert len(_c.CALLS) == TEXT.count("\nHOIST_API ")
    assert len(STRUCTS) == len(re.findall(r"^typedef struct \w+ \{", TEXT,
                                          re.M))
    constants = set(re.findall(r"^  HOIST_(\w+) =", TEXT, re.M))
    assert constants == {name for name in vars(_c) if name.isupper()} - {
        "CALLS"}


def test_libhoist_has_each_call():
    for name in _c.CALLS:
        assert getattr(lib.load(), "hoist_" + name), name


@pytest.mark.parametrize("values", [[], [""], ["a", "", "ü#1", "\udcff"]])
def test_texts_are_c_strings(values):
    texts = lib.Texts(values)
    assert [c.string_at(one) for one in texts.addresses] == [
        os.fsencode(one) for one in values]
    assert list(texts.pointers) == texts.addresses


def test_texts_hold_no_nul():
    with pytest.raises(ValueError, match="'b.x00'"):
        lib.Texts(["a", "b\0"])


def compiled(tmp_path: pathlib.Path, body: str) -> str:
    """What a C program of these statements prints."""
    source = tmp_path / "ask.c"
    source.write_text("#include <stddef.h>\n#include <stdio.h>\n"
                      '#include "hoist/hoist_c.h"\n'
                      "int main(void) {\n" + body + "return 0; }\n")
    subprocess.run(["cc", "-Werror", f"-I{INCLUDE}", "-o", tmp_path / "ask",
                    source], check=True)
    return subprocess.run([tmp_path / "ask"], check=True, capture_output=True,
                          text=True).stdout


def in_c(kind: str) -> str:
    return "hoist" + re.sub(r"[A-Z]", lambda one: "_" + one[0].lower(), kind)


@needs_compiler
def test_fields_and_constants_are_the_compilers(tmp_path):
    ask, ours = [], []
    for name, kind in STRUCTS.items():
        ask.append(f'printf("%zu\\n", sizeof({in_c(name)}));')
        ours.append(c.sizeof(kind))
        for field, *_ in kind._fields_:
            ask.append(f'printf("%zu %zu\\n", offsetof({in_c(name)}, {field}),'
                       f" sizeof((({in_c(name)}*)0)->{field}));")
            place = getattr(kind, field)
            ours.append(f"{place.offset} {place.size}")
    for name, value in vars(_c).items():
        if name.isupper() and name != "CALLS":
            ask.append(f'printf("%d\\n", HOIST_{name});')
            ours.append(value)
    assert compiled(tmp_path, "\n".join(ask)).splitlines() == [
        str(one) for one in ours]


def test_the_headers_version_is_the_librarys():
    found = dict(re.findall(r"#define HOIST_VERSION_(\w+) (\d+)", TEXT))
    assert lib.library_version() == ".".join(
        found[part] for part in ("MAJOR", "MINOR", "PATCH"))


@needs_compiler
@pytest.mark.parametrize("standard", ["c89", "c99", "c17"])
def test_the_header_is_c(tmp_path, standard):
    source = tmp_path / "user.c"
    source.write_text('#include "hoist/hoist_c.h"\n'
                      "int user(void) { return HOIST_VERSION_MAJOR; }\n")
    subprocess.run(["cc", f"-std={standard}", "-pedantic", "-Wall", "-Wextra",
                    "-Werror", "-fsyntax-only", f"-I{INCLUDE}", str(source)],
                   check=True)
