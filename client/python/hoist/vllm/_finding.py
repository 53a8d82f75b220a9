"""Where a model's weights are: files that hoistd reads, or what the first
engine has published of them."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import re
from typing import Sequence

import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.config.load import LoadConfig

from .. import _session
from ..checkpoint import find_files, identity, one_path
from ..serving._recipes import Recipes, write_recipes
from ..serving._trace import Trace
from ..serving._weights import Weights, device_of
from ._headers import HeaderLoader
from ._options import Options

_log = logging.getLogger("hoist.vllm")


@dataclasses.dataclass
class Finding:
    """Of one model that an engine's process loads."""

    options: Options
    of_disk: LoadConfig
    vllm_config: VllmConfig
    model_config: ModelConfig
    device: torch.device

    def weights_of(self, model: nn.Module) -> Weights:
        """Of a model on the meta device; its own loading code is run."""
        trace = Trace()
        loader = HeaderLoader(self.of_disk, trace)
        loader.load_weights(model, self.model_config)
        recipes = write_recipes(model, trace, loader.headers)
        return self._of_files(model, recipes, loader.files)

    def _of_files(self, model: nn.Module, recipes: Recipes,
                  files: Sequence[pathlib.Path]) -> Weights:
        session = _session.connect(
            self.options.socket, name=f"vllm {type(model).__name__}",
            connect_deadline=self.options.deadline)
        device = device_of(session, self.device)
        folder = files[0].parent
        paths = (folder if list(files) == find_files(folder) else
                 [str(one) for one in files])
        with one_path(paths) as path:
            name = (f"{_slug(self.model_config.model)}-"
                    f"{identity(files, repr((recipes.groups, recipes.joined)))}")
            found = session.register(path, name, groups=recipes.groups,
                                     joined=recipes.joined)
        return Weights(session, found, recipes.stored, device,
                       self.options.deadline)


def _slug(model: str) -> str:
    """Of a path or a hub's name, what may be a model's name in hoistd."""
    last = model.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last)[:64].strip(".-") or "model"
