"""What _library.py declares is what hoist_c.h declares: fields, calls, types.

ctypes would read a field at another place, or a number of another size, without
a word.
"""

from __future__ import annotations

import ctypes as c
import pathlib
import re
import shutil
import subprocess

import pytest

from hoist import _library as lib

HEADER = (pathlib.Path(__file__).resolve().parents[2] / "include" / "hoist"
          / "hoist_c.h")
# Of the parts that it includes.
TEXT = "".join(part.read_text()
               for part in sorted((HEADER.parent / "c").glob("*.h")))

SCALARS = {"int": c.c_int, "size_t": c.c_size_t, "uint8_t": c.c_uint8,
           "uint32_t": c.c_uint32, "int32_t": c.c_int32,
           "uint64_t": c.c_uint64, "int64_t": c.c_int64, "void": None,
           "hoist_stream": c.c_void_p}


def read_header() -> tuple[dict[str, list[tuple[str, str]]],
                           dict[str, tuple[str, list[str]]]]:
    """{struct: [(type, field)]} and {call: (result, arguments' types)}."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", TEXT, flags=re.S)
    structs = {
        name: [split(one) for one in body.split(";") if one.strip()]
        for body, name in re.findall(
            r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.S)}
    calls = {}
    for result, name, given in re.findall(
            r"HOIST_API ([\w\s*]+?)\b(hoist_\w+)\((.*?)\);", text, re.S):
        arguments = [] if given.strip() == "void" else [
            split(one)[0] for one in given.split(",")]
        calls[name] = words(result), arguments
    return structs, calls


def words(declared: str) -> str:
    """A type without spaces that say nothing."""
    return re.sub(r"\s*\*\s*", "*", " ".join(declared.split()))


def split(declared: str) -> tuple[str, str]:
    """"const char* name" -> ("const char*", "name")."""
    found = re.fullmatch(r"(.*?)(\w+)(\[\d+\])?", declared.strip(), re.S)
    assert found is not None, declared
    return words(found[1]) + (found[3] or ""), found[2]


STRUCTS, CALLS = read_header()
KINDS = {kind.__name__: kind for kind in vars(lib).values()
         if isinstance(kind, type) and issubclass(kind, c.Structure)}
# Names here that are not the header's in other letters.
NAMES = {"ArenaStatsRecord": "hoist_arena_stats",
         "CopierStatsRecord": "hoist_copier_stats",
         "InPlaceStatsRecord": "hoist_in_place_stats",
         "InPlaceTensorRecord": "hoist_in_place_tensor",
         "TensorRecord": "hoist_tensor_info",
         "PlanInfoRecord": "hoist_plan_info",
         "PlanStatsRecord": "hoist_plan_stats"}


def c_name(kind: str) -> str:
    return NAMES.get(kind) or "hoist" + re.sub(
        r"[A-Z]", lambda one: "_" + one[0].lower(), kind)


def as_ctypes(declared: str) -> object:
    """What ctypes calls a C type. A pointer to what only libhoist knows is one
    to anything."""
    declared = declared.removeprefix("const ").strip()
    if declared.endswith("]"):
        base, _, count = declared[:-1].partition("[")
        return as_ctypes(base) * int(count)  # type: ignore[operator]
    if not declared.endswith("*"):
        return SCALARS[declared]
    target = declared[:-1]
    if target.endswith("*const"):
        target = target.removesuffix("const")
    if target == "char":
        return c.c_char_p
    if target == "void" or (re.fullmatch(r"hoist_\w+", target)
                            and target not in STRUCTS):
        return c.c_void_p
    if target in STRUCTS:
        return c.POINTER(next(kind for name, kind in KINDS.items()
                              if c_name(name) == target))
    return c.POINTER(as_ctypes(target))


def same(declared: str, ours: object) -> bool:
    """Bytes may be taken as a string or as numbers."""
    expected = as_ctypes(declared)
    if expected == c.POINTER(c.c_uint8):
        return ours in (expected, c.c_char_p)
    return ours == expected


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_structure_has_the_headers_fields(kind):
    ours = [(name, of) for name, of in KINDS[kind]._fields_]
    declared = STRUCTS[c_name(kind)]
    assert [name for name, _ in ours] == [name for _, name in declared]
    for (name, of), (theirs, _) in zip(ours, declared):
        assert same(theirs, of), f"{kind}.{name} is {theirs} in the header"


@pytest.mark.parametrize("name", sorted({**lib._CALLS, **lib._PLAIN}))
def test_a_call_takes_and_gives_what_the_header_says(name):
    result, arguments = CALLS["hoist_" + name]
    if name in lib._CALLS:
        assert result == "int" and arguments.pop() == "hoist_error**"
    ours = lib._CALLS.get(name) or lib._PLAIN[name]
    if name in lib._PLAIN:
        assert same(result, ours[0]), f"it gives {result}"
    assert len(arguments) == len(ours[1])
    for at, (theirs, of) in enumerate(zip(arguments, ours[1])):
        assert same(theirs, of), f"argument {at} is {theirs} in the header"


def test_the_header_is_read_as_a_whole():
    assert len(CALLS) == TEXT.count("\nHOIST_API ")
    assert len(STRUCTS) == len(re.findall(r"^typedef struct \w+ \{", TEXT,
                                          re.M))
    assert {c_name(kind) for kind in KINDS} == set(STRUCTS)


def test_the_headers_version_is_the_librarys():
    found = dict(re.findall(r"#define HOIST_VERSION_(\w+) (\d+)", TEXT))
    assert lib.library_version() == ".".join(
        found[part] for part in ("MAJOR", "MINOR", "PATCH"))


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("standard", ["c89", "c99", "c17"])
def test_the_header_is_c(tmp_path, standard):
    source = tmp_path / "user.c"
    source.write_text('#include "hoist/hoist_c.h"\n'
                      "int user(void) { return HOIST_VERSION_MAJOR; }\n")
    subprocess.run(["cc", f"-std={standard}", "-pedantic", "-Wall", "-Wextra",
                    "-Werror", "-fsyntax-only", f"-I{HEADER.parents[1]}",
                    str(source)], check=True)
