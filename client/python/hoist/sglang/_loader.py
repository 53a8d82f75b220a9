"""The loader that `--load-format hoist` names."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from typing import Any, Iterator

import torch
from sglang.srt.model_loader import loader as theirs
from torch import nn

from .. import _session
from .._errors import FailedPrecondition, Unimplemented
from .._model import Model
from ..checkpoint import FileTensor, read_headers
from ..serving._binding import bind, settle_the_rest
from ..serving._files import register_files
from ..serving._guard import Guard
from ..serving._meta import build_on_meta
from ..serving._recipes import Recipes, held_by, write_recipes
from ..serving._trace import Trace
from ..serving._weights import Weights, device_of
from ._options import Options

_log = logging.getLogger("hoist.sglang")
# Layers that compute with the files' weights, unmoved.
_PLAIN = frozenset(("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"))
_NO_UPDATES = ("hoistd holds the weights, read-only, for other servers as well; "
               "start a server with the new files")


class HoistModelLoader(theirs.DefaultModelLoader):  # type: ignore[misc]
    """SGLang's own loader up to the files' tensors: SGLang chooses a model's
    files, and its code determines the use of their tensors. This reads only the
    files' headers."""

    def __init__(self, load_config: Any) -> None:
        self.options = Options.of(load_config.model_loader_extra_config)
        super().__init__(dataclasses.replace(
            load_config, load_format=theirs.LoadFormat.SAFETENSORS,
            model_loader_extra_config={}))
        self._trace = Trace()
        self._files: list[pathlib.Path] = []
        self._headers: dict[str, FileTensor] = {}

    def load_model(self, *, model_config: Any, device_config: Any
                   ) -> nn.Module:
        """The model over hoistd's memory. Unimplemented: its weights are not
        ranges of the files; names the layer or the parameter."""
        device = torch.device(device_config.device)
        quantisation = theirs._get_quantization_config(model_config,
                                                       self.load_config)
        with theirs.set_default_torch_dtype(model_config.dtype), device:
            model, lost = build_on_meta(lambda: theirs._initialize_model(
                model_config, self.load_config, quantisation))
            _refuse_processed(model)
            with self._trace:
                self.load_weights_only(
                    model, self._get_all_weights(model_config, model), device)
            recipes = write_recipes(model, self._trace, self._headers)
            for name, why in recipes.refused.items():
                raise Unimplemented(
                    f"hoistd cannot hold {model_config.model_path}: "
                    f"{name}: {why}; --load-format auto loads it into each "
                    "server")
            weights = self._weights(model, model_config, recipes, device)
            bind(model, weights.tensors)
            settle_the_rest(model, device, lost | self._trace.written)
            with Guard(weights.spans()):
                self.postprocess_weights(model, device)
        _refuse_moved(model, weights)
        model.hoist_weights = weights  # They live as long as the model.
        # SGLang asks for this before each update of a running server's weights.
        model._derived_weight_cache_error = _NO_UPDATES
        _log.info("%s: %.1f MiB of hoistd's on %s, shared and read-only",
                  weights.name, weights.nbytes / 2**20, weights.device.name)
        made: nn.Module = model.eval()
        return made

    def _weights(self, model: nn.Module, model_config: Any, recipes: Recipes,
                 device: torch.device) -> Weights:
        def connect() -> _session.Session:
            return _session.connect(
                self.options.socket, name=f"sglang {type(model).__name__}",
                connect_deadline=self.options.deadline)

        files = list(self._files)

        def find(session: _session.Session) -> Model:
            return register_files(session, model_config.model_path, files,
                                  recipes)

        session = connect()
        return Weights(session, connect, find, recipes.stored,
                       device_of(session, device), self.options.deadline)

    def _get_weights_iterator(self, source: Any, *rest: Any, **named: Any
                              ) -> Iterator[tuple[str, torch.Tensor]]:
        folder, names, use_safetensors = self._prepare_weights(
            source.model_or_path, source.revision, source.fall_back_to_pt)
        if not use_safetensors:
            raise Unimplemented(
                f"{folder} holds no *.safetensors file; hoist reads weights "
                "from those alone")
        files = [pathlib.Path(name) for name in sorted(names)]
        self._files += [one for one in files if one not in self._files]
        found = read_headers(files)
        self._headers |= found
        for name, tensor in found.items():
            yield source.prefix + name, self._trace.file_tensor(name, tensor)


def _refuse_processed(model: nn.Module) -> None:
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None and type(method).__name__ not in _PLAIN:
            raise Unimplemented(
                f"{name} ({type(method).__name__}) converts the files' "
                "weights, and SGLang loads no converted weights; --load-format "
                "auto loads the model into each server")


def _refuse_moved(model: nn.Module, weights: Weights) -> None:
    """FailedPrecondition: processing replaced shared weights with copies."""
    spans = weights.spans()
    for held in held_by(model):
        if held.is_parameter and held.tensor.numel() and not any(
                begin <= held.tensor.data_ptr() < end for begin, end in spans):
            raise FailedPrecondition(
                f"SGLang replaces {held.names[0]} by a copy in this process "
                "when it processes weights; --load-format auto loads the model "
                "into each server")
