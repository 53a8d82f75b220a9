"""Weights that are to be others than the files': made once for all workers."""

from __future__ import annotations

from typing import Callable, Mapping

import torch

from .._host_image import HostImage
from .._model import Model
from ..checkpoint import Computed
from ._hand_over import (cast_name, derived_name, known_model,
                         publish_cast)
from ._layout import GroupSpec
from ._matching import input_name, retype
from ._options import Wanted
from ._progress import progress_bar


def convert(wanted: Wanted, specs: list[GroupSpec], original: Model,
            name: str, dtype: torch.dtype | None,
            computed: Mapping[str, tuple[Computed, str]]) -> Model:
    """The files' model, or a published one: with what is computed from the
    files' tensors, and with floating parameters as `dtype`. It is made a group
    at a time, in this process, if hoistd does not have it."""
    for spec in specs:
        spec.storage = {
            weight.parts[0].stored.name: dtype for weight in spec.weights
            if dtype is not None and weight.dtype != dtype
            and weight.kind == "parameter" and weight.dtype is not None
            and weight.dtype.is_floating_point}
    if not computed and not any(spec.storage for spec in specs):
        return original
    # By its own name: `original` may be another user's, who named it.
    source = original.fingerprint.hex()
    if computed:
        recipes = _recipes(computed)
        name = derived_name(name, "computed", source, recipes)
        source += repr(recipes)
    if dtype is not None and any(spec.storage for spec in specs):
        name = cast_name(name, source, specs, dtype)
    converted = known_model(wanted.session, name, specs, cast=True)
    if converted is None:
        total = sum(spec.nbytes for spec in specs)
        with progress_bar(wanted.progress, f"convert {name}", total) as advance:
            for spec in specs:
                converted = publish_cast(
                    wanted.session, name, spec, original[spec.name],
                    wanted.deadline, _computer(spec, computed))
                advance(spec.nbytes)
    assert converted is not None
    for spec in specs:
        for weight in spec.weights:
            if weight.parts[0].stored.name in spec.storage and dtype:
                retype(weight, dtype)
        spec.storage = {}
    return converted


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
