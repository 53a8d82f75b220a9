"""Attaches that fail at any of their calls, and what a module has of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from typing import Any, Callable, Iterator

import pytest
import torch
from torch import nn

import hoist
from deaths import start_again
from hoist import _hot, _library
from real_daemon import RealDaemon, Refused

HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs",
         "_forward_hooks_always_called", "_forward_pre_hooks",
         "_forward_pre_hooks_with_kwargs", "_backward_hooks",
         "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks",
         "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


# libhoist's calls that send hoistd something, or wait for it, or see its end.
MESSAGES = {f"hoist_{name}" for name in (
    "connect", "session_check", "session_has_in_place", "describe_model",
    "find_content", "publish_group", "register_model", "stage",
    "lease_release", "lease_check", "host_image_create", "host_image_load",
    "set_plan", "plan_stage", "plan_done", "plan_check", "plan_describe",
    "plan_set_budget", "done_with_model", "in_place_create",
    "in_place_address", "in_place_begin", "in_place_advance")}


class Belongings:
    """All that a module has of its own: the objects, where they lie, what they
    are, and what stands in and around it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._values = dict(self._all_values())
        self._facts = {key: _facts(value)
                       for key, value in self._values.items()}
        self._bytes = {key: value.detach().clone()
                       for key, value in model.state_dict().items()}
        self._around = dict(self._all_around())

    def _all_values(self) -> Iterator[tuple[tuple[str, str], Any]]:
        for name, module in self._model.named_modules():
            for key, value in (*module._parameters.items(),
                               *module._buffers.items()):
                yield (name, key), value
            for at, value in enumerate(vars(module).get("_flat_weights", ())):
                yield (name, f"_flat_weights {at}"), value

    def _all_around(self) -> Iterator[tuple[str, Any]]:
        for name, module in self._model.named_modules():
            yield name, (sorted(vars(module)), module.forward,
                         *(list(getattr(module, one).items())
                           for one in HOOKS))

    def assert_all_there(self) -> None:
        values = dict(self._all_values())
        assert list(values) == list(self._values)
        for key, value in values.items():
            assert value is self._values[key], key
            assert _facts(value) == self._facts[key], key
        for key, value in self._model.state_dict().items():
            assert torch.equal(value, self._bytes[key]), key
        assert dict(self._all_around()) == self._around


def _facts(value: Any) -> Any:
    if value is None:
        return None
    return (value.data_ptr() if value.device.type != "meta" else 0,
            value.dtype, value.shape, value.stride(), value.device,
            value.requires_grad, sorted(vars(value)))


class Calls:
    """The package's messages, and what comes before one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []
        self._act_at: int | tuple[str, int] = -1
        self._act: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._library = _library.load()

    def act_at(self, which: int | str | tuple[str, int],
               act: Callable[[], None]) -> None:
        """Before the call of that number, from now on; or the first of that
        name; or, of that name, the one of that number, from 1. Some calls are
        repeated until something is there: how many there are, nobody knows."""
        self.count, self.names = 0, []
        self._act_at = (which, 1) if isinstance(which, str) else which
        self._act = act

    def act_no_more(self) -> None:
        self._act_at = -1

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        if name not in MESSAGES:
            return function

        def call(*arguments: Any) -> Any:
            with self._lock:
                at, self.count = self.count, self.count + 1
                self.names.append(name)
                acts = self._act_at in (at, (name, self.names.count(name)))
                if acts:
                    self._act_at = -1
            if acts:
                self._act()
            return function(*arguments)

        return call

    __getitem__ = __getattr__


def fail() -> None:
    raise hoist.ResourceExhausted("no space")


def interrupt() -> None:
    raise KeyboardInterrupt


def drain(daemon: RealDaemon) -> None:
    with contextlib.suppress(Refused):  # Leases are still held.
        daemon.ctl("drain", "--deadline", "0")


def plant(daemon: RealDaemon) -> None:
    raise ValueError("planted")


def fill(daemon: RealDaemon) -> None:
    """All of the host tier that may be had, until it is forgotten."""
    size = daemon.tier("HOST")["capacity_bytes"]
    with hoist.connect(daemon.socket) as session:
        for number in itertools.count():
            try:
                session.publish("filler", f"g{number}", {
                    "w": torch.zeros(size, dtype=torch.uint8)}, deadline=0.05)
            except hoist.ResourceExhausted:
                size //= 2
                if size < 4096:
                    break
        daemon.ctl("pin", "filler", "--tier", "host")


def unfill(daemon: RealDaemon) -> None:
    daemon.ctl("evict", "filler", "--forget")


def assert_all_may_go(daemon: RealDaemon) -> None:
    """Nothing holds memory of the host tier: one image may have all of it."""
    with hoist.connect(daemon.socket) as session:
        session.publish("all", "g", {"w": torch.zeros(
            daemon.tier("HOST")["capacity_bytes"], dtype=torch.uint8)},
                        deadline=1)
    daemon.ctl("evict", "all", "--forget")


def drain_and_plant(daemon: RealDaemon) -> None:
    """A session goes on with its models while hoistd drains."""
    drain(daemon)
    plant(daemon)


# What comes before the last group of a load is computed, and what ends it.
LATE: dict[str, tuple[Callable[[RealDaemon], None],
                      Callable[[RealDaemon], None]]] = {
    "error": (plant, lambda daemon: None), "full": (fill, unfill),
    "interrupt": (lambda daemon: interrupt(), lambda daemon: None),
    "drain": (drain_and_plant, lambda daemon: daemon.ctl("drain", "--resume")),
    "kill": (lambda daemon: daemon.kill(), start_again)}


def models_in(daemon: RealDaemon) -> set[str]:
    return {one["name"] for one in
            json.loads(daemon.ctl("models", "--json"))["models"]}


def forget_all(daemon: RealDaemon) -> None:
    for name in models_in(daemon):
        with contextlib.suppress(Refused):  # It is in use.
            daemon.ctl("evict", name, "--forget")


def end_sessions(daemon: RealDaemon) -> None:
    for one in json.loads(daemon.ctl("--json", "sessions"))["sessions"]:
        with contextlib.suppress(Refused):  # It has not let go by then.
            daemon.ctl("end", str(one["id"]), "--deadline", "0")


def is_given_back(daemon: RealDaemon) -> bool:
    found = daemon.tier("DEVICE")
    return not (found["leased_bytes"] or found["pinned_bytes"])


class Pipe:
    """A pipeline of plain modules."""

    def __init__(self, **components: nn.Module) -> None:
        self.components = components


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """For the block, what the package calls."""
    calls = Calls()
    with monkeypatch.context() as patch:
        patch.setattr(_library, "load", lambda: calls)
        # The extension has addresses of functions.
        patch.setattr(_hot, "fast", lambda: None)
        yield calls
