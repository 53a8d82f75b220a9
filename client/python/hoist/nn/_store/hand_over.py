"""Hands a module's weights to hoistd, group by group."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Callable, Iterable, Sequence

import torch

from ... import _dtypes, _session
from ..._errors import (AlreadyExists, DataLoss, FailedPrecondition, HoistError,
                        NotFound)
from ..._host_image import HostImage
from ..._model import Group, Model
from ..._publish import group_content, model_content
from .._tree.inventory import Stored, as_stored
from .._tree.layout import GroupSpec


def content_of(specs: Iterable[GroupSpec]) -> bytes:
    """The content that hoistd would find if the groups were handed over."""
    return model_content(group_content(spec.name, _on_cpu(spec))
                         for spec in specs)


def _bytes_of(stored: Stored) -> torch.Tensor:
    """All bytes that its elements span, on the CPU."""
    tensor = stored.tensor
    assert tensor is not None
    if tensor.is_meta:
        raise FailedPrecondition(
            f'"{stored.name}" is on the meta device and has no bytes; use '
            "hoist.load for weights in files, or name= for a model that hoistd "
            "has already")
    start = tensor.storage_offset() * tensor.element_size()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), start, (stored.nbytes,), (1,)).cpu()


def _on_cpu(spec: GroupSpec) -> dict[str, torch.Tensor]:
    """Its stored tensors on the CPU, with their strides."""
    return {stored.name: _one_on_cpu(stored) for stored in spec.stored}


def _one_on_cpu(stored: Stored) -> torch.Tensor:
    tensor = stored.tensor
    assert tensor is not None
    if tensor.device.type == "cpu":
        return tensor
    return as_stored(_bytes_of(stored), stored)


def known_model(session: _session.Session, name: str,
                specs: Sequence[GroupSpec], cast: bool) -> Model | None:
    """The model of that name, this user's or root's, if hoistd has all of
    these groups of it.

    FailedPrecondition: its groups of these names have other tensors.
    """
    try:
        model = session.model(name)
    except (NotFound, DataLoss):  # Lost groups are published again.
        return None
    known = False
    try:
        for spec in specs:
            if spec.name in model:
                check_group(model[spec.name], spec, cast)
        known = all(spec.name in model for spec in specs)
    finally:
        if not known:
            with contextlib.suppress(HoistError):
                session.done_with(model)
    return model if known else None


def same_model(session: _session.Session, content: bytes) -> Model | None:
    """A model with these weights by hoistd's own hash, of any user."""
    try:
        return session.find_content(content)
    except NotFound:
        return None


def check_group(group: Group, spec: GroupSpec, cast: bool) -> None:
    """FailedPrecondition: hoistd's group does not consist of these tensors."""
    infos = {info.name: info for info in group.tensors}
    for stored in spec.stored:
        info = infos.get(stored.name)
        meta = stored.meta
        dtype = _dtypes.from_torch(
            spec.storage.get(stored.name, meta.dtype) if cast else meta.dtype)
        if (info is None or info.shape != tuple(meta.shape)
                or info.dtype not in (dtype, _bits(dtype))
                or (meta.numel() > 1 and info.strides != meta.stride())):
            there = "nothing" if info is None else f"{info.dtype} {info.shape}"
            raise FailedPrecondition(
                f'hoistd has a model "{group.model.name}" whose group '
                f'"{group.name}" differs from this module in "{stored.name}": '
                f"{there} there, {dtype} {tuple(meta.shape)} here; give "
                "another name=")


def _bits(dtype: str) -> str:
    """The type in which some files have the bits of this one."""
    return "U8" if dtype == "F8_E8M0" else dtype


def publish(session: _session.Session, name: str, spec: GroupSpec,
            deadline: float) -> Model:
    """Hands one group over as it is."""
    return _publish(session, name, spec.name, _on_cpu(spec), deadline)


def publish_cast(session: _session.Session, name: str, spec: GroupSpec,
                 original: Group, deadline: float) -> Model:
    """Hands one group over in its stored types: from the module's own tensors,
    or from hoistd's once those are gone."""
    with contextlib.ExitStack() as opened:
        return prepare_cast(session, name, spec, original, deadline, opened)()


def prepare_cast(session: _session.Session, name: str, spec: GroupSpec,
                 original: Group, deadline: float,
                 opened: contextlib.ExitStack,
                 compute: Callable[[HostImage], dict[str, torch.Tensor]] =
                 lambda image: {}) -> Callable[[], Model]:
    """Makes the tensors that publish_cast hands over; the result does that, in
    any thread, before `opened` ends. Some may be computed from hoistd's
    instead."""
    if spec.in_hand:
        own = {stored.name: _cast(_one_on_cpu(stored), stored, spec)
               for stored in spec.stored}
        return lambda: _publish(session, name, spec.name, own, deadline)
    image = opened.enter_context(session.host_image(original))
    image.load(deadline)
    made = compute(image)
    tensors = {stored.name: _cast(
        made[stored.name] if stored.name in made
        else image[stored.name].torch(), stored, spec)
        for stored in spec.stored}
    # Another thread does not know this one's streams.
    for device in {one.device for one in tensors.values() if one.is_cuda}:
        torch.cuda.current_stream(device).synchronize()

    def hand_over() -> Model:
        with image:
            return _publish(session, name, spec.name, tensors, deadline)

    return hand_over


def staged_model(session: _session.Session, original: Model,
                 cast_to: str | None, specs: list[GroupSpec],
                 deadline: float) -> Model:
    """The model to stage for `original`'s weights: that one, or its casts by
    this name, which are made if hoistd does not have them."""
    if cast_to is None:
        return original
    known = known_model(session, cast_to, specs, cast=True)
    if known is not None:
        return known
    for spec in specs:
        publish_cast(session, cast_to, spec, original[spec.name], deadline)
    return session.model(cast_to)


def _cast(tensor: torch.Tensor, stored: Stored,
          spec: GroupSpec) -> torch.Tensor:
    """The tensor in its stored type, with the same strides: where it is, or on
    the CPU if there is no memory for it."""
    to = spec.storage.get(stored.name)
    if to is None:
        return tensor

    def cast(device: torch.device | str) -> torch.Tensor:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=to,
                                   device=device).copy_(tensor)

    with torch.no_grad():
        with contextlib.suppress(torch.OutOfMemoryError):
            return cast(tensor.device)
        return cast("cpu")


def _publish(session: _session.Session, model: str, group: str,
             tensors: dict[str, torch.Tensor], deadline: float) -> Model:
    try:
        return session.publish(model, group, tensors, deadline=deadline)
    except AlreadyExists as error:
        raise AlreadyExists(
            f"{error}; give these weights another name=, or none, to have "
            "them named by their content") from None


def cast_name(name: str, source: str, specs: Iterable[GroupSpec],
              storage: torch.dtype) -> str:
    """The name of the model with `source`'s weights as `storage`; it tells the
    cast ones. `source`: their content, in hexadecimal digits."""
    return derived_name(name, str(storage).removeprefix("torch."), source,
                        [(spec.name, sorted((one, str(to)) for one, to in
                                            spec.storage.items()))
                         for spec in specs])


def derived_name(name: str, what: str, *depends_on: object) -> str:
    """The name of weights that are made from others. It contains all inputs, as
    this user's workers find the weights by name."""
    digest = hashlib.sha256(repr(depends_on).encode())
    return f"{name}@{what}-{digest.hexdigest()[:32]}"
