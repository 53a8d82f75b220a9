"""The package's types hold together, and callers' mistakes are refused."""

from __future__ import annotations

import ast
import collections
import inspect
import pathlib
import re
import typing

import pytest

torch = pytest.importorskip("torch")
api = pytest.importorskip("mypy.api")

import hoist  # noqa: E402
import typing_extensions  # noqa: E402
from hoist._plan import PlanTerms  # noqa: E402
from hoist.nn._api.options import (AttachOptions, LoadOptions,  # noqa: E402
                                     Wanted)

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "hoist"
PINNED = PACKAGE.parents[2] / "scripts" / "python-torch-requirements.txt"
WITHOUT_TYPES = ("accelerate", "diffusers", "ray", "sglang", "tqdm",
                 "transformer_engine", "transformers", "triton", "vllm")
CALLERS = pathlib.Path(__file__).resolve().parent / "callers"


def need_the_pinned_torch() -> None:
    # What mypy says depends on torch's own annotations.
    version = torch.__version__.partition("+")[0]
    if f"torch=={version}\n" not in PINNED.read_text():
        pytest.skip(f"torch {version} is not the one of {PINNED.name}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("mypy"))


def test_mypy_has_nothing_to_say(cache, monkeypatch, tmp_path):
    need_the_pinned_torch()
    monkeypatch.chdir(PACKAGE.parent)
    # Much of torch is untyped; what hoist gives away is not. Of hoist alone:
    # with torch's own modules under other options the callers' check, below,
    # would read them all again.
    options = tmp_path / "mypy.ini"
    options.write_text("""[mypy]
[mypy-hoist.*]
disallow_untyped_calls = False
[mypy-%s]
ignore_missing_imports = True
""" % ",".join(f"{name}.*" for name in WITHOUT_TYPES))
    said, errors, code = api.run([
        "--strict", "--config-file", str(options), "--python-version", "3.10",
        "--cache-dir", cache, "hoist"])
    assert code == 0, said + errors


def test_what_mypy_is_told_to_ignore_is_named():
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert line.count("type: ignore") == line.count(
                "type: ignore["), f"{path}:{number}"


# Callers.


Said = dict[tuple[str, int], set[str]]  # Codes by a file's name and line.


@pytest.fixture(scope="module")
def said(cache) -> typing.Callable[..., Said]:
    """What mypy --strict says of the callers' files."""

    def check(*options: str) -> Said:
        with pytest.MonkeyPatch.context() as patch:
            # Not as a part of this package: as what is installed, its own
            # lines are no caller's business.
            patch.chdir(CALLERS)
            patch.setenv("MYPYPATH", str(PACKAGE.parent))
            text, errors, code = api.run([
                "--strict", "--python-version", "3.10", "--cache-dir", cache,
                "--no-pretty", "--show-error-codes", "--hide-error-context",
                *options, "right.py", "wrong.py"])
        assert code == 1, text + errors  # Of wrong.py at least.
        found: Said = collections.defaultdict(set)
        for path, line, kind in re.findall(
                r"^(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", text, re.M):
            found[path, int(line)].add(kind)
        return found

    return check


def mistakes(with_torch: bool) -> Said:
    """What wrong.py says of itself."""
    found: Said = {}
    text = (CALLERS / "wrong.py").read_text()
    for number, line in enumerate(text.splitlines(), 1):
        marked = re.search(r"  # ([\w-]+)(, torch)?$", line)
        if marked and (with_torch or not marked[2]):
            found["wrong.py", number] = {marked[1]}
    return found


def test_callers_with_torch_see_real_signatures(said):
    need_the_pinned_torch()
    assert said() == mistakes(with_torch=True)


def test_callers_without_torch_miss_nothing_but_torch(said):
    found = said("--no-site-packages")
    missing = {place for place, kinds in found.items()
               if "import-not-found" in kinds}
    lines = {name: (CALLERS / name).read_text().splitlines()
             for name in ("right.py", "wrong.py")}
    assert {name for name, _ in missing} == set(lines)
    for name, line in missing:
        assert re.match(r"(import|from) torch\b", lines[name][line - 1])
    rest = {place: kinds for place, kinds in found.items()
            if place not in missing}
    assert rest == mistakes(with_torch=False)


# Lists that say the same thing.


def imported_for_type_checkers() -> set[str]:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    branch = next(one for one in tree.body if isinstance(one, ast.If)
                  and ast.unparse(one.test) == "TYPE_CHECKING")
    return {name.asname for one in branch.body
            if isinstance(one, ast.ImportFrom) for name in one.names}


def test_type_checkers_see_the_names_that_are_imported_late():
    late = hoist._NN | hoist._ACTIVATIONS | hoist._MODULES
    assert imported_for_type_checkers() == late
    assert late <= set(dir(hoist))
    assert hoist._NN <= set(hoist.nn.__all__)
    assert hoist._ACTIVATIONS == set(hoist.activations.__all__)
    for name in late:
        assert getattr(hoist, name) is not None


@pytest.mark.parametrize("function, options", [
    (hoist.attach, AttachOptions),
    (hoist.load, LoadOptions)], ids=["attach", "load"])
def test_options_that_are_passed_on_are_those_that_are_taken(function,
                                                             options):
    hints = typing.get_type_hints(function, localns={
        "Unpack": typing_extensions.Unpack})
    taken = {name for name, one in
             inspect.signature(function).parameters.items()
             if one.kind is inspect.Parameter.KEYWORD_ONLY}
    assert hints["terms"] == typing_extensions.Unpack[PlanTerms]
    assert typing.get_type_hints(options) == {
        **{name: hints[name] for name in taken},
        **typing.get_type_hints(PlanTerms)}


def test_what_is_wanted_of_attach_is_what_it_takes():
    fields = [name for name in Wanted.__annotations__]
    assert set(fields) == {"budget", *AttachOptions.__annotations__}


@pytest.mark.parametrize("function", [hoist.attach, hoist.load])
def test_what_is_not_given_is_wanted_as_attach_and_load_have_it(function):
    session = typing.cast(hoist.Session, object())
    theirs = {name: one.default for name, one in
              inspect.signature(function).parameters.items()
              if name in AttachOptions.__annotations__}
    assert Wanted.of(None, {"session": session}) == Wanted.of(
        None, {**theirs, "session": session})
