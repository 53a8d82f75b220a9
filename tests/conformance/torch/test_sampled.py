"""The tests' own rules: which cases CI has of a test, and which the night."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import sampled

CONFTEST = """
import pytest
import sampled

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    sampled.sample_combinations(items)

def pytest_configure(config):
    config.addinivalue_line("markers", "nightly")
"""
CASES = """
import pytest
from sampled import sampled

@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["a", "b"])
@pytest.mark.parametrize("way", sampled(["to", "fro"], "to"))
def test_product(size, kind, way):
    pass

@pytest.mark.parametrize("size", [1, 2, 3])
def test_one(size):
    pass

@pytest.mark.parametrize(("size", "kind"), [(1, "a"), (1, "b"), (2, "a")])
def test_pairs(size, kind):
    pass

@pytest.mark.parametrize(("size", "kind"), sampled(
    [(1, "a"), pytest.param(1, "b", id="it"), (2, "a")], (1, "b"), (2, "a")))
def test_named(size, kind):
    pass
"""


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Those that pytest finds, by its options."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copy(pathlib.Path(sampled.__file__), folder)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_planted.py").write_text(CASES)

    def find(*options: str) -> list[str]:
        run = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p",
               "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(folder)]
        own = {**os.environ, "PYTEST_ADDOPTS": ""}
        text = subprocess.run([*run, *options], cwd=folder, capture_output=True,
                              text=True, env=own).stdout
        return [line.split("::")[1] for line in text.splitlines()
                if "::" in line]

    return find


def test_ci_has_each_value_and_the_night_each_combination(cases):
    found = cases("-m", "not nightly")
    assert [one for one in found if "product" in one] == [
        "test_product[to-a-1]", "test_product[to-a-3]", "test_product[to-b-2]"]
    assert sum("one" in one or "pairs" in one for one in found) == 6
    assert [one for one in found if "named" in one] == [
        "test_named[it]", "test_named[2-a]"]
    assert len(cases()) == 12 + 3 + 3 + 3


def test_what_is_to_stay_is_one_of_the_values():
    with pytest.raises(AssertionError, match="no .*three"):
        sampled.sampled(["one", "two"], "three")
