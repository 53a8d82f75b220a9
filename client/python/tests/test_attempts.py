"""The tests' own rules: planted ones run under the tree's conftest.py."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLANTED = """
import pathlib
import pytest

def attempt(name):
    path = pathlib.Path(__file__).with_name(name)
    path.write_text(str(int(path.read_text()) + 1 if path.exists() else 1))
    return int(path.read_text())

@pytest.fixture
def late():
    yield
    assert attempt("end") == 2

@pytest.mark.real_time
@pytest.mark.parametrize("case", ["a b"])
def test_once(case):
    assert attempt("once") == 2, "it was late"

@pytest.mark.real_time
def test_once_at_its_end(late):
    pass

@pytest.mark.real_time
def test_never():
    assert attempt("never") == 3

def test_exact():
    assert attempt("exact") == 2

def test_works():
    sum(range(4_000_000))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> str:
    """By scripts/tally.py, of the planted tests."""
    pytest.importorskip("pytest_rerunfailures")
    folder = tmp_path_factory.mktemp("planted")
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(ROOT / name, folder)
    (folder / "test_planted.py").write_text(PLANTED)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
           "-p", "no:xdist", "--junit-xml", "of.xml"]
    subprocess.run(run, cwd=folder, stdout=subprocess.DEVNULL)
    tally = [sys.executable, str(ROOT / "scripts" / "tally.py"), "of.xml"]
    text = subprocess.run(tally, cwd=folder, capture_output=True,
                          text=True).stdout
    return text + (folder / "of.xml").read_text()


def test_what_real_time_decides_has_a_second_attempt_and_is_reported(said):
    assert "FLAKY   test_once[a b]  (of.xml): test_planted.py:18: " in said
    assert ": AssertionError: it was late\n" in said
    assert "FLAKY   test_once_at_its_end" in said
    assert "\n2 flaky\n3 passed, 2 failed, 0 skipped\n" in said


def test_two_attempts_that_fail_are_a_failure(said):
    assert "FAILED  test_never" in said


def test_no_other_test_has_a_second_attempt(said):
    assert "FAILED  test_exact" in said


def test_each_says_how_much_cpu_it_took(said):
    assert said.count('name="cpu_seconds"') == 5 + 3  # Attempts.
