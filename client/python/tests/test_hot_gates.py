"""Gates by themselves: what they call, on which stream, and what they change."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest

import hoist
from hoist import _hot

ADDRESS, BYTES, HANDLE = 1 << 46, 4096, 1 << 44


class Tensor:
    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class Thing:
    """Attributes."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class Resident:
    """The state of a group that is not staged."""


class World:
    """What hoist.nn has, around groups of one weight each."""

    def __init__(self, index: int | None) -> None:
        found = _hot.fast()
        if found is None:
            pytest.skip("there is no hoist._fast, or $HOIST_PURE_PYTHON is 1")
        self.fast = _hot._loaded(found.__spec__.origin)  # With facts of its own.
        self.index = index
        self.idle = Thing()
        self.graded = self.captures = False
        self.task = -1
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.at, self.handle = ADDRESS, HANDLE
        self.fast.know(self.idle, Resident, Tensor, hoist.HoistError,
                       lambda: self.graded, lambda: self.task, lambda _: 1,
                       lambda: self.captures, lambda index: self.handle + index)
        self.turns = self.with_fields(
            "Turns", _owner=threading.get_ident(), _process=os.getpid(), _depth=1,
            held=1, _joined=set())
        self.current = self.with_fields(
            "Pass", is_plain=True, open=[], sequence=[],
            last=self.with_fields("Call", is_last=False))
        self.call = self.with_fields("Call", is_last=True)
        self.part = self.with_fields("Part", ended=False,
                                     explained=lambda error: error)
        self.staged: dict[Any, None] = {}
        self.plan = Thing(_stage=self._stage, _done=self._done)
        self.passes = self.with_fields("Passes", turns=self.turns)
        self.hook = self.with_fields(
            "Hook", removed=False,
            _begin=lambda args, kwargs, entered: (args, kwargs, entered),
            _end=lambda output: ("left to Python", output))
        type(self.hook).__call__ = lambda _, *given: ("called", given)

    def with_fields(self, name: str, **fields: Any) -> Any:
        """An object of a class with that type's fields."""
        made = type(name, (getattr(self.fast, name),), {})()
        for key, value in fields.items():
            setattr(made, key, value)
        return made

    def _stage(self, number: int, stream: Any) -> int:
        self.calls.append(("stage", number, stream))
        if self.error is not None:
            raise self.error
        return self.at

    def _done(self, number: int, stream: Any) -> None:
        self.calls.append(("done", number, stream))
        if self.error is not None:
            raise self.error

    def group(self, number: int, told: Any = (), pointers: Any = ()) -> Any:
        told, pointers = dict(told), set(pointers)
        holder = {"weight": object()}
        value = object()
        off = [(holder, "weight", holder["weight"])]
        on = [(holder, "weight", value)]
        values, storages = [value], [5]
        staged = self.with_fields("Staged", lease=None)
        lent = self.with_fields("Lent", _values=values, _storages=storages)
        gate = self.fast.Gate(
            ADDRESS, BYTES, self.plan, self.fast.Calls(None, None, None, None),
            number, self.part, self.staged, self.index, told, pointers, off, on,
            shown := Thing(), lent, staged)
        del value
        group = self.with_fields(
            "Group", binding=self.with_fields("Binding", gate=gate, _on=off),
            state=self.idle, holder=holder, off=off, on=on, shown=shown,
            own=staged)
        holder["weight"] = values[0]
        lent._seen = self.fast.counts(values, storages, lambda _: 1)
        holder["weight"] = off[0][2]
        return group

    def front(self, kind: str, *groups: Any) -> Any:
        self.passes.current = self.current
        return getattr(self.fast, kind)(self.hook, self.passes, groups, self.call)

    def enter(self, *groups: Any) -> int:
        """How many of them."""
        answer = self.front("Entry", *groups)("module", "args", "kwargs")
        if answer is None:
            return len(groups)
        assert answer[:2] == ("args", "kwargs")
        entered: int = answer[2]
        return entered

    def leave(self, *groups: Any, output: Any = None) -> bool:
        answer = self.front("Exit", *groups)("module", "args", "kwargs", output)
        assert answer in (None, ("left to Python", output))
        return answer is None


@pytest.mark.parametrize("index, stream", [(None, None), (1, HANDLE + 1)])
def test_a_group_ends_as_the_next_begins_on_its_stream(index, stream):
    world = World(index)
    first, second = world.group(3), world.group(4)
    assert world.enter(first) == 1
    assert world.calls == [("stage", 3, stream)]
    assert first.holder["weight"] is first.on[0][2]
    assert (first.state, first.own.running) == (first.own, 1)
    assert (first.own.shown, first.own.streams) == (first.shown, [stream])
    assert (world.turns._depth, world.turns.held) == (2, 2)
    assert world.leave(first, output=Tensor(ADDRESS + BYTES)) is True
    assert (world.turns._depth, world.turns.held) == (1, 1)
    assert (first.state, first.own.running) == (first.own, 0)
    assert world.current.open == [first] and world.current.last is world.call
    assert world.enter(second) == 1
    assert world.calls[1:] == [("done", 3, stream), ("stage", 4, stream)]
    assert first.holder["weight"] is first.off[0][2]
    assert first.state is world.idle and first.own.shown is None
    assert world.staged == {second: None} and world.current.open == []
    assert world.current.sequence == [first, second]


def test_a_place_that_came_after_the_gate_is_shown_too():
    world = World(None)
    first, second = world.group(3), world.group(4)
    idle, value = object(), object()
    first.holder["bias"] = idle
    first.off.append((first.holder, "bias", idle))
    first.on.append((first.holder, "bias", value))
    assert world.enter(first) == 1
    assert first.holder == {"weight": first.on[0][2], "bias": value}
    assert world.leave(first) and world.enter(second) == 1
    assert first.holder == {"weight": first.off[0][2], "bias": idle}


def test_a_list_of_streams_that_is_kept_stays():
    world = World(0)
    first, second = world.group(3), world.group(4)
    assert world.enter(first) and world.leave(first)
    kept = first.own.streams
    assert world.enter(second) and world.leave(second)
    world.handle += 8
    assert world.enter(first)
    assert (kept, first.own.streams) == ([HANDLE], [HANDLE + 8])


def test_a_blocks_groups_end_in_the_reverse_order_of_their_stages():
    world = World(1)
    stream = HANDLE + 1
    first, second, third, last = (world.group(number) for number in (3, 4, 5, 6))
    second.state = Resident()
    block = first, second, third
    assert world.enter(*block) == 3
    assert world.calls == [("stage", 3, stream), ("stage", 5, stream)]
    assert (world.turns._depth, world.turns.held) == (3, 3)
    assert world.leave(*block) is True
    assert (world.turns._depth, world.turns.held) == (1, 1)
    assert world.current.open == [third, first]
    assert world.enter(last) == 1
    assert world.calls[2:] == [("done", 3, stream), ("done", 5, stream),
                               ("stage", 6, stream)]
    assert world.current.sequence == [first, third, last]
    assert world.staged == {last: None} and world.current.open == []


def test_groups_from_the_first_without_a_usual_way_on_are_pythons():
    world = World(None)
    first, second, third = (world.group(number) for number in (3, 4, 5))
    second.state = Thing()
    assert world.enter(first, second, third) == 1
    assert (third.state, world.turns.held) == (world.idle, 2)
    assert world.leave(first, second, third) is False
    assert (first.own.running, world.turns.held) == (1, 2)
    assert world.leave(first) is False  # Python's, once it is asked.


def test_a_call_with_residents_alone_has_nothing_to_leave():
    world = World(None)
    group = world.group(3)
    group.state = Resident()
    assert world.enter(group) == 1 and world.calls == []
    assert world.leave(group) is False and world.turns.held == 1


def test_a_removed_hook_does_nothing():
    world = World(None)
    group = world.group(3)
    world.hook.removed = True
    assert world.front("Entry", group)("module", "args", "kwargs") is None
    assert world.front("Exit", group)("module", "args", "kwargs", "out") is None
    assert world.calls == [] and group.state is world.idle


def test_other_arguments_are_the_hooks():
    """Torch calls a hook without keywords that another thread has just removed."""
    world = World(None)
    group = world.group(3)
    for kind, given in (("Entry", (1, 2)), ("Exit", (1, 2, 3))):
        assert world.front(kind, group)(*given) == ("called", given)
    with pytest.raises(TypeError):
        world.front("Entry", group)(1, 2, kwargs=3)
    assert world.calls == []


@pytest.mark.parametrize("output", [
    Tensor(ADDRESS), Tensor(ADDRESS + BYTES - 1), (None, (Tensor(ADDRESS),)),
    [Tensor(0)], {}, object()])
def test_other_outputs_are_pythons(output):
    world = World(None)
    group = world.group(3)
    assert world.enter(group) == 1
    assert world.leave(group, output=output) is False
    assert (group.own.running, world.turns.held) == (1, 2)
    assert world.current.open == []
    assert world.leave(group) is False  # Python's, once it is asked.


@pytest.mark.parametrize("unusual", [
    "graded", "captures", "task", "no pass", "not plain", "told", "pointers",
    "other thread", "joined", "taken over", "fork", "placed", "no gate",
    "before: one of two", "before: not last", "before: runs", "before: held",
    "before: kept", "before: ended"])
def test_what_is_not_usual_is_pythons(unusual):
    """And nothing has changed."""
    world = World(0)
    first, second, other = (world.group(number) for number in (3, 4, 5))
    assert world.enter(other, first) == 2 and world.leave(other, first)
    kept = None
    if unusual in ("graded", "captures"):
        setattr(world, unusual, True)
    elif unusual == "task":
        world.task = 0
    elif unusual == "no pass":
        world.current = None
    elif unusual == "not plain":
        world.current.is_plain = False
    elif unusual in ("told", "pointers"):
        second = world.group(4, **{unusual: {1: True}})
    elif unusual == "other thread":
        world.turns._owner += 1
    elif unusual == "joined":
        world.turns._joined.add(1)
    elif unusual == "taken over":
        world.turns.taken_over = True
    elif unusual == "fork":
        world.turns._process += 1
    elif unusual == "placed":
        second.state = Thing()
    elif unusual == "no gate":
        second.binding.gate = None
    elif unusual == "before: one of two":
        other.own.holds = 1
    elif unusual == "before: not last":
        world.call.is_last = False
    elif unusual == "before: runs":
        first.own.running = 1
    elif unusual == "before: held":
        first.own.holds = 1
    elif unusual == "before: kept":
        kept = first.on[0][2]
    elif unusual == "before: ended":
        world.part.ended = True
    before = len(world.calls), world.turns.held
    assert world.enter(second) == 0
    assert (len(world.calls), world.turns.held) == before
    assert first.state is first.own and other.state is other.own
    assert kept is None or first.holder["weight"] is kept


def test_a_refused_stage_is_pythons_to_repeat():
    world = World(None)
    group = world.group(3)
    world.error = hoist.Unavailable("ended")
    assert world.enter(group) == 0
    world.error = ZeroDivisionError("no error of libhoist's")
    with pytest.raises(ZeroDivisionError):
        world.enter(group)
    world.error, world.at = None, ADDRESS + 1
    assert world.enter(group) == 0
    assert group.state is world.idle and world.staged == {}
    assert world.turns.held == 1


def test_a_refused_end_raises_what_it_means():
    world = World(None)
    first, second = world.group(3), world.group(4)
    assert world.enter(first) and world.leave(first)
    world.error = hoist.Unavailable("ended")
    world.part.explained = lambda error: hoist.Aborted(f"meant: {error}")
    with pytest.raises(hoist.Aborted, match="meant: .*ended"):
        world.enter(second)
    assert first.state is world.idle and world.current.open == []
    assert first.holder["weight"] is first.off[0][2]
    assert world.turns.held == 1


def test_no_references_stay():
    world = World(0)
    first, second, third = (world.group(number) for number in (3, 4, 5))

    def use(times: int) -> None:
        for _ in range(times):
            for groups in ((first, second), (third,)):
                assert world.enter(*groups) == len(groups)
                assert world.leave(*groups)

    def counts() -> list[int]:
        world.calls.clear()
        world.current.sequence.clear()
        return [sys.getrefcount(one) for one in (
            first, first.own, first.shown, first.on[0][2], first.off[0][2],
            world.idle, world.call, world.current, world.turns, world.part,
            world.staged, world.plan, first.binding.gate)]

    use(3)
    before = counts()
    use(100)
    assert counts() == before
