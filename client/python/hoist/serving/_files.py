"""Files on their way to hoistd, as recipes say."""

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
    """The model in hoistd; its name follows from the files, as they are now,
    and from the recipes, so that whoever asks the same gets the same.

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
    """Of a path or a hub's name, what may begin a model's name in hoistd."""
    last = model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last)[:64].strip(".-") or "model"
