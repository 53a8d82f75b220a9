"""Fixtures of the PyTorch tests; README.md says how to use and run them."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import sys
import traceback
import weakref
from typing import Any, Callable, Generator, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))
# Behind what PYTHONPATH names: a package that was carried here goes first.
sys.path.append(str(ROOT / "client" / "python"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon, Refused, until  # noqa: E402
from sampled import sample_combinations  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
SIZES = {"pool": 64 * MIB, "slab": 2 * MIB, "host": 128 * MIB, "extra": ""}
PATIENCE = 2  # Seconds, until a session that was let go of has ended.
_passed = pytest.StashKey[bool]()
MARKS = (
    "hoistd(pool, host, slab, in_place, extra): the sizes of this test's hoistd",
    "only_cuda(why): needs a GPU; skipped elsewhere",
    "only_emulated(why): needs the emulated device; skipped on a GPU",
)


def pytest_configure(config: pytest.Config) -> None:
    if KIND not in ("cpu", "cuda"):
        raise pytest.UsageError(
            f"HOIST_TEST_DEVICE={KIND!r} is neither 'cpu' nor 'cuda'")
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


@pytest.hookimpl(tryfirst=True)  # Before `-m` looks at marks.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = pathlib.Path(__file__).parent
    sample_combinations(one for one in items if here in one.path.parents)


def pytest_report_header() -> str:
    return (f"hoist on {KIND}: {_hoistd_path() or 'no hoistd found'}, "
            f"{hoist.library_path()}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    _others.update(_attached())
    for mark, here in (("only_cuda", "cuda"), ("only_emulated", "cpu")):
        found = item.get_closest_marker(mark)
        if found is not None and KIND != here:
            pytest.skip(f"{mark}: {found.args[0]}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]
                              ) -> Generator[None, Any, None]:
    """The report of an error has all that it shows; the frames of the error,
    which Python and pytest keep, would hold on to modules."""
    yield
    if call.when == "call":
        item.stash[_passed] = call.excinfo is None
    if call.excinfo is not None and not item.config.getoption("usepdb"):
        _clear_frames(call.excinfo.value)


def _clear_frames(error: BaseException) -> None:
    errors: list[BaseException | None] = [error]
    seen: set[int] = set()
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            for frame, _ in traceback.walk_tb(one.__traceback__):
                frame.f_locals  # As a report read them; now there are none.
            errors += [one.__cause__, one.__context__]


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, None]:
    """A module that is still attached is its test's failure: patches of torch
    stay with it, for all the tests that follow. After all else: until its
    teardown pytest keeps log records, which may have errors with frames."""
    outcome = yield
    left = still_attached()
    if left and outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(
            f"modules are still attached: {', '.join(left)}", pytrace=False))


def still_attached() -> list[str]:
    """The kinds of modules that this test has left."""
    if not _attached():
        return []
    _collect()
    return sorted({type(one).__name__ for one in _attached()
                   if one not in _others})


def _collect() -> None:
    """Modules are cycles. Of a backward that failed torch keeps nodes that were
    ready to run, and all that they lead to, until the thread's next one."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and _attached():
        with torch.enable_grad():
            torch.zeros((), requires_grad=True).exp().backward()
        gc.collect()


_others: weakref.WeakSet[Any] = weakref.WeakSet()  # Of tests before.


def _attached() -> list[Any]:
    registry = sys.modules.get("hoist.nn._tree.registry")
    return [] if registry is None else list(registry._attached)


def _hoistd_path() -> str:
    """hoistd of $HOIST_BIN, of $HOIST_BUILD_DIR, carried, or built last."""
    tried = [pathlib.Path(os.environ[name]) / below / "hoistd"
             for name, below in (("HOIST_BIN", ""), ("HOIST_BUILD_DIR",
                                                     "daemon"))
             if os.environ.get(name)]
    if not tried:
        built = ROOT.glob("build/*/daemon/hoistd")
        tried = [ROOT / ".gpu/hoist/bin/hoistd" if KIND == "cuda" else
                 ROOT / "build/dev/daemon/hoistd",
                 *sorted(built, key=os.path.getmtime, reverse=True)]
    return next((str(path) for path in tried if path.exists()), "")


def _start(**sizes: Any) -> RealDaemon:
    binary = _hoistd_path()
    if not binary:
        pytest.fail("no hoistd: build one, and set HOIST_BUILD_DIR")
    daemon = RealDaemon(
        binary, backend="cuda" if KIND == "cuda" else "emulated",
        **{**SIZES, **sizes})
    try:
        hoist.connect(daemon.socket, connect_deadline=30).close()
    except BaseException as error:
        said = daemon.log_text()
        daemon.stop()
        if not isinstance(error, hoist.HoistError):
            raise
        pytest.fail(f"hoistd does not serve: {error}\n{said}")
    return daemon


class _Shelf:
    """A worker's tests share the hoistds of their sizes. Every tenth test ends
    its own, as does one that failed or that leaves a session or a model there.
    An exit code other than 0 is that test's failure."""

    EACH = 10
    KEPT = 3  # Sizes: a hoistd's memory is all there from its start.

    def __init__(self) -> None:
        self._kept: dict[Any, RealDaemon] = {}
        self._given = 0

    def take(self, sizes: dict[str, Any]) -> RealDaemon:
        return self._kept.pop(_key(sizes), None) or _start(**sizes)

    def put(self, sizes: dict[str, Any], daemon: RealDaemon,
            passed: bool) -> None:
        """What failed holds on to whatever its frames name: its hoistd ends."""
        self._given += 1
        if (not passed or daemon.process.poll() is not None
                or self._given % self.EACH == 0 or not _empty(daemon)):
            self._end(daemon)
            return
        self._kept[_key(sizes)] = daemon
        if len(self._kept) > self.KEPT:
            self._end(self._kept.pop(next(iter(self._kept))))

    def close(self) -> None:
        while self._kept:
            self._end(self._kept.popitem()[1])

    @staticmethod
    def _end(daemon: RealDaemon) -> None:
        alive = daemon.process.poll() is None
        said = daemon.log_text()
        code = daemon.stop()
        assert alive and code == 0, f"hoistd ended with {code}:\n{said}"


def _key(sizes: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sorted(sizes.items()))


def _empty(daemon: RealDaemon) -> bool:
    """Whether it is as a new one, once its models are forgotten; sessions end a
    little after their clients have let go of them. Counts begin anew."""
    link = sys.modules.get("hoist.nn._store.link")
    if link is not None:
        link._sessions.clear()
    _collect()
    status = daemon.status()
    with contextlib.suppress(AssertionError, Refused):
        if int(status["sessions"]):
            until(lambda: not int(daemon.status()["sessions"]),
                  seconds=PATIENCE)
            status = daemon.status()
        if int(status["models"]):
            daemon.forget_models()
    if int(status["sessions"]) or int(status["models"]):
        status = daemon.status()
    daemon.count_anew(status)
    return not any(int(status[what])
                   for what in ("sessions", "leases", "models"))


@pytest.fixture(scope="session")
def _shelf() -> Iterator[_Shelf]:
    gc.freeze()  # What is imported: `_empty` collects after each test.
    shelf = _Shelf()
    yield shelf
    shelf.close()


@pytest.fixture(autouse=True)
def _own_world(monkeypatch: pytest.MonkeyPatch,
               tmp_path: pathlib.Path) -> None:
    """No test finds somebody else's hoistd; seeds are the same each time."""
    monkeypatch.setenv("HOIST_SOCKET", str(tmp_path / "no-hoistd.sock"))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        if KIND == "cpu":  # Small models: threads would wait for each other.
            torch.set_num_threads(1)


@pytest.fixture
def hoistd(request: pytest.FixtureRequest, _shelf: _Shelf, _own_world: None,
           monkeypatch: pytest.MonkeyPatch) -> Iterator[RealDaemon]:
    """A hoistd with nothing in it, which hoist.attach and hoist.connect find.

    Its sizes are SIZES, or what the mark `hoistd` says. It must be alive at the
    test's end: a test that ends it takes make_hoistd.
    """
    mark = request.node.get_closest_marker("hoistd")
    sizes = dict(mark.kwargs) if mark else {}
    daemon = _shelf.take(sizes)
    monkeypatch.setenv("HOIST_SOCKET", daemon.socket)
    yield daemon
    request.node.funcargs.clear()  # Fixtures that end after this one.
    _shelf.put(sizes, daemon, request.node.stash.get(_passed, False))


@pytest.fixture
def make_hoistd(_own_world: None, monkeypatch: pytest.MonkeyPatch
                ) -> Iterator[Callable[..., RealDaemon]]:
    """make_hoistd(pool=..., host=..., slab=..., extra=...): a hoistd of the
    test's own, to kill or to stop; the latest is what HOIST_SOCKET names."""
    started: list[RealDaemon] = []

    def make(**sizes: Any) -> RealDaemon:
        daemon = _start(**sizes)
        started.append(daemon)
        monkeypatch.setenv("HOIST_SOCKET", daemon.socket)
        return daemon

    yield make
    for daemon in started:
        if not daemon.log.closed:
            daemon.stop()


@pytest.fixture
def hoist_keeper() -> str:
    """For make_hoistd(keeper=...): the one that was built with hoistd."""
    hoistd = pathlib.Path(_hoistd_path())
    tried = [hoistd.with_name("hoist-keeper"),
             hoistd.parent / "keeper" / "hoist-keeper"]
    found = next((str(path) for path in tried if path.exists()), "")
    if not found:
        pytest.skip(f"no hoist-keeper beside {hoistd}")
    return found


@pytest.fixture
def nothing_is_compiled() -> None:
    """By earlier tests: a process with compiled code gives no way."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()


@pytest.fixture
def device() -> Any:
    """The torch.device that weights are staged on."""
    torch = pytest.importorskip("torch")
    if KIND == "cuda" and not torch.cuda.is_available():
        pytest.fail("HOIST_TEST_DEVICE=cuda, but torch sees no GPU")
    return torch.device(KIND)


@pytest.fixture
def session(hoistd: RealDaemon) -> Iterator[hoist.Session]:
    """A session of the test's own."""
    with hoist.connect(hoistd.socket) as session:
        yield session
