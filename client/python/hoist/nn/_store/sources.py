"""Finds a module's weights again after the end of the hoistd that had them: in
its successor, or without one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from typing import Iterator, Mapping, Protocol, Sequence

import torch

from ... import _session
from ..._dtypes import SUB_BYTE, torch_dtype
from ..._errors import DataLoss, HoistError, NotFound
from ..._model import Model
from ..._registration import Joined
from ...checkpoint import (Bytes, FileTensor, Paths, find_files, identity,
                           one_path, read_headers)
from .._tree.layout import GroupSpec
from .converting import Conversion
from .hand_over import same_model
from .uses import ended_if_it_fails


class Source(Protocol):
    """Of one attached module. It refers to no module."""

    readable: bool  # Whether `read` may return anything.

    def find(self, session: _session.Session,
             specs: list[GroupSpec]) -> Model:
        """The model with the same content. DataLoss: the content has changed;
        NotFound: it is gone."""

    def read(self, spec: GroupSpec) -> Mapping[str, torch.Tensor]:
        """The stored tensors' bytes, without hoistd. DataLoss, NotFound, or
        errors of open(): they are unavailable."""


class Published:
    """Weights that a worker handed over. Only hoistd has them: the host copies
    outlive it under systemd and hoist-keeper."""

    readable = False

    def __init__(self, model: Model, content: bytes | None) -> None:
        """content: the hash of the weights; None: the model's fingerprint."""
        self._name = model.name
        self._fingerprint = model.fingerprint
        self._content = content

    def find(self, session: _session.Session,
             specs: list[GroupSpec]) -> Model:
        if self._content is not None:
            found = same_model(session, self._content)
        else:
            found = self._named(session)
        if found is None:
            raise NotFound(
                f'hoistd was started again without the weights of "{self._name}"'
                ", which it had from a worker; have one that has them attach "
                "them again, or hoist.detach(module) and give it weights of "
                "its own. (Under systemd or hoist-keeper hoistd keeps them)")
        return found

    def _named(self, session: _session.Session) -> Model | None:
        try:
            found = session.model(self._name)
        except NotFound:
            return None
        if found.fingerprint != self._fingerprint:
            raise DataLoss(
                f'hoistd was started again, and its model "{self._name}" has '
                "other weights than this module's; hoist.detach(module)")
        return found

    def read(self, spec: GroupSpec) -> Mapping[str, torch.Tensor]:
        raise NotFound("only hoistd had them")


@dataclasses.dataclass
class Files:
    """Weights in safetensors files, or made of those."""

    paths: Paths
    name: str
    groups: Mapping[str, list[str]]
    joined: Mapping[str, Joined]
    fingerprint: bytes  # Of the files' model.
    unchanged: str  # checkpoint.identity of the files.
    conversion: Conversion | None
    deadline: float
    readable = True

    def __post_init__(self) -> None:
        # The worker may change its directory meanwhile.
        self.paths = (os.path.abspath(self.paths)
                      if isinstance(self.paths, (str, os.PathLike)) else
                      [os.path.abspath(path) for path in self.paths])

    def find(self, session: _session.Session,
             specs: list[GroupSpec]) -> Model:
        with self._opened() as path:
            self._check(find_files(path))
            found = session.register(path, self.name, groups=self.groups,
                                     joined=self.joined)
        if found.fingerprint != self.fingerprint:
            with contextlib.suppress(HoistError):
                session.forget(found)  # It would block the name for others.
            raise self._changed()
        if self.conversion is None:
            return found
        with ended_if_it_fails() as uses:
            return self.conversion.model(session, specs, found, self.deadline,
                                         uses)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            try:
                path = stack.enter_context(one_path(self.paths))
            except FileNotFoundError as error:
                raise NotFound(str(error)) from None
            yield path

    def _changed(self) -> DataLoss:
        return DataLoss(
            f"hoistd was started again, and the files of {self.name!r} have "
            f"changed since they were loaded ({self.paths}); put them back, or "
            "hoist.detach(module), and load it again")

    def read(self, spec: GroupSpec) -> Mapping[str, torch.Tensor]:
        with self._opened() as path:
            files = find_files(path)
            self._check(files)
            reading = _Reading(self, spec, read_headers(files), Bytes(files))
            found = {stored.name: reading.bytes_of(stored.name)
                     for stored in spec.stored}
            self._check(files)
        return found

    def _check(self, files: Sequence[pathlib.Path]) -> None:
        try:
            same = identity(files, "") == self.unchanged
        except FileNotFoundError as error:
            raise NotFound(str(error)) from None
        if not same:
            raise self._changed()


@dataclasses.dataclass
class _Reading:
    """The read of one group by this process."""

    source: Files
    spec: GroupSpec
    headers: Mapping[str, FileTensor]
    files: Bytes

    def bytes_of(self, name: str) -> torch.Tensor:
        conversion = self.source.conversion
        if conversion is None:
            return self._tensor(name).reshape(-1).view(torch.uint8)
        if name in conversion.computed:
            computed, key = conversion.computed[name]
            with torch.no_grad():
                made = computed.run({one: self._file_tensor(one)
                                     for one in computed.inputs})[key]
        else:
            made = self._tensor(name)
        dtype = conversion.storage[self.spec.name].get(name)
        if dtype is not None:
            made = made.to(dtype)
        return made.contiguous().reshape(-1).view(torch.uint8)

    def _tensor(self, name: str) -> torch.Tensor:
        joined = self.source.joined.get(name)
        if joined is None:
            return self._file_tensor(name)
        parts = [(part, 0, 0) if isinstance(part, str) else part
                 for part in ([joined.parts] if isinstance(joined.parts, str)
                              else joined.parts)]
        whole = bytearray()
        for part in parts:
            whole += self.files.read(*part)
        return _as_tensor(whole, self.headers[parts[0][0]].dtype,
                          joined.shape)

    def _file_tensor(self, name: str) -> torch.Tensor:
        header = self.headers[name]
        return _as_tensor(self.files.read(name), header.dtype, header.shape)


def _as_tensor(found: bytearray, dtype: str,
               shape: tuple[int, ...]) -> torch.Tensor:
    if not found:
        return torch.empty(shape, dtype=torch_dtype(dtype), device="cpu")
    flat = torch.frombuffer(found, dtype=torch.uint8)
    if dtype in SUB_BYTE:
        return flat
    return flat.view(torch_dtype(dtype)).reshape(shape)
