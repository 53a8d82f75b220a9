"""vLLM's loading code, run with tensors without bytes."""

from __future__ import annotations

import pathlib
import time
from typing import Generator

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from .._errors import DataLoss, InvalidArgument, Unimplemented
from ..checkpoint import FileTensor, identity, read_headers
from ..serving._trace import Trace


class HeaderLoader(DefaultModelLoader):  # type: ignore[misc]
    """DefaultModelLoader up to the files' tensors: it decides which files a
    model has, and which of their tensors are read.

    After load_weights: the files, and their headers' entries.
    """

    counter_before_loading_weights: float  # vLLM's, for its log.

    def __init__(self, load_config: LoadConfig, trace: Trace) -> None:
        super().__init__(load_config)
        self._trace = trace
        self.files: list[pathlib.Path] = []
        self._seen: list[str] = []  # Each file before its header was read.
        self.headers: dict[str, FileTensor] = {}

    def load_weights(self, model: nn.Module,
                     model_config: ModelConfig) -> None:
        """Untraceable, or vLLM's errors if its code reads values; all files are
        known even then."""
        with self._trace:
            try:
                super().load_weights(model, model_config)
            except Exception:
                for _ in self.get_all_weights(model_config, model):
                    pass  # The code has ended before the last tensor.
                raise

    def check_unchanged(self) -> None:
        """DataLoss: a file is not the one whose header was read."""
        for path, seen in zip(self.files, self._seen):
            if not path.exists() or identity([path], "") != seen:
                raise DataLoss(f"{path} has changed while the engine was "
                               "starting; start it once more")

    def _get_weights_iterator(
            self, source: DefaultModelLoader.Source
            ) -> Generator[tuple[str, torch.Tensor], None, None]:
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        folder, names, use_safetensors, _ = self._prepare_weights(
            source.model_or_path, source.subfolder, source.revision,
            source.fall_back_to_pt, source.allow_patterns_overrides)
        if not use_safetensors:
            raise Unimplemented(
                f"{folder} holds no *.safetensors file; hoist reads weights "
                "from those alone: save it once more as such (save_pretrained "
                "does)")
        files = [pathlib.Path(name) for name in sorted(names)]
        new = [one for one in files if one not in self.files]
        self.files += new
        self._seen += [identity([one], "") for one in new]
        found = read_headers(files)
        twice = sorted(found.keys() & self.headers.keys())
        if twice and new:
            raise InvalidArgument(f"{twice[0]} is in two of the folders that "
                                  "the model takes its weights from")
        self.headers |= found
        for name, tensor in found.items():
            yield source.prefix + name, self._trace.file_tensor(name, tensor)
