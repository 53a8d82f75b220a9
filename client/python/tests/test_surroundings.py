"""What hoist says where a package that it needs is not installed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import types
import venv

import pytest

import hoist
from hoist._surroundings import is_installed, require

PACKAGE = pathlib.Path(hoist.__file__).parent
# What asks for torch in words of its own, and the names that it gives then.
NEEDS_TORCH = ["hoist.attach", "hoist.load", "hoist.detach", "hoist.stage",
               "hoist.stats", "hoist.set_budget", "hoist.check",
               "hoist.AttachStats", "hoist.compat", "hoist.nn"]
BARE = """
import hoist
assert {"attach", "load", "compat", "nn"} <= set(dir(hoist))
for name in %r:
    try:
        eval(name)
    except hoist.MissingExtra as error:
        assert isinstance(error, (ImportError, hoist.HoistError))
        assert error.name == "torch"
        print(error)
    else:
        print(name, "is there")
try:
    from hoist import attach
except ImportError as error:
    print(error)
try:
    from hoist.compat import cpu_offload
except ImportError as error:
    print(error)
for call in (hoist.Tensor.numpy, hoist.Tensor.torch):
    try:
        call(hoist.Tensor(None, None, 0))
    except hoist.MissingExtra as error:
        print(error)
""" % NEEDS_TORCH


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> pathlib.Path:
    """A Python that has nothing but itself."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    return folder / "venv" / "bin" / "python"


def run(python: pathlib.Path, path: list[pathlib.Path],
        script: str) -> list[str]:
    done = subprocess.run(
        [python, "-B", "-c", script], check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=python.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))})
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def says(asked: str, name: str) -> str:
    return (f"{asked} needs {name}; install it: pip install "
            f"'hoist-client[{name}]'")


@pytest.mark.parametrize("folder", [False, True],
                         ids=["no torch", "a folder called torch"])
def test_without_torch_each_call_says_how_to_get_it(bare, tmp_path, folder):
    if folder:
        (tmp_path / "torch" / "nn").mkdir(parents=True)
        (tmp_path / "numpy").mkdir()
    assert run(bare, [tmp_path, PACKAGE.parent], BARE) == [
        *(says(name, "torch") for name in NEEDS_TORCH),
        says("hoist.attach", "torch"), says("hoist.compat", "torch"),
        says("hoist.Tensor.numpy", "numpy"),
        says("hoist.Tensor.torch", "torch")]


def test_a_folder_that_was_imported_already_is_no_package(bare, tmp_path):
    (tmp_path / "torch").mkdir()
    assert run(bare, [tmp_path, PACKAGE.parent], (
        "import torch, hoist\n"
        "try: hoist.attach\n"
        "except hoist.MissingExtra as error: print(error)")) == [
            says("hoist.attach", "torch")]


def test_a_package_is_installed_whether_it_was_imported_or_not(
        tmp_path, monkeypatch):
    (tmp_path / "hoist_test_one").mkdir()
    (tmp_path / "hoist_test_one" / "__init__.py").touch()
    (tmp_path / "hoist_test_two.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("hoist_test_one", "hoist_test_two"):
        assert is_installed(name)
        importlib.import_module(name)
        assert is_installed(name)
        require(name, "this test")
        monkeypatch.setitem(sys.modules, name, None)
        assert not is_installed(name)
    # As tests put one in place, without a specification.
    monkeypatch.setitem(sys.modules, "hoist_test_made",
                        types.ModuleType("hoist_test_made"))
    assert is_installed("hoist_test_made")
    assert not is_installed("hoist_test_nowhere")


def test_a_missing_extra_is_an_import_error_and_hoists():
    with pytest.raises(ImportError) as caught:
        require("hoist_test_nowhere", "this test")
    assert isinstance(caught.value, hoist.FailedPrecondition)
    assert str(caught.value) == says("this test", "hoist_test_nowhere")
    assert caught.value.name == "hoist_test_nowhere"


@pytest.mark.parametrize("arguments, environment, shown", [
    (["worker.py"], {}, "worker.py"),
    (["-m", "serving"], {}, "serving"),
    (["-c", "PROGRAM"], {}, "python"),
    (["worker.py"], {"HOIST_CLIENT_NAME": "llama-3"}, "llama-3"),
], ids=["script", "package", "-c", "environment"])
def test_a_session_is_shown_by_the_programs_name(tmp_path, arguments,
                                                 environment, shown):
    """Every worker's own program is "python"."""
    program = "from hoist import _session; print(_session._program_name())"
    (tmp_path / "worker.py").write_text(program)
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "__main__.py").write_text(program)
    arguments = [program if one == "PROGRAM" else one for one in arguments]
    found = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, text=True, check=True,
        capture_output=True, env={**os.environ, **environment,
                                  "PYTHONPATH": str(PACKAGE.parent)})
    assert found.stdout.strip() == shown
