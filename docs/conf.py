"""Sphinx's configuration. reference.py puts this file, the pages and what is
made of them into one folder, and says by HOIST_ROOT where the tree is."""

import os
import pathlib
import sys

from sphinx.ext.autodoc.mock import _MockObject
from sphinx.util import logging

ROOT = pathlib.Path(os.environ["HOIST_ROOT"])
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "client/python")]
import docstrings  # noqa: E402
import hoist._surroundings  # noqa: E402

# What is not here is mocked, see below.
hoist._surroundings.is_installed = lambda name: True
_MockObject.__int__ = lambda self: 0  # hoist.nn asks for a number of torch's.

project = "hoist"
release = version = os.environ["HOIST_VERSION"]
copyright = "hoist's authors"
extensions = ["sphinx.ext.autodoc"]
html_theme = "alabaster"
html_theme_options = {"fixed_sidebar": True, "page_width": "64em",
                      "body_max_width": "none"}
html_copy_source = False
html_show_sphinx = False
nitpicky = True
# Types of other projects', and our own private ones, in signatures.
nitpick_ignore_regex = [("py:.*", r"(?!hoist\.).*|hoist\..*\b_.*")]
python_maximum_signature_line_length = 76
autodoc_mock_imports = ["torch", "ray", "numpy", "safetensors", "transformers",
                        "diffusers", "accelerate", "tqdm"]
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

NEEDS_WORDS = {"module", "class", "exception", "function", "method", "property"}
logger = logging.getLogger("hoist")


def said(app, what, name, obj, options, lines):
    del app, options
    if not any(line.strip() for line in lines):
        if what in NEEDS_WORDS:
            logger.warning("%s has no docstring", name)
        return
    if what != "attribute":
        try:
            lines[:] = docstrings.converted(lines, docstrings.parameters(obj))
        except ValueError as problem:
            logger.warning("%s: %s", name, problem)


def skipped(app, what, name, obj, skip, options):
    del app, what, obj, options
    return skip or name in ("__init__", "__new__")


def setup(app):
    docstrings.read_fields(ROOT / "client/python/hoist")
    app.connect("autodoc-process-docstring", said)
    app.connect("autodoc-skip-member", skipped)
