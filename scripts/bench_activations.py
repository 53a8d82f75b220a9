#!/usr/bin/env python3
"""A training step with activations offloaded, beside its peers:
bench_activations.py [OPTION]...

With torch installed, --help lists the options and columns; see also
tests/bench/README.md.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "bench"))
sys.path.append(str(ROOT / "client" / "python"))

try:
    from activations.main import main
except ModuleNotFoundError as error:
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        sys.exit(0)
    sys.exit(f"bench_activations.py: {error}: scripts/setup.sh --for-tests "
             "--with-torch, then build/venv/bin/python "
             "scripts/bench_activations.py")

if __name__ == "__main__":
    sys.exit(main())
