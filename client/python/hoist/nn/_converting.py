"""Weights that are to be others than the files': made once for all workers."""

from __future__ import annotations

import dataclasses
from typing import Callable, Mapping

import torch
from torch import nn

from .. import _session
from .._host_image import HostImage
from .._model import Model
from ..checkpoint import Computed
from ._casting import converted_kinds, kept_in_float32
from ._hand_over import (cast_name, derived_name, known_model,
                         publish_cast)
from ._layout import GroupSpec
from ._matching import input_name, retype
from ._options import Wanted
from .._progress import progress_bar


@dataclasses.dataclass(frozen=True)
class Conversion:
    """What is made of the files' model, and the name that tells all of it."""

    name: str
    storage: Mapping[str, Mapping[str, torch.dtype]]  # By group, and stored.
    computed: Mapping[str, tuple[Computed, str]]

    def model(self, session: _session.Session, specs: list[GroupSpec],
              original: Model, deadline: float,
              progress: bool | None = False) -> Model:
        """It is made a group at a time, in this process, if hoistd does not
        have it."""
        specs = [dataclasses.replace(spec, storage=dict(
            self.storage[spec.name])) for spec in specs]
        made = known_model(session, self.name, specs, cast=True)
        if made is not None:
            return made
        total = sum(spec.nbytes for spec in specs)
        with progress_bar(progress, f"convert {self.name}", total) as advance:
            for spec in specs:
                made = publish_cast(
                    session, self.name, spec, original[spec.name], deadline,
                    _computer(spec, self.computed))
                advance(spec.nbytes)
        assert made is not None
        return made


def convert(root: nn.Module, wanted: Wanted, specs: list[GroupSpec],
            original: Model, name: str, dtype: torch.dtype | None,
            computed: Mapping[str, tuple[Computed, str]]
            ) -> tuple[Model, Conversion | None]:
    """The files' model, or a published one: with what is computed from the
    files' tensors, and with floating parameters as `dtype`, but for those that
    the model's library keeps in float32."""
    keeps = kept_in_float32(root, dtype) if dtype is not None else None
    kinds = converted_kinds(root)
    for spec in specs:
        spec.storage = {}
        for weight in spec.weights:
            if (dtype is None or keeps is None or weight.kind not in kinds
                    or weight.dtype is None
                    or not weight.dtype.is_floating_point):
                continue
            to = torch.float32 if keeps(weight.name) else dtype
            if weight.dtype != to:
                spec.storage[weight.parts[0].stored.name] = to
    if not computed and not any(spec.storage for spec in specs):
        return original, None
    # By its own name: `original` may be another user's, who named it.
    source = original.fingerprint.hex()
    if computed:
        recipes = _recipes(computed)
        name = derived_name(name, "computed", source, recipes)
        source += repr(recipes)
    if dtype is not None and any(spec.storage for spec in specs):
        name = cast_name(name, source, specs, dtype)
    conversion = Conversion(
        name, {spec.name: spec.storage for spec in specs}, computed)
    converted = conversion.model(wanted.session, specs, original,
                                 wanted.deadline, wanted.progress)
    for spec in specs:
        for weight in spec.weights:
            to_type = spec.storage.get(weight.parts[0].stored.name)
            if to_type is not None:
                retype(weight, to_type)
        spec.storage = {}
    return converted, conversion


def _recipes(computed: Mapping[str, tuple[Computed, str]]
             ) -> list[tuple[str, object]]:
    """Another version or configuration may compute otherwise."""
    return sorted((name, one.recipe) for name, (one, _) in computed.items())


def _computer(spec: GroupSpec, computed: Mapping[str, tuple[Computed, str]]
              ) -> Callable[[HostImage], dict[str, torch.Tensor]]:
    """What is computed of a group, from the image of what that takes."""
    def compute(image: HostImage) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        done: dict[int, dict[str, torch.Tensor]] = {}
        for stored in spec.stored:
            if stored.name not in computed:
                continue
            one, key = computed[stored.name]
            if id(one) not in done:
                with torch.no_grad():
                    # Of its own, as an image cannot be written to.
                    done[id(one)] = one.run({
                        tensor: image[input_name(spec, tensor)].torch().clone()
                        for tensor in one.inputs})
            made[stored.name] = done[id(one)][key].contiguous()
        return made

    return compute
