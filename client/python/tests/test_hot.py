"""What runs for each group of each pass, as the extension and in Python."""

from __future__ import annotations

import collections
import ctypes as c
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any, Iterator

import pytest

import hoist
from hoist import _hot
from hoist._library import library_path

STAGE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_void_p,
                    c.POINTER(c.c_void_p), c.POINTER(c.c_void_p))
DONE = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_void_p,
                   c.POINTER(c.c_void_p))
PLAN, ADDRESS, ERROR = 1 << 46, 1 << 47, 1 << 45


class Stream:
    cuda_stream = 1 << 44


@pytest.fixture
def fast() -> Any:
    found = _hot.fast()
    if found is None:
        pytest.skip("there is no hoist._fast, or $HOIST_PURE_PYTHON is 1")
    return found


@pytest.fixture(params=["extension", "Python"])
def put(request: Any) -> _hot.Put:
    if request.param == "Python":
        return _hot.pure_put
    made: _hot.Put = request.getfixturevalue("fast").put
    return made


def in_a_process(code: str, **more: str) -> str:
    path = pathlib.Path(hoist.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-c", code], check=True, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(path), **more}).stdout.strip()


# The extension's calls into libhoist, which these functions stand for.


class Libhoist:
    def __init__(self) -> None:
        self.code = 0
        self.given: list[tuple[Any, ...]] = []
        self.failed: list[tuple[int, int]] = []
        self._stage, self._done = STAGE(self.stage), DONE(self.done)

    def stage(self, plan: Any, group: int, stream: Any, data: Any,
              error: Any) -> int:
        data[0] = ADDRESS
        return self.done(plan, group, stream, error)

    def done(self, plan: Any, group: int, stream: Any, error: Any) -> int:
        self.given.append((plan, group, stream))
        error[0] = ERROR
        return self.code

    def fail(self, code: int, error: int) -> None:
        self.failed.append((code, error))
        raise hoist.NotFound("no such group")

    def calls(self, fast: Any) -> Any:
        return fast.Calls(PLAN, *(c.cast(one, c.c_void_p).value for one in
                                  (self._stage, self._done)), self.fail)


@pytest.fixture
def libhoist() -> Iterator[Libhoist]:
    yield Libhoist()


def test_calls_give_what_they_were_given(fast, libhoist):
    calls = libhoist.calls(fast)
    for stream, handle in ((None, None), (0, None), (1 << 44, 1 << 44),
                           (Stream(), 1 << 44)):
        assert calls.stage(7, stream) == ADDRESS == calls.address
        assert calls.done(2**32 - 1, stream) is None
        assert libhoist.given[-2:] == [(PLAN, 7, handle),
                                       (PLAN, 2**32 - 1, handle)]


def test_a_refusal_raises_the_typed_error(fast, libhoist):
    calls = libhoist.calls(fast)
    calls.stage(0, None)
    calls.address = 0
    libhoist.code = 5
    for call in (calls.stage, calls.done):
        with pytest.raises(hoist.NotFound, match="no such group"):
            call(1, None)
    assert libhoist.failed == [(5, ERROR)] * 2
    assert calls.address == 0


@pytest.mark.parametrize("given, error", [
    ((), TypeError), ((1,), TypeError), ((1, None, None), TypeError),
    (("1", None), TypeError), ((-1, None), OverflowError),
    ((2**32, None), OverflowError), ((1, object()), AttributeError),
    ((1, 2**64), OverflowError)])
def test_other_arguments_reach_no_library(fast, libhoist, given, error):
    calls = libhoist.calls(fast)
    for call in (calls.done, calls.stage):
        with pytest.raises(error):
            call(*given)
    assert libhoist.given == []
    assert calls.address == 0  # No stage has to be ended.


def test_a_closed_plan_is_none_to_libhoist(fast, libhoist):
    calls = libhoist.calls(fast)
    calls.close()
    calls.stage(1, None)
    calls.done(1, None)
    assert libhoist.given == [(None, 1, None)] * 2


def test_other_threads_run_while_libhoist_waits(fast):
    """poll() stands for libhoist: it returns once another thread has written,
    which that does once this one is without the GIL."""
    ends, may_write = os.pipe(), threading.Lock()

    def write() -> None:
        with may_write:
            os.write(ends[1], b".")

    wanted = (c.c_short * 4)()
    c.cast(wanted, c.POINTER(c.c_int))[0] = ends[0]
    wanted[2] = 1  # POLLIN
    poll = c.cast(c.CDLL(None).poll, c.c_void_p).value
    codes: list[int] = []
    calls = fast.Calls(c.addressof(wanted), poll, poll,
                       lambda code, _: codes.append(code) or 1 / 0)
    writer = threading.Thread(target=write)
    interval = sys.getswitchinterval()
    with may_write:
        writer.start()
        sys.setswitchinterval(1000)  # This thread keeps the GIL until it waits.
    try:
        with pytest.raises(ZeroDivisionError):
            calls.stage(1, 20_000)  # One descriptor, for 20 s at most.
    finally:
        sys.setswitchinterval(interval)
        writer.join()
    for end in ends:
        os.close(end)
    assert codes == [1]  # Descriptors that became readable.


def test_no_references_stay(fast, libhoist):
    stream, group, kind = Stream(), 1 << 31, fast.Calls

    def use(times: int) -> None:
        for _ in range(times):
            calls = libhoist.calls(fast)
            for libhoist.code in (0, 5):
                for call in (calls.stage, calls.done):
                    try:
                        call(group, stream)
                    except hoist.NotFound:
                        pass

    def counts() -> list[int]:
        libhoist.given.clear()
        libhoist.failed.clear()
        return [sys.getrefcount(one) for one in
                (stream, Stream.cuda_stream, group, kind, libhoist)]

    use(3)
    before = counts()
    use(100)
    assert counts() == before


# A group's weights.


def test_values_replace_those_that_are_there(put):
    holders: list[dict[str, Any]] = [{"a": object(), "b": 0}, {"a": object()}]
    on = [(holders[0], "a", holders[0]["a"]), (holders[1], "a", holders[1]["a"])]
    swaps = [(one, "a", object()) for one in holders]
    assert put(on, swaps) is True
    assert [one["a"] for one in holders] == [swap[2] for swap in swaps]
    assert holders[0]["b"] == 0
    assert put(swaps, on) is True
    assert [one["a"] for one in holders] == [swap[2] for swap in on]
    assert put([], []) is True


@pytest.mark.parametrize("other", ["foreign", "gone", "fewer"])
def test_nothing_changes_beside_another_value(put, other):
    holders: list[dict[str, Any]] = [{"a": object()}, {"a": object()}]
    on = [(one, "a", one["a"]) for one in holders]
    swaps = [(one, "a", object()) for one in holders]
    if other == "foreign":
        holders[1]["a"] = object()
    elif other == "gone":
        del holders[1]["a"]
    else:
        swaps.pop()
    before = [dict(one) for one in holders]
    assert put(on, swaps) is False
    assert holders == before


def test_a_dictionary_with_ways_of_its_own_is_left_alone(fast):
    holder: dict[str, Any] = collections.OrderedDict(a=1)
    assert fast.put([(holder, "a", 1)], [(holder, "a", 2)]) is False
    assert holder == {"a": 1}
    for given in ((), ([],), ((), ()), ([], [], [])):
        with pytest.raises(TypeError):
            fast.put(*given)


@pytest.mark.parametrize("kind", ["extension", "Python"])
def test_counts_differ_while_a_value_or_its_memory_is_used(kind, request):
    counts = (_hot.pure_counts if kind == "Python" else
              request.getfixturevalue("fast").counts)
    values, used = [object(), object()], {3: 1, 4: 1}
    before = counts(values, [3, 4], used.__getitem__)
    assert counts(values, [3, 4], used.__getitem__) == before
    other = values[1]
    assert counts(values, [3, 4], used.__getitem__) != before
    del other
    assert counts(values, [3, 4], used.__getitem__) == before
    used[4] = 2
    assert counts(values, [3, 4], used.__getitem__) != before
    with pytest.raises(KeyError):
        counts(values, [5], used.__getitem__)


def test_the_extension_reads_counts_behind_an_address(fast):
    memory = (c.c_uint32 * 4)(1, 2, 3, 4)
    storage = c.addressof(memory)
    assert fast.counts([], [storage], None) == fast.counts(
        [], [storage], lambda _: 3)
    memory[2] = 5
    assert fast.counts([], [storage], None) == fast.counts(
        [], [storage], lambda _: 5)
    with pytest.raises(TypeError):
        fast.counts([], ["no address"], None)


# Gates; tests/conformance/torch/test_gates.py has their use.


def test_gates_refuse_other_arguments(fast):
    for call in (fast.know, fast.counts, fast.Gate, fast.Entry, fast.Exit):
        with pytest.raises(TypeError):
            call(1)
    with pytest.raises(TypeError, match="Calls"):
        fast.Gate(1, 1, *[None] * 13)
    for front in (fast.Entry, fast.Exit):
        with pytest.raises(TypeError, match="Passes"):
            front(None, None, (), None)


def test_fields_are_attributes(fast):
    class Turns(*_hot.fields("Turns")):  # type: ignore[misc]
        pass

    class Staged(*_hot.fields("Staged")):  # type: ignore[misc]
        pass

    turns, staged, one = Turns(), Staged(), object()
    assert (turns._depth, turns.taken_over, turns._joined) == (0, False, None)
    assert (staged.running, staged.holds, staged.before) == (0, 0, None)
    turns._owner, turns.taken_over, staged.before = -1, True, one
    assert (turns._owner, turns.taken_over, staged.before) == (-1, True, one)
    group = type("Group", _hot.fields("Group"), {})()
    with pytest.raises(AttributeError):
        group.state
    before = sys.getrefcount(one)
    del staged
    assert sys.getrefcount(one) == before - 1


# Which of them runs.


def test_the_environment_asks_for_python(fast):
    code = "from hoist import _hot; print(_hot.fast(), type(_hot.put()).__name__)"
    assert in_a_process(code, HOIST_PURE_PYTHON="1") == "None function"
    for value in ("", "0"):
        assert in_a_process(code, HOIST_PURE_PYTHON=value).startswith("<module")


@pytest.mark.parametrize("there", [None, b"no library"])
def test_an_extension_that_cannot_be_loaded_is_not_needed(there, tmp_path):
    os.symlink(os.path.abspath(library_path()), tmp_path / "libhoist.so.0")
    if there is not None:
        (tmp_path / _hot.NAME).write_bytes(there)
    assert in_a_process(
        "import hoist; from hoist import _hot; print(_hot.fast(), "
        "type(_hot.calls_of(None, 1)).__name__)",
        HOIST_LIBRARY=str(tmp_path / "libhoist.so.0")) == "None PureCalls"


def test_an_extension_of_another_version_is_not_used(fast, monkeypatch):
    path = fast.__spec__.origin
    assert _hot._loaded(path) is not None
    monkeypatch.setattr(_hot, "INTERFACE", _hot.INTERFACE + 1)
    assert _hot._loaded(path) is None


@pytest.mark.parametrize("kind", ["extension", "Python"])
def test_calls_without_a_plan_raise(kind, request):
    if kind == "extension":
        request.getfixturevalue("fast")
        calls = _hot.calls_of(None, 2)
    else:
        calls = _hot.PureCalls(None, 2)
    calls.address = 0
    for call in (calls.stage, calls.done):
        with pytest.raises(hoist.InvalidArgument, match="plan"):
            call(1, None)
    assert calls.address == 0
