"""The package's types hold together."""

from __future__ import annotations

import pathlib

import pytest

torch = pytest.importorskip("torch")
api = pytest.importorskip("mypy.api")

PACKAGE = pathlib.Path(__file__).resolve().parents[1] / "hoist"
PINNED = PACKAGE.parents[2] / "scripts" / "python-torch-requirements.txt"


def test_mypy_has_nothing_to_say(tmp_path, monkeypatch):
    # What it says depends on torch's own annotations.
    version = torch.__version__.partition("+")[0]
    if f"torch=={version}\n" not in PINNED.read_text():
        pytest.skip(f"torch {version} is not the one of {PINNED.name}")
    monkeypatch.chdir(PACKAGE.parent)
    said, errors, code = api.run([
        "--python-version", "3.10", "--disallow-untyped-defs",
        "--ignore-missing-imports", "--cache-dir", str(tmp_path), "hoist"])
    assert code == 0, said + errors


def test_what_mypy_is_told_to_ignore_is_named():
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert line.count("type: ignore") == line.count(
                "type: ignore["), f"{path}:{number}"
