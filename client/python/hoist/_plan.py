"""Plans: groups staged in sequence, without messages."""

from __future__ import annotations

import contextlib
import ctypes as c
import dataclasses
import operator
import threading
from typing import (Any, Callable, Iterable, Iterator, Mapping, NoReturn,
                    TypedDict)

from . import _c
from ._errors import (FailedPrecondition, HoistError, InvalidArgument,
                      NotFound)
from ._hot import Stream, calls_of
from ._library import (DEVICE_KINDS, Owner, ask, call, described, milliseconds,
                       sized)
from ._model import Group, Model, TensorInfo
from ._tensor import Tensor


_KINDS = {_c.PLANNED_RESIDENT: "resident", _c.PLANNED_STREAMED: "streamed",
          _c.PLANNED_NOT: "unplanned"}


class PlanTerms(TypedDict, total=False):
    """A plan's terms besides its groups and budget, for Session.set_plan,
    hoist.attach and hoist.load."""

    stage_deadline: float  # Seconds for a group's bytes to arrive; 0: 60.
    # How the device's link is shared with other plans.
    weight: int  # 1 to 1,000.
    priority: int  # -10 to 10; higher goes first.
    max_bytes_per_second: int  # 0: no cap.


# Each numeric term's minimum and maximum.
_BOUNDS = {"weight": (1, 1000), "priority": (-10, 10),
           "max_bytes_per_second": (0, 2**64 - 1)}


def check_terms(terms: Mapping[str, Any]) -> None:
    """InvalidArgument: a term is out of bounds. TypeError: a term is unknown,
    or not a number."""
    for name, value in terms.items():
        if name not in PlanTerms.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
        if name not in _BOUNDS:
            if not 0 <= float(value) < float("inf"):
                raise InvalidArgument(f"{name}={value!r} is no time; give "
                                      "seconds, or 0")
            continue
        least, most = _BOUNDS[name]
        if not least <= operator.index(value) <= most:
            raise InvalidArgument(f"{name}={value!r} is not between {least} "
                                  f"and {most}")


def write_terms(options: _c.PlanOptions, terms: Mapping[str, Any]) -> None:
    """Writes the terms into the options; errors: see check_terms."""
    check_terms(terms)
    for name, value in terms.items():
        if hasattr(options, name + "_ms"):
            setattr(options, name + "_ms", milliseconds(value))
        else:
            setattr(options, name, value)


@dataclasses.dataclass(frozen=True)
class PlanInfo:
    """A plan's facts; see hoist_plan_info."""

    id: int
    device: int
    budget_bytes: int
    resident_bytes: int
    ring_bytes: int
    streamed_bytes: int  # Copied in each pass that follows the order.
    group_count: int
    streamed_count: int
    lead: int  # Steps by which a copy can start early; 1: it is not hidden.
    learning: bool
    # hoistd asks for the memory: close the plan once it was idle for `idle_ms`.
    asked_to_give_way: bool
    idle_ms: int


@dataclasses.dataclass(frozen=True)
class PlanStats:
    """A plan's counters; see hoist_plan_stats."""

    stages: int
    resident_stages: int
    ready_stages: int
    skipped: int
    unplanned: int
    host_waits: int
    wake_ups: int


class PlannedTensors(Mapping[str, Tensor]):
    """A group's tensors under a plan: a mapping by name.

    Views from Plan.tensors can be made once: they are valid until the plan
    changes, and show the group's bytes whenever it is staged. Views from
    Plan.use are valid in its block.
    """

    def __init__(self, plan: Plan, group: Group,
                 address_of: Callable[[int, TensorInfo], int],
                 check: Callable[[], None]) -> None:
        self._plan = plan
        self.group = group
        self.check = check
        self.device_kind = plan.device_kind
        self.device_uuid = plan.device_uuid
        self._address_of = address_of
        self._places = plan._places_of(group)

    def __getitem__(self, name: str) -> Tensor:
        try:
            index, info = self._places[name]
        except KeyError:
            raise NotFound(f'group "{self.group.name}" has no tensor '
                           f'"{name}"') from None
        return Tensor(self, info, self._address_of(index, info))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return (f"<hoist.PlannedTensors of {self.group.name!r}: "
                f"{len(self)} tensors>")


class Plan(Owner):
    """A pass over a model's groups, in a budget of device memory.

    Session.set_plan makes it. `stage` and `done` neither wait for the GPU nor
    send messages in steady state. Groups that are skipped, repeated or outside
    the order are still correct, but slower, and counted.

    Threads: one at a time, but `info` and `stats`, from any. They raise
    InvalidArgument once it is closed.
    """

    def __init__(self, session: Any, model: Model, handle: c.c_void_p) -> None:
        self.session = session  # Keeps it alive.
        self._reading = threading.Lock()  # Of facts: others may close it.
        # Called for each group in each pass.
        self._calls = calls_of(handle.value, ask("model_group_count",
                                                 model._handle))
        self._stage, self._done = self._calls.stage, self._calls.done
        self._own(handle, "plan_free")
        self.model = model
        self._model_id = model.id
        facts = session._device(self.info.device)
        self.device_kind: int = DEVICE_KINDS[facts.kind]
        self.device_uuid: bytes = facts.uuid
        self._places: dict[int, dict[str, tuple[int, TensorInfo]]] = {}

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the GPU and releases everything; the plan's views become
        invalid. Idempotent."""
        self._dispose()

    def _dispose(self) -> None:
        free, self._free = self._free, None
        if free is not None:
            with self._reading:
                handle, self._handle = self._handle, c.c_void_p()
                self._calls.close()
            free(handle)

    def stage(self, group: Group, *, stream: Stream = None) -> int:
        """Makes the group usable by later work on the stream, and returns its
        address. On an emulated device it waits for the bytes."""
        if group.model.id != self._model_id:
            self._refuse(group)
        calls = self._calls
        calls.address = 0
        try:
            return self._stage(group.index, stream)
        except BaseException:  # Ctrl-C, raised after the wait.
            if calls.address:
                with contextlib.suppress(HoistError):
                    self.done(group, stream=stream)
            raise

    def done(self, group: Group, *, stream: Stream = None) -> None:
        """Marks the stream's work so far as the group's last use."""
        if group.model.id != self._model_id:
            self._refuse(group)
        self._done(group.index, stream)

    @contextlib.contextmanager
    def use(self, group: Group, *,
            stream: Stream = None) -> Iterator[PlannedTensors]:
        """Stages the group for the block, and yields its tensors.

        `with plan.use(group, stream=stream) as tensors:`
        """
        address = self.stage(group, stream=stream)
        ended = False

        def check() -> None:
            if ended:
                raise FailedPrecondition(
                    f'group "{group.name}" is done; stage it again')
            self.check()

        try:
            yield PlannedTensors(
                self, group,
                lambda _, info: address + info.offset if info.nbytes else 0,
                check)
        finally:
            ended = True
            self.done(group, stream=stream)

    def tensors(self, group: Group) -> PlannedTensors:
        """A planned group's tensors, at its addresses when it is staged. Waits
        for a resident group that is still in transfer."""
        number = self._index(group)
        if self.kind(group) == "unplanned":
            raise FailedPrecondition(
                f'group "{group.name}" is not in the plan, so it has no '
                "address before it is staged")
        planned = self.info.id

        def address_of(index: int, _: TensorInfo) -> int:
            record = sized(_c.TensorInfo)
            call("plan_tensor", self._handle, number, index, c.byref(record))
            return record.data or 0

        def check() -> None:
            self.check()
            if self.info.id != planned:
                raise FailedPrecondition(
                    "the plan was made anew, and addresses changed; ask for "
                    "the tensors again")

        return PlannedTensors(self, group, address_of, check)

    def check(self) -> None:
        """Raises if results under the plan may be wrong. Call it after
        synchronizing, before results are used."""
        call("plan_check", self._handle)

    def end_pass(self) -> bool:
        """Ends a pass. True: the plan was rebuilt with the learned order, and
        addresses changed."""
        changed = c.c_int()
        call("plan_end_pass", self._handle, c.byref(changed))
        return bool(changed.value)

    def set_budget(self, budget: int) -> None:
        """Rebuilds the plan with another budget, between passes; addresses
        change. ResourceExhausted leaves the plan unchanged."""
        call("plan_set_budget", self._handle, budget)

    def set_order(self, groups: Iterable[Group]) -> None:
        """Rebuilds the plan with another order, between passes; addresses
        change, and learning ends. Groups outside the order are staged by
        message. ResourceExhausted leaves the plan unchanged."""
        indices = [self._index(group) for group in groups]
        if not indices:
            raise InvalidArgument("the order is empty")
        call("plan_set_order", self._handle,
             (c.c_uint32 * len(indices))(*indices), len(indices))

    def kind(self, group: Group) -> str:
        """"resident", "streamed" or "unplanned"."""
        kind = c.c_int()
        call("plan_group_kind", self._handle, self._index(group),
             c.byref(kind))
        return _KINDS[kind.value]

    @property
    def info(self) -> PlanInfo:
        """The plan's current facts."""
        with self._reading:
            return described(PlanInfo, _c.PlanInfo, "plan_describe", self._handle)

    @property
    def event_fd(self) -> int:
        """An eventfd for poll, readable when the plan was rebuilt, has ended, or
        was asked to give way since the last read. The plan owns it."""
        fd = c.c_int()
        call("plan_event_fd", self._handle, c.byref(fd))
        return fd.value

    @property
    def stats(self) -> PlanStats:
        """The plan's counters so far."""
        with self._reading:
            return described(PlanStats, _c.PlanStats, "plan_get_stats",
                         self._handle)

    def _places_of(self, group: Group) -> dict[str, tuple[int, TensorInfo]]:
        """Asks libhoist once per group."""
        places = self._places.get(group.index)
        if places is None:
            places = {info.name: (index, info)
                      for index, info in enumerate(group.tensors)}
            self._places[group.index] = places
        return places

    def _index(self, group: Group) -> int:
        if group.model.id != self._model_id:
            self._refuse(group)
        return group.index

    @staticmethod
    def _refuse(group: Group) -> NoReturn:
        raise InvalidArgument(f'group "{group.name}" is of another model')
