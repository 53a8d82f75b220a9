"""Registers files with hoistd, by recipes."""

from __future__ import annotations

import pathlib
import re
from typing import Sequence

from .. import _session
from .._model import Model
from ..checkpoint import find_files, identity, one_path
from ._recipes import Recipes


def register_files(session: _session.Session, model: str,
                   files: Sequence[pathlib.Path], recipes: Recipes) -> Model:
    """The model in hoistd. Its name follows from the files' present state and
    the recipes, so that equal requests get the same model.

    model: a path, or a hub's name.
    """
    folder = files[0].parent
    paths = (folder if list(files) == find_files(folder) else
             [str(one) for one in files])
    rule = repr((recipes.groups, recipes.joined))
    with one_path(paths) as path:
        return session.register(path, f"{slug(model)}-{identity(files, rule)}",
                                groups=recipes.groups, joined=recipes.joined)


def slug(model: str) -> str:
    """A prefix for a model's name in hoistd, from a path or a hub's name."""
    last = model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last)[:64].strip(".-") or "model"
