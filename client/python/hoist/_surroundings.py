"""Finds installed packages: the one place that does."""

from __future__ import annotations

import importlib.util
import sys

from ._errors import MissingExtra


def is_installed(name: str) -> bool:
    """Whether `import name` gives the package. A bare folder of that name on
    the path, which Python imports as an empty package, does not count."""
    if name not in sys.modules:
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None
    module = sys.modules[name]
    if module is None:  # Its import was blocked.
        return False
    is_folder = hasattr(module, "__path__") and (
        getattr(module, "__file__", None) is None)
    return not is_folder


def require(name: str, asked: str) -> None:
    """MissingExtra: the package is not installed, but `asked` needs it.

    name: of the package, and of the extra that installs it.
    """
    if not is_installed(name):
        raise MissingExtra(f"{asked} needs {name}; install it: pip install "
                           f"'hoist-client[{name}]'", name)
