"""Weights that are computed from the files': on the device, or on the CPU if the
device has no memory for it."""

from __future__ import annotations

import threading
from typing import Any, Callable, Iterator, Mapping

import pytest

torch = pytest.importorskip("torch")

from hoist import NotFound  # noqa: E402
from hoist.checkpoint import Computed  # noqa: E402
from hoist.nn._store import converting  # noqa: E402
from hoist.nn._store.converting import Conversion, run_on  # noqa: E402
from hoist.nn._tree.layout import GroupSpec  # noqa: E402
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
    assert made.device == on[-1] and made.is_contiguous()
    values = made.values if isinstance(made, OnDevice) else made
    assert torch.equal(values, given().T * 2)
    assert torch.equal(x, given())


@pytest.mark.parametrize("fails_on, error, on", [
    ((CUDA,), ValueError, [CUDA]),
    ((CUDA, CPU), torch.OutOfMemoryError, [CUDA, CPU])])
def test_other_errors_and_the_cpus_are_the_callers(fails_on, error, on):
    converter = Converter(fails_on, error)
    with pytest.raises(error, match="as it is told"):
        run_on(CUDA, converter.computed(), {"x": given()})
    assert converter.devices == on


class Steps:
    """A hoistd with the model that it is given, and what was done to groups, in
    order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.there = ""  # hoistd's groups, which stand for its model.
        self.lock = threading.Lock()
        self.before_hand_over: Callable[[str], None] = lambda group: None
        self.before_compute: Callable[[str], None] = lambda group: None
        monkeypatch.setattr(converting, "prepare_cast", self._prepare)

    def _prepare(self, session: Any, name: str, spec: GroupSpec, *_: Any
                 ) -> Callable[[], str]:
        self.before_compute(spec.name)
        self.done.append(f"compute {spec.name}")

        def hand_over() -> str:
            self.before_hand_over(spec.name)
            self.done.append(f"hand over {spec.name}")
            with self.lock:
                self.there += spec.name
                return self.there

        return hand_over

    def model(self, name: str) -> Any:  # The session's.
        if not self.there:
            raise NotFound(name)
        return self.there

    def makes(self, session: Any, name: str) -> None:  # The uses'.
        pass

    def add(self, session: Any, model: str) -> None:
        self.done.append(f"use {model}")

    def run(self, groups: str) -> Any:
        given: Any = self
        return Conversion("m", dict.fromkeys(groups, {}), {}, CPU).model(
            given, [GroupSpec(one) for one in groups],
            dict.fromkeys(groups), 1.0, given)


def test_a_group_is_computed_while_two_are_handed_over(monkeypatch):
    steps, c_computes = Steps(monkeypatch), threading.Event()

    def before_compute(group: str) -> None:
        if group == "c":
            c_computes.set()
        if group == "d":
            assert "hand over a" in steps.done

    def before_hand_over(group: str) -> None:
        assert c_computes.wait(60)

    steps.before_compute = before_compute
    steps.before_hand_over = before_hand_over
    assert sorted(steps.run("abcd")) == list("abcd")
    assert "".join(sorted(one[-1] for one in steps.done
                          if one.startswith("hand over"))) == "abcd"


def test_the_whole_model_is_used_whichever_group_arrives_last(monkeypatch):
    steps, b_arrived = Steps(monkeypatch), threading.Event()

    def before_hand_over(group: str) -> None:
        if group == "a":
            assert b_arrived.wait(60)

    def used(session: Any, model: str) -> None:
        if model == "b":
            b_arrived.set()

    steps.before_hand_over = before_hand_over
    monkeypatch.setattr(steps, "add", used)
    assert steps.run("ab") == "ba"


def test_no_thread_is_needed(monkeypatch):
    steps = Steps(monkeypatch)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert steps.run("abc") == "abc"


def test_what_was_handed_over_before_an_error_is_used(monkeypatch):
    steps, b_computes = Steps(monkeypatch), threading.Event()

    def before_compute(group: str) -> None:
        if group == "b":
            b_computes.set()
            raise ValueError("as it is told")

    def before_hand_over(group: str) -> None:
        assert b_computes.wait(60)

    steps.before_compute = before_compute
    steps.before_hand_over = before_hand_over
    with pytest.raises(ValueError, match="as it is told"):
        steps.run("abc")
    assert steps.done == ["compute a", "hand over a", "use a"]


def test_no_group_is_handed_over_after_an_error_is_seen(monkeypatch):
    steps = Steps(monkeypatch)

    def before_hand_over(group: str) -> None:
        if group == "a":
            raise ValueError("as it is told")

    steps.before_hand_over = before_hand_over
    with pytest.raises(ValueError, match="as it is told"):
        steps.run("abcd")
    assert "hand over c" not in steps.done
    assert "compute d" not in steps.done
