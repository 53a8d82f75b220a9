"""Unit tests of the Python package, without a hoistd.

    HOIST_BUILD_DIR=build/dev python -m pytest client/python/tests
"""

from __future__ import annotations

import pathlib
import random
import sys

import pytest

# Behind what PYTHONPATH names.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))


@pytest.fixture(params=range(8))
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random choices; what fails names its seed."""
    print(f"seed {request.param}")
    return random.Random(request.param)
