"""Weights that one engine has processed, and others take unchanged.

They are a published model of hoistd: a group for each layer, and for each piece
of a tensor that is read in place. The last one has a manifest, which maps its
tensors to names in the module and identifies the engine. A model without one is
incomplete, and not used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import pathlib
import stat
import tempfile
import time
from types import MappingProxyType
from typing import IO, Any, Iterator, Mapping, Sequence

import torch
from torch import nn

from .. import _dtypes, _session
from .._errors import (AlreadyExists, DataLoss, DeadlineExceeded,
                       FailedPrecondition, NotFound)
from .._in_order import in_order
from .._model import Model
from ._binding import modules_of, put, tell_others
from ._recipes import Cut, Held, Pieces, group_of, held_by

_MANIFEST = "(manifest)"
_FORMAT = 1
_LOOK_AGAIN = 0.05  # Seconds.


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of a published model.

    key: all that decides its layout and bytes, by field.
    held: for each parameter and buffer: its names in the module, whether it is
        a parameter, its shape and type.
    cuts: by a tensor's first name; the others are whole.
    """

    key: Mapping[str, str]
    held: tuple[tuple[tuple[str, ...], bool, tuple[int, ...], str], ...]
    cuts: Mapping[str, Cut]

    @property
    def stored(self) -> dict[str, tuple[str, str]]:
        """In Weights' form; tensors without elements are in no group."""
        return {names[0]: (group_of(names), names[0])
                for names, _, shape, _ in self.held
                if 0 not in shape and names[0] not in self.cuts}

    @property
    def pieces(self) -> dict[str, Pieces]:
        """Of the tensors that are cut."""
        made = {}
        for (name, *_), _, shape, dtype in self.held:
            if name in self.cuts:
                cut, size = self.cuts[name], _dtypes.torch_dtype(dtype).itemsize
                made[name] = Pieces(dtype, shape, cut.units, tuple(
                    piece for piece, _, _ in
                    cut.pieces(name, math.prod(shape), size)))
        return made

    def check(self, name: str, key: Mapping[str, str]) -> None:
        """FailedPrecondition: it is another engine's; names the fields."""
        differ = [f"{field} is {key.get(field, 'nothing')} here and "
                  f"{self.key.get(field, 'nothing')} there"
                  for field in sorted({*key, *self.key})
                  if key.get(field) != self.key.get(field)]
        if differ:
            raise FailedPrecondition(
                f'hoistd has the weights of another engine as "{name}": '
                f"{'; '.join(differ)}. Give this one a name of its own, or "
                f'hoist.forget("{name}") once nobody uses it')


def find(session: _session.Session, name: str
         ) -> tuple[Model, Manifest] | None:
    """This user's, or root's, if it is complete. DataLoss: this version of
    hoist cannot read the manifest."""
    try:
        model = session.model(name)
    except (NotFound, DataLoss):
        return None
    if _MANIFEST not in model:
        return None
    with session.host_image(model[_MANIFEST]) as image:
        image.load()
        text = bytes(image["manifest"].torch().tolist())
    try:
        said = json.loads(text)
        if said["format"] != _FORMAT:
            raise ValueError(f"format {said['format']}")
        return model, Manifest(said["key"], tuple(
            (tuple(names), bool(kind), tuple(shape), dtype)
            for names, kind, shape, dtype in said["held"]),
            {of: Cut(*cut) for of, cut in said.get("cuts", {}).items()})
    except (ValueError, KeyError, TypeError) as error:
        raise DataLoss(f'"{name}" in hoistd was published by another version '
                       f'of hoist ({error}); hoist.forget("{name}")') from None


def publish(session: _session.Session, name: str, key: Mapping[str, str],
            module: nn.Module | None, deadline: float,
            cuts: Mapping[str, Cut] = MappingProxyType({})) -> None:
    """Hands over all of the module's parameters and buffers; None: a key
    alone, for weights in files. deadline: seconds to wait for space, for each
    group. cuts: by a contiguous tensor's first name; the others are whole.
    AlreadyExists: the name has other weights.

    An incomplete model of that name is replaced unless it is the same, since
    uninitialised memory has other bytes each time.
    """
    try:
        _publish(session, name, key, module, deadline, cuts)
    except AlreadyExists:
        half = session.model(name)
        if _MANIFEST in half:
            raise
        session.forget(half)
        _publish(session, name, key, module, deadline, cuts)


def _publish(session: _session.Session, name: str, key: Mapping[str, str],
             module: nn.Module | None, deadline: float,
             cuts: Mapping[str, Cut]) -> None:
    held = held_by(module) if module is not None else []

    def hand_over(group: tuple[str, dict[str, torch.Tensor]]) -> None:
        session.publish(name, *group, deadline=deadline)

    with in_order(hand_over, _groups(held, cuts)) as handed_over:
        for _ in handed_over:
            pass
    text = json.dumps({"format": _FORMAT, "key": dict(key),
                       "held": [_said_of(one) for one in held],
                       "cuts": {of: dataclasses.astuple(cut)
                                for of, cut in cuts.items()}}).encode()
    session.publish(name, _MANIFEST, {
        "manifest": torch.tensor(list(text), dtype=torch.uint8,
                                 device="cpu")}, deadline=deadline)


def _groups(held: Sequence[Held], cuts: Mapping[str, Cut]
            ) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """On the host, each when it is asked for."""
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for one in held:
        first = one.names[0]
        if first in cuts:
            whole = one.tensor.detach().reshape(-1)
            for piece, at, count in cuts[first].pieces(
                    first, whole.numel(), whole.dtype.itemsize):
                yield piece, {piece: whole[at:at + count].cpu()}
        elif one.tensor.numel():
            group = groups.setdefault(group_of(one.names), {})
            group[first] = one.tensor.detach()
    for group_name, tensors in groups.items():
        yield group_name, {first: tensor.cpu()
                           for first, tensor in tensors.items()}


def _said_of(held: Held) -> list[Any]:
    return [held.names, held.is_parameter, list(held.tensor.shape),
            _dtypes.from_torch(held.tensor.dtype)]


def shape_like(module: nn.Module, manifest: Manifest) -> None:
    """Gives the module the parameters and buffers that it has after its weights
    are processed: some are gone then, and others are new."""
    published = {name for names, *_ in manifest.held for name in names}
    modules = modules_of(module)
    before = {name: held.tensor for held in held_by(module)
              for name in held.names}
    replaced: dict[int, torch.Tensor] = {}
    for held in held_by(module):
        for name in held.names:
            if name not in published:
                owner, _, leaf = name.rpartition(".")
                modules[owner]._parameters.pop(leaf, None)
                modules[owner]._buffers.pop(leaf, None)
    for names, is_parameter, shape, dtype in manifest.held:
        made = torch.empty(shape, dtype=_dtypes.torch_dtype(dtype),
                           device="meta")
        if is_parameter:
            made = nn.Parameter(made, requires_grad=False)
        put(modules, names, made)
        replaced.update((id(before[name]), made) for name in names
                        if name in before)
    tell_others(module, replaced)


def name_of(what: str, key: Mapping[str, str]) -> str:
    """A model's name in hoistd: the same for engines of the same key."""
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode())
    return f"{what}-{digest.hexdigest()[:16]}"


@contextlib.contextmanager
def one_at_a_time(name: str, deadline: float) -> Iterator[None]:
    """One of this user's processes on this node at a time is in the block for a
    name; others wait until it leaves or dies. Containers do not see each
    other's locks, and publish the same bytes twice, which hoistd keeps once.

    DeadlineExceeded: it took more than `deadline` seconds. FailedPrecondition:
    another user has made the folder of this one's locks.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    path = _folder_of_locks() / f"{digest}.lock"
    end = time.monotonic() + deadline
    while True:
        with open(path, "a") as file:
            if _lock(file, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return
        if time.monotonic() >= end:
            raise DeadlineExceeded(
                f'another process has been publishing "{name}" for '
                f"{deadline:g} s; wait longer (deadline), or see what keeps it")
        time.sleep(_LOOK_AGAIN)


def _folder_of_locks() -> pathlib.Path:
    folder = pathlib.Path(
        os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(),
        f"hoist-publish-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise FailedPrecondition(
            f"{folder} is not a folder of this user's, who has to lock there; "
            "have it removed, or set XDG_RUNTIME_DIR")
    return folder


def _lock(file: IO[str], path: pathlib.Path) -> bool:
    """Whether it is locked now; its last holder has removed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
