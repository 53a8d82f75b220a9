#!/usr/bin/env python3
"""Writes hoist/_c.py, ctypes' declarations of libhoist's C API, from its headers.

    client/python/declare.py          writes it
    client/python/declare.py --print  prints it

The headers (include/hoist/c) keep to a shape that needs no C parser: one typedef a
struct, one declarator a field, HOIST_API before each call.
"""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Iterator

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = HERE.parent / "include" / "hoist" / "c"
OUT = HERE / "hoist" / "_c.py"
# In the order of their includes, as structs use those before them.
PARTS = ("base", "session", "model", "stage", "plan", "in_place",
         "fixed_mapping", "copy_permit", "arena", "attachment")

SCALARS = {"int": "c.c_int", "size_t": "c.c_size_t", "uint8_t": "c.c_uint8",
           "uint32_t": "c.c_uint32", "int32_t": "c.c_int32",
           "uint64_t": "c.c_uint64", "int64_t": "c.c_int64", "void": "None",
           "hoist_stream": "c.c_void_p"}

HEAD = '''"""libhoist's C API for ctypes. Written by declare.py from include/hoist/c.

A struct has its C name without `hoist_`, in the letters of a class; a constant
its own without `HOIST_`.
"""

from __future__ import annotations

import ctypes as c
from typing import Any
'''


def read() -> str:
    """The headers without comments."""
    assert {part.stem for part in HEADERS.glob("*.h")} == set(PARTS)
    return "".join(re.sub(r"/\*.*?\*/", "", (HEADERS / f"{part}.h").read_text(),
                          flags=re.S) for part in PARTS)


def split(declared: str) -> tuple[str, str, str]:
    """("const char*", "name", "16") of "const char* name[16]"."""
    found = re.fullmatch(r"(.*?)(\w+)(?:\[(\d+)\])?", declared.strip(), re.S)
    assert found is not None, declared
    return " ".join(found[1].split()), found[2], found[3] or ""


def class_name(name: str) -> str:
    return "".join(word.title() for word in
                   name.removeprefix("hoist_").split("_"))


def as_ctypes(declared: str, structs: set[str]) -> str:
    """A pointer to what only libhoist knows is one to anything."""
    pointers = declared.count("*")
    base = re.sub(r"\bconst\b|\*|\s", "", declared)
    if base in structs:
        named = class_name(base)
    elif base in SCALARS:
        named = SCALARS[base]
    elif base == "char":
        named, pointers = "c.c_char_p", pointers - 1
    else:  # An opaque handle.
        assert base.startswith("hoist_"), declared
        named, pointers = "c.c_void_p", pointers - 1
    if named == "None" and pointers:
        named, pointers = "c.c_void_p", pointers - 1
    for _ in range(pointers):
        named = f"c.POINTER({named})"
    return named


def wrapped(head: str, items: list[str], tail: str) -> str:
    """`head item, item, ... tail`, in lines of 79 with one indent."""
    one = head + ", ".join(items) + tail
    if len(one) <= 79:
        return one
    lines, line = [head.rstrip()], "   "
    for at, item in enumerate(items):
        piece = f" {item}" + (tail if at == len(items) - 1 else ",")
        if len(line + piece) > 79 and line.strip():
            lines.append(line)
            line = "   "
        line += piece
    return "\n".join([*lines, line])


def constants(text: str) -> Iterator[str]:
    for body in re.findall(r"\nenum \{(.*?)\};", text, re.S):
        for name, value in re.findall(r"HOIST_(\w+) = (-?\d+)", body):
            yield f"{name} = {value}"


def declarations(text: str) -> Iterator[str]:
    yield HEAD
    yield "\n".join(constants(text)) + "\n"
    structs: set[str] = set()
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text,
                                 re.S):
        fields = []
        for one in filter(str.strip, body.split(";")):
            declared, field, count = split(one)
            of = as_ctypes(declared, structs) + (f" * {count}" if count else "")
            fields.append(f'("{field}", {of})')
        structs.add(name)
        yield (f"\nclass {class_name(name)}(c.Structure):\n" +
               wrapped("    _fields_ = [", fields, "]").replace("\n", "\n    ") +
               "\n")
    yield ("\n# hoist_<name>: (result, arguments' types). Those that can fail give a code\n"
           "# and fill a last argument of type hoist_error**.\n"
           "CALLS: dict[str, tuple[Any, list[Any]]] = {")
    for result, name, given in re.findall(
            r"HOIST_API ([\w\s*]+?)\s*\b(hoist_\w+)\((.*?)\);", text, re.S):
        arguments = [] if given.strip() == "void" else [
            as_ctypes(split(one)[0], structs) for one in given.split(",")]
        yield wrapped(f'    "{name.removeprefix("hoist_")}": '
                      f"({as_ctypes(result, structs)}, [", arguments,
                      "]),").replace("\n", "\n    ")
    yield "}\n"


def generate() -> str:
    return "\n".join(declarations(read()))


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(generate(), end="")
    else:
        OUT.write_text(generate())
