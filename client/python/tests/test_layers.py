"""The package's modules import each other one way: no circles, also not for
type checkers or within functions."""

from __future__ import annotations

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "hoist"


def name_of(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def imported(text: str, package: str) -> set[str]:
    """Modules of ours that the text of a module of `package` imports."""
    found = set()
    for one in ast.walk(ast.parse(text)):
        if isinstance(one, ast.Import):
            found |= {name.name for name in one.names}
        elif isinstance(one, ast.ImportFrom):
            base = package.split(".")[:len(package.split(".")) + 1 - one.level]
            source = ".".join([*(base if one.level else []),
                               *filter(None, [one.module])])
            for name in one.names:
                # A module of a package, or what a module has.
                whole = f"{source}.{name.name}"
                found.add(whole if whole in MODULES else source)
    return found & set(MODULES)


def graph() -> dict[str, set[str]]:
    return {name: imported(path.read_text(), name if path.name == "__init__.py"
                           else name.rpartition(".")[0]) - {name}
            for name, path in MODULES.items()}


def test_imports_go_one_way():
    # `import hoist` has all of the package's names, imported late.
    below = {name: found - {"hoist"} for name, found in graph().items()
             if name != "hoist"}
    assert below["hoist.nn._attachment"] >= {"hoist.nn._hooks", "hoist._model"}
    graphlib.TopologicalSorter(below).prepare()


def test_a_circle_would_be_found():
    below = {"hoist._plan": {"hoist._tensor"},
             "hoist._tensor": imported(
                 "def f():\n    from ._plan import Plan\n", "hoist")}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(below).prepare()


# Each folder with what it sees; modules beside them see none of these.
FOLDERS = {"hoist.checkpoint": set(), "hoist.nn": {"hoist.checkpoint"},
           "hoist.activations": {"hoist.nn"},
           "hoist.ray": set(), "hoist.serving": {"hoist.checkpoint"},
           "hoist.sglang": {"hoist.checkpoint", "hoist.serving"},
           "hoist.vllm": {"hoist.checkpoint", "hoist.nn", "hoist.serving"},
           "hoist.compat": {"hoist.activations", "hoist.checkpoint",
                            "hoist.nn"}}


def test_folders_see_what_is_below_them():
    def folder(name: str) -> str:
        package = name if MODULES[name].name == "__init__.py" else (
            name.rpartition(".")[0])
        return "" if package == "hoist" else package

    seen: dict[str, set[str]] = {name: set() for name in ["", *FOLDERS]}
    for name, found in graph().items():
        if name != "hoist":  # It has all names, imported late.
            seen[folder(name)] |= set(map(folder, found))
    assert {name: found - {"", name} for name, found in seen.items()} == {
        "": set(), **FOLDERS}
