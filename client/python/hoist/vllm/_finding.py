"""Finds a model's weights: files that hoistd reads, or weights that the first
engine has published."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
from typing import TYPE_CHECKING, Mapping

import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.config.load import LoadConfig
from vllm.distributed import (get_dp_group, get_pp_group,
                              get_tensor_model_parallel_rank)
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.offloader import get_offloader

from .. import _session
from .._errors import HoistError, Unimplemented
from .._model import Model
from ..nn._plan.budget import to_bytes
from ..serving import _published
from ..serving._files import register_files, slug
from ..serving._in_place import InPlaceWeights
from ..serving._planned import PlannedWeights
from ..serving._published import Manifest
from ..serving._recipes import Pieces, Recipes, write_recipes
from ..serving._trace import Trace
from ..serving._weights import Connect, Find, Weights, device_of
from ._cpu import kernels_over_shared_memory
from ._headers import HeaderLoader
from ._kernels import why_kernels_differ
from ._key import environment, key_of
from ._layers import experts_on, layers_of_its_own
from ._offload import PlanOffloader
from ._options import Options
from ._processing import refuse_early_readers, why_processed

if TYPE_CHECKING:
    from ._experts import FusedExperts

_log = logging.getLogger("hoist.vllm")

# By fingerprint: weights that were on the device before vLLM measured its free
# memory. The load of the model takes them.
_early: dict[bytes, Weights] = {}


@dataclasses.dataclass
class Finding:
    """The search for one model that an engine's process loads."""

    options: Options
    of_disk: LoadConfig
    vllm_config: VllmConfig
    model_config: ModelConfig
    prefix: str
    device: torch.device
    trace: Trace = dataclasses.field(default_factory=Trace)
    experts: FusedExperts | None = None  # To be read in place.

    def take_early(self, model: nn.Module) -> int:
        """Puts the model's weights on the device, unless they have to be made
        first; returns the bytes. weights_of gives them to the next model with
        the same ones."""
        weights = self._find(model, may_publish=False)
        if weights is None:
            return 0
        _early[weights.fingerprint] = weights
        return weights.nbytes

    def weights_of(self, model: nn.Module) -> Weights:
        """For a model on the meta device, whose own loading code is run.
        Afterwards it may have fewer or other parameters: those that vLLM
        computes with."""
        try:
            weights = self._find(model, may_publish=True)
        finally:
            _early.clear()  # Of files that have changed since.
        assert weights is not None
        return weights

    def _find(self, model: nn.Module, may_publish: bool) -> Weights | None:
        """None: they are not published, and may not be."""
        loader = HeaderLoader(self.of_disk, self.trace)
        recipes, why = self._recipes(model, loader)
        connect = self._connect_of(type(model).__name__)
        session = connect()
        device = device_of(session, self.device)
        if why is None:
            if self.options.name is not None:
                key = self._key(model, loader)
                self._claim(session, self._name(key), key)
            files = loader.files

            def find(session: _session.Session) -> Model:
                return register_files(session, self.model_config.model, files,
                                      recipes)

            weights = self._bound(model, session, connect, find, recipes,
                                  device)
            loader.check_unchanged()
            return weights
        if self.options.budget is not None and (
                self.experts is None or self.experts.read_files):
            raise Unimplemented(
                f"{self.model_config.model} takes no budget, as its weights "
                f"are not the files' bytes ({why}); start it without one")
        _log.info("%s is published once it is processed, as it is not the "
                  "files' bytes: %s", self.model_config.model, why)
        key = {**self._key(model, loader), "environment": environment(),
               "in place": "no" if self.experts is None else "experts"}
        name = self._name(key)
        if not may_publish and _published.find(session, name) is None:
            return None
        manifest = self._published(session, name, key, loader, model)
        _published.shape_like(model, manifest)

        def find_published(session: _session.Session) -> Model:
            return session.model(name)

        if self.experts is not None:
            return self._in_place(model, session, connect, find_published,
                                  manifest.stored, manifest.pieces, device,
                                  self.experts)
        return self._whole(session, connect, find_published, manifest.stored,
                           device)

    def _whole(self, session: _session.Session, connect: Connect, find: Find,
               stored: Mapping[str, tuple[str, str]],
               device: _session.Device) -> Weights:
        early = (_early.pop(find(session).fingerprint, None) if _early
                 else None)
        if early is not None and early.stored == stored:
            session.close()
            return early
        return Weights(session, connect, find, stored, device,
                       self.options.deadline)

    def _bound(self, model: nn.Module, session: _session.Session,
               connect: Connect, find: Find, recipes: Recipes,
               device: _session.Device) -> Weights:
        """All at once, or, with a budget, the layers by a plan, or the experts
        in place."""
        if self.experts is not None:
            return self._in_place(model, session, connect, find,
                                  recipes.stored, recipes.pieces, device,
                                  self.experts)
        if not self._plans:
            return self._whole(session, connect, find, recipes.stored, device)
        refuse_early_readers(model)
        offloader = get_offloader()
        assert isinstance(offloader, PlanOffloader)
        assert self.options.budget is not None
        whole = find(session).image_bytes
        planned = PlannedWeights(
            session, connect, find, recipes.stored, device,
            self.options.deadline, to_bytes(self.options.budget, whole),
            {layer: recipes.layers[layer]
             for layer in offloader.layers_of(model) if layer in recipes.layers})
        offloader.follow(model, planned.plan, planned.groups, self.device)
        return planned

    @property
    def _plans(self) -> bool:
        """Layers are staged by a plan."""
        return (self.options.budget is not None and self.experts is None
                and isinstance(get_offloader(), PlanOffloader))

    def _in_place(self, model: nn.Module, session: _session.Session,
                  connect: Connect, find: Find,
                  stored: Mapping[str, tuple[str, str]],
                  pieces: Mapping[str, Pieces], device: _session.Device,
                  experts: FusedExperts) -> Weights:
        assert self.options.budget is not None
        made = InPlaceWeights(
            session, connect, find, stored, device,
            self.options.deadline,
            to_bytes(self.options.budget, find(session).image_bytes),
            pieces, experts.first_counts(pieces), experts.counts)
        experts.follow(model, made.in_place)
        return made

    def _connect_of(self, architecture: str) -> Connect:
        options = self.options
        return lambda: _session.connect(
            options.socket, name=f"vllm {architecture}",
            connect_deadline=options.deadline)

    def _recipes(self, model: nn.Module, loader: HeaderLoader
                 ) -> tuple[Recipes, str | None]:
        """With the reason if they are not enough."""
        try:
            loader.load_weights(model, self.model_config)
        except HoistError:
            raise
        except Exception as error:  # Code without values may raise anything.
            if not loader.files:
                raise
            return Recipes(), f"its loading code: {error}"
        why = why_processed(model)
        if why is not None:
            return Recipes(), why
        recipes = write_recipes(
            model, self.trace, loader.headers,
            {} if self.experts is None else self.experts.cuts(model),
            in_parts=self._plans)
        for name, why in recipes.refused.items():
            return recipes, f"{name}: {why}"
        return recipes, None

    def _key(self, model: nn.Module, loader: HeaderLoader) -> dict[str, str]:
        return key_of(model, loader.files, self.vllm_config, self.model_config,
                      self.device)

    def _name(self, key: dict[str, str]) -> str:
        """The name in hoistd of weights that this process computes with."""
        if self.options.name is None:
            return _published.name_of(slug(self.model_config.model), key)
        data = get_dp_group()
        return (f"{self.options.name}{'.draft' * self._is_draft}.tp"
                f"{get_tensor_model_parallel_rank()}.pp"
                f"{get_pp_group().rank_in_group}"
                + (f".dp{data.rank_in_group}" if data.world_size > 1
                   and key["experts"] != "none" else ""))

    @property
    def _is_draft(self) -> bool:
        """Some of vLLM's proposers give a draft a configuration of its own,
        with the draft as the model."""
        speculative = self.vllm_config.speculative_config
        return self.model_config is not self.vllm_config.model_config or (
            speculative is not None
            and self.model_config is speculative.draft_model_config)

    def _claim(self, session: _session.Session, name: str,
               key: dict[str, str]) -> None:
        """FailedPrecondition: the name is another engine's."""
        with _published.one_at_a_time(name, self.options.deadline):
            found = _published.find(session, name)
            if found is None:
                _published.publish(session, name, key, None,
                                   self.options.deadline)
            else:
                found[1].check(name, key)

    def _published(self, session: _session.Session, name: str,
                   key: dict[str, str], files: HeaderLoader,
                   model: nn.Module) -> Manifest:
        """Of two engines that start at once, one publishes."""
        found = _published.find(session, name)
        if found is None:
            with _published.one_at_a_time(name, self.options.deadline):
                found = _published.find(session, name)
                if found is None:
                    self._publish(session, name, key, files, model)
                    found = _published.find(session, name)
        assert found is not None
        found[1].check(name, key)
        return found[1]

    def _publish(self, session: _session.Session, name: str,
                 key: dict[str, str], files: HeaderLoader,
                 model: nn.Module) -> None:
        """Loads the files into this process as vLLM does, for a moment.
        Unimplemented: a kernel of the model could not be made over processed
        weights; names it."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(layers_of_its_own(self.vllm_config, keep=False))
            if self.device.type == "cpu":  # Packed weights cannot be shared.
                stack.enter_context(kernels_over_shared_memory())
            elif self.experts is not None:  # The device may be too small.
                stack.enter_context(experts_on("cpu"))
            loaded = DefaultModelLoader(self.of_disk).load_model(
                self.vllm_config, self.model_config, self.prefix)
            files.check_unchanged()  # Or the key would be of other files.
            why = why_kernels_differ(loaded, model)
            if why is not None:
                raise Unimplemented(
                    f"{self.model_config.model} cannot be shared: {why}; start "
                    "it without --load-format hoist, and tell hoist's people")
            _published.publish(
                session, name, key, loaded, self.options.deadline,
                {} if self.experts is None else self.experts.cuts(loaded))
        del loaded
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
