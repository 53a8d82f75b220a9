#!/usr/bin/env python3
"""The same model under hoist and its peers: --help; tests/bench/peers."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "bench"))
sys.path.append(str(ROOT / "client" / "python"))

from peers.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
