"""Weights that are computed from the files': on the device, or on the CPU if the
device has no memory for it."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import pytest

torch = pytest.importorskip("torch")

from hoist.checkpoint import Computed  # noqa: E402
from hoist.nn._store.converting import run_on  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


class OnDevice(torch.Tensor):
    """Values in host memory that say that they are on a GPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls: type[OnDevice], values: torch.Tensor) -> OnDevice:
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), dtype=values.dtype,
            device=CUDA)
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        made = func(*(one.values if isinstance(one, OnDevice) else one
                      for one in args), **(kwargs or {}))
        return OnDevice(made)


class Copies(TorchFunctionMode):
    """Stands in for copies on and to a GPU, which torch for CPUs lacks."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        if func is torch.Tensor.to and args[1] == CUDA:
            return OnDevice(args[0].clone())
        if isinstance(args[0] if args else None, OnDevice):
            if func is torch.Tensor.cpu:
                return args[0].values
            if func is torch.Tensor.contiguous:
                return OnDevice(args[0].values.contiguous())
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with Copies():
        yield


class Converter:
    """Writes to its inputs, as it may; records where they are."""

    def __init__(self, fails_on: tuple[torch.device, ...] = (),
                 error: type[Exception] = torch.OutOfMemoryError) -> None:
        self.devices: list[torch.device] = []
        self._fails_on, self._error = fails_on, error

    def __call__(self, tensors: Mapping[str, torch.Tensor]
                 ) -> dict[str, torch.Tensor]:
        value = tensors["x"]
        self.devices.append(value.device)
        value.mul_(2)
        if value.device in self._fails_on:
            raise self._error("as it is told")
        return {"weight": value.T}

    def computed(self) -> Computed:
        return Computed(("x",), {"weight": torch.empty(3, 2, device="meta")},
                        self, "")


def given() -> torch.Tensor:
    return torch.arange(6.).reshape(2, 3)


@pytest.mark.parametrize("device, out_of_memory, on", [
    (CPU, (), [CPU]), (CUDA, (), [CUDA]), (CUDA, (CUDA,), [CUDA, CPU])])
def test_the_device_computes_or_else_the_cpu(device, out_of_memory, on):
    converter, x = Converter(out_of_memory), given()
    made = run_on(device, converter.computed(), {"x": x})["weight"]
    assert converter.devices == on
    assert made.device == CPU and made.is_contiguous()
    assert torch.equal(made, given().T * 2)
    assert torch.equal(x, given())


@pytest.mark.parametrize("fails_on, error, on", [
    ((CUDA,), ValueError, [CUDA]),
    ((CUDA, CPU), torch.OutOfMemoryError, [CUDA, CPU])])
def test_other_errors_and_the_cpus_are_the_callers(fails_on, error, on):
    converter = Converter(fails_on, error)
    with pytest.raises(error, match="as it is told"):
        run_on(CUDA, converter.computed(), {"x": given()})
    assert converter.devices == on
