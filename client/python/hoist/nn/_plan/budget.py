"""Budgets and devices in the callers' forms."""

from __future__ import annotations

import re
from typing import Any, Mapping, Union, cast

import torch

from ... import _session
from ..._errors import InvalidArgument, NotFound

Amount = Union[int, float, str, None]
# By hoistd's index, or an argument of torch.device. To type checkers a mapping
# with one kind of key has not several kinds, hence Any.
Budget = Union[Amount, Mapping[Any, Amount]]

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse(budget: Budget, name: str = "budget", several: bool = True) -> Any:
    """Parses text: returns bytes, a fraction or None; or, by device, `several`.

    name: the argument's, for InvalidArgument.
    """
    if several and isinstance(budget, Mapping):
        if not budget:
            raise InvalidArgument(f"{name}={{}} names no device")
        return {key: parse(one, name, False) for key, one in budget.items()}
    if isinstance(budget, str):
        match = re.fullmatch(
            r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([A-Za-z]*)\s*", budget)
        nbytes = 0 if match is None else int(
            float(match[1]) * _UNITS.get(match[2].upper(), 0))
        if nbytes == 0:
            raise InvalidArgument(
                f'{name}={budget!r} is no amount; write "8GiB", "500MB"')
        return nbytes
    if isinstance(budget, float):
        if not 0 < budget <= 1:
            raise InvalidArgument(
                f"{name}={budget} is a fraction of the model, which lies in "
                "(0, 1]; write bytes as an int")
    elif budget is not None and (isinstance(budget, bool) or not isinstance(
            budget, int) or budget <= 0):
        raise InvalidArgument(
            f"{name}={budget!r}: bytes (an int above 0), \"8GiB\", or a "
            "fraction (a float)")
    return budget


def to_bytes(amount: Amount, whole: int, name: str = "budget") -> int:
    """0 for None, all that hoistd can promise; a fraction is one of `whole`."""
    found = parse(amount, name, several=False)
    return max(1, int(found * whole)) if isinstance(found, float) else found or 0


def parse_one(budget: Budget) -> Amount:
    """A pipeline's budget; InvalidArgument: it is none."""
    if isinstance(budget, Mapping):
        raise InvalidArgument("a pipeline's budget is of one device; device= "
                              "says of which")
    return cast(Amount, parse(budget))


def find_device(session: _session.Session, wanted: Any
                ) -> tuple[_session.Device, torch.device]:
    """hoistd's device and its name in torch.

    wanted: None (the current GPU, if hoistd has it; else hoistd's first),
    hoistd's index, or an argument of torch.device.
    """
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        for device in session.devices:
            if device.index == wanted:
                return device, _torch_device(device)
        raise NotFound(f"hoistd has no device {wanted}; it has "
                       + _list(session))
    if wanted is None:
        if torch.cuda.is_available():
            for device in session.devices:
                if device.kind == "cuda" and _torch_device(device) == (
                        torch.device("cuda", torch.cuda.current_device())):
                    return device, _torch_device(device)
        first = session.devices[0]
        return first, _torch_device(first)
    try:
        if not isinstance(wanted, (str, torch.device)):
            raise TypeError
        target = torch.device(wanted)
    except (RuntimeError, TypeError):
        raise InvalidArgument(
            f"device={wanted!r} names no device; write hoistd's index, or what "
            'torch.device takes, as "cuda:1"; hoistd has ' + _list(session)
        ) from None
    if target.type == "cuda" and target.index is None:
        target = torch.device("cuda", torch.cuda.current_device())
    for device in session.devices:
        kind = {"emulated": "cpu", "cuda": "cuda"}[device.kind]
        if kind == target.type and (kind == "cpu" or
                                    _torch_device(device) == target):
            return device, _torch_device(device)
    raise NotFound(f"hoistd does not manage {target}; it has {_list(session)}")


def first_device(session: _session.Session, budget: Budget, wanted: Any
                 ) -> torch.device:
    """The name in torch of the first device that the budget names, else of the
    wanted one; find_device's errors."""
    if isinstance(budget, Mapping):
        wanted = next(iter(budget))
    return find_device(session, wanted)[1]


def _list(session: _session.Session) -> str:
    return ", ".join(f"{device.index} ({device.kind}, {device.name})"
                     for device in session.devices)


def _torch_device(device: _session.Device) -> torch.device:
    if device.kind == "emulated":
        return torch.device("cpu")
    from ..._tensor import _cuda_device
    return torch.device(_cuda_device(device.uuid))
