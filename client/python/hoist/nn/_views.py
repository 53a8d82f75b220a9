"""A group's bytes at an address on a device, as plain tensors."""

from __future__ import annotations

from typing import Iterator, Mapping

import torch

from .._model import TensorInfo
from .._session import Device
from .._tensor import Tensor
from ._resident import KeptLease


class Views(Mapping[str, torch.Tensor]):
    """A staged group's plain tensors, by name."""

    def __init__(self, device: Device, infos: Mapping[str, TensorInfo],
                 address: int, keeps: KeptLease | None) -> None:
        """keeps: what each view is to keep."""
        self._keeps = keeps
        self._infos = infos
        self._address = address
        # What hoist.Tensor asks of a lease.
        self.device_kind = {"emulated": 1, "cuda": 2}[device.kind]
        self.device_uuid = device.uuid

    def check(self) -> None:
        """The attachment knows when views may be used."""

    def __getitem__(self, name: str) -> torch.Tensor:
        info = self._infos[name]
        address = self._address + info.offset if info.nbytes else 0
        return Tensor(self, info, address).torch()

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)
