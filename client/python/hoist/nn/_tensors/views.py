"""Bytes at an address on a device, as plain tensors."""

from __future__ import annotations

import torch

from ..._library import DEVICE_KINDS
from ..._model import TensorInfo
from ..._session import Device
from ..._tensor import Tensor


class Views:
    """What hoist.Tensor needs of a lease; each view keeps it."""

    def __init__(self, device: Device, keeps: object) -> None:
        self._keeps = keeps
        self.device_kind = DEVICE_KINDS[device.kind]
        self.device_uuid = device.uuid

    def check(self) -> None:
        """The attachment decides when views may be used."""

    def at(self, address: int, info: TensorInfo) -> torch.Tensor:
        return Tensor(self, info, address if info.nbytes else 0).torch()
