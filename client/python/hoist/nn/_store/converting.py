"""Weights that differ from the files': made once for all workers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from concurrent.futures import Future, wait
from typing import Callable, Iterator, Mapping

import torch
from torch import nn

from ... import _session
from ..._host_image import HostImage
from ..._model import Model
from ..._progress import progress_bar
from ...checkpoint import Computed
from .._tree.layout import GroupSpec
from .hand_over import cast_name, derived_name, known_model, prepare_cast
from .matching import Matched, conversions, input_name, retype
from .uses import Uses


# Groups on their way to hoistd: one fills its image while hoistd copies and
# hashes the other.
_AT_ONCE = 2


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The changes to the files' model, and a name that identifies them all."""

    name: str
    storage: Mapping[str, Mapping[str, torch.dtype]]  # By group, and tensor.
    computed: Mapping[str, tuple[Computed, str]]
    device: torch.device  # Computes, as far as its memory suffices.

    def model(self, session: _session.Session, specs: list[GroupSpec],
              original: Model, deadline: float, uses: Uses,
              progress: bool | None = False) -> Model:
        """Makes it in this process, unless hoistd has it already. A group is
        computed while hoistd gets those before. `uses` ends if that fails."""
        specs = [dataclasses.replace(spec, storage=dict(
            self.storage[spec.name])) for spec in specs]
        made = known_model(session, self.name, specs, cast=True)
        if made is not None:
            uses.add(session, made)
            return made
        uses.makes(session, self.name)
        total = sum(spec.nbytes for spec in specs)
        with progress_bar(progress, f"convert {self.name}", total
                          ) as advance, _freed(self.device), (
                contextlib.ExitStack()) as opened:

            def hand_over(ready: Callable[[], Model]) -> Model:
                made = ready()
                uses.add(session, made)
                return made

            going: collections.deque[tuple[GroupSpec, Future[Model]]]
            going = collections.deque()

            def one_ends() -> None:
                spec, handed = going.popleft()
                handed.result()
                advance(spec.nbytes)

            try:
                for spec in specs:
                    ready = prepare_cast(
                        session, self.name, spec, original[spec.name],
                        deadline, opened,
                        _computer(spec, self.computed, self.device))
                    while going and (len(going) == _AT_ONCE
                                     or going[0][1].done()):
                        one_ends()
                    going.append((spec, _started(hand_over, ready)))
                    del ready  # It has the group's bytes.
                while going:
                    one_ends()
            finally:  # They read what `opened` has.
                wait([handed for _, handed in going])
            whole = session.model(self.name)
            uses.add(session, whole)
            return whole


def _started(hand_over: Callable[[Callable[[], Model]], Model],
             ready: Callable[[], Model]) -> Future[Model]:
    """In a thread of its own, or here if none can be started."""
    handed: Future[Model] = Future()
    try:
        threading.Thread(target=_hand_over, args=(hand_over, ready, handed),
                         daemon=True).start()
    except RuntimeError:
        _hand_over(hand_over, ready, handed)
    return handed


def _hand_over(hand_over: Callable[[Callable[[], Model]], Model],
               ready: Callable[[], Model], handed: Future[Model]) -> None:
    try:
        handed.set_result(hand_over(ready))
    except BaseException as error:
        handed.set_exception(error)


def convert(root: nn.Module, session: _session.Session,
            specs: list[GroupSpec], original: Model, name: str,
            dtype: torch.dtype | None, matched: Matched, device: torch.device,
            deadline: float, uses: Uses, progress: bool | None
            ) -> tuple[Model, Conversion | None]:
    """The model of the files, or a published one: with weights computed from
    the files' tensors, and floating weights as `dtype`, except those that the
    model's library keeps in another type.

    device: computes, or the CPU where its memory does not suffice."""
    computed = matched.computed
    converts = conversions(root, dtype, matched)
    for spec in specs:
        spec.storage = {}
        for weight in spec.weights:
            to = converts(weight)
            if to is not None:
                spec.storage[weight.parts[0].stored.name] = to
    if not computed and not any(spec.storage for spec in specs):
        return original, None
    # By its own name: `original` may be another user's, with their name.
    source = original.fingerprint.hex()
    if computed:
        recipes = _recipes(computed)
        name = derived_name(name, "computed", source, recipes)
        source += repr(recipes)
    if dtype is not None and any(spec.storage for spec in specs):
        name = cast_name(name, source, specs, dtype)
    conversion = Conversion(
        name, {spec.name: spec.storage for spec in specs}, computed, device)
    converted = conversion.model(session, specs, original, deadline, uses,
                                 progress)
    for spec in specs:
        for weight in spec.weights:
            to_type = spec.storage.get(weight.parts[0].stored.name)
            if to_type is not None:
                retype(weight, to_type)
        spec.storage = {}
    return converted, conversion


def _recipes(computed: Mapping[str, tuple[Computed, str]]
             ) -> list[tuple[str, object]]:
    """Another version or configuration may compute other values."""
    return sorted((name, one.recipe) for name, (one, _) in computed.items())


def _computer(spec: GroupSpec, computed: Mapping[str, tuple[Computed, str]],
              device: torch.device
              ) -> Callable[[HostImage], dict[str, torch.Tensor]]:
    """Computes a group from the image of its inputs."""
    def compute(image: HostImage) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        done: dict[int, dict[str, torch.Tensor]] = {}
        for stored in spec.stored:
            if stored.name not in computed:
                continue
            one, key = computed[stored.name]
            if id(one) not in done:
                done[id(one)] = run_on(device, one, {
                    tensor: image[input_name(spec, tensor)].torch()
                    for tensor in one.inputs})
            made[stored.name] = done[id(one)][key]
        return made

    return compute


def run_on(device: torch.device, one: Computed,
           inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The results, computed on the device, or on the CPU if the device has no
    memory for it; they stay there. Writes to no input."""
    if device.type != "cpu":
        with contextlib.suppress(torch.OutOfMemoryError):
            return _run_on(device, one, inputs)
    return _run_on(torch.device("cpu"), one, inputs)


def _run_on(device: torch.device, one: Computed,
            inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        made = one.run({name: tensor.to(device, copy=True)
                        for name, tensor in inputs.items()})
        return {key: value.contiguous() for key, value in made.items()}


@contextlib.contextmanager
def _freed(device: torch.device) -> Iterator[None]:
    """torch keeps the memory that it freed on a GPU, and hoistd may need it."""
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
