"""What is installed where an example runs.

surroundings.py NAME...  exits with 0 if this Python has all these packages,
                         else with 1
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def _has(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:  # Of the package that it is a part of.
        return False
    # Any folder on sys.path, such as the script's own, passes for a package
    # without code; such a "torch" has an origin of None.
    return spec is not None and spec.origin is not None


def has(*names: str) -> bool:
    """True if all of these packages are installed."""
    return all(_has(name) for name in names)


def need(*names: str) -> None:
    """Ends the example, with a sentence, where one of them is not."""
    for name in names:
        if not has(name):
            sys.exit(f"{os.path.basename(sys.argv[0])} needs {name}, which "
                     f"{sys.executable} lacks")


def find_hoist() -> None:
    """Lets hoist be imported where it is not installed: out of the checkout,
    or the unpacked archive, that this file lies in."""
    if has("hoist"):
        return
    for up in ("..", os.path.join("..", "..", "..")):
        folder = os.path.join(HERE, up, "python")
        if os.path.isdir(os.path.join(folder, "hoist")):
            sys.path.insert(0, folder)
            return


def keep_others_quiet() -> None:
    """Leaves the screen to the example: other libraries tell their errors, and
    no warnings about themselves. To be called before they are imported."""
    logging.getLogger("torchao").setLevel(logging.ERROR)
    os.environ.setdefault("TORCH_LOGS", "-all")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


if __name__ == "__main__":
    sys.exit(not has(*sys.argv[1:]))
