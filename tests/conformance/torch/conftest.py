"""Fixtures of the PyTorch tests; README.md says how to use and run them."""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
from typing import Any, Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))
# Behind what PYTHONPATH names: a package that was carried here goes first.
sys.path.append(str(ROOT / "client" / "python"))

import hoist  # noqa: E402
from real_daemon import MIB, RealDaemon  # noqa: E402

KIND = os.environ.get("HOIST_TEST_DEVICE", "cpu")
SIZES = {"pool": 64 * MIB, "slab": 2 * MIB, "host": 128 * MIB, "extra": ""}
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


def pytest_report_header() -> str:
    return (f"hoist on {KIND}: {_hoistd_path() or 'no hoistd found'}, "
            f"{hoist.library_path()}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, here in (("only_cuda", "cuda"), ("only_emulated", "cpu")):
        found = item.get_closest_marker(mark)
        if found is not None and KIND != here:
            pytest.skip(f"{mark}: {found.args[0]}")


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
    """On a GPU a hoistd takes about a second to start, so one of each size is
    kept for the next test, emptied; on an emulated device each test has its
    own."""

    def __init__(self) -> None:
        self._kept: dict[Any, RealDaemon] = {}

    def take(self, sizes: dict[str, Any]) -> RealDaemon:
        kept = self._kept.pop(self._key(sizes), None)
        if kept is not None and kept.process.poll() is None:
            kept.count_anew()
            return kept
        return _start(**sizes)

    def put(self, sizes: dict[str, Any], daemon: RealDaemon) -> None:
        alive = daemon.process.poll() is None
        if alive and KIND == "cuda" and self._emptied(daemon):
            self._kept[self._key(sizes)] = daemon
            return
        said = daemon.log_text()
        code = daemon.stop()
        assert alive and code == 0, f"hoistd ended with {code}:\n{said}"

    def close(self) -> None:
        for daemon in self._kept.values():
            daemon.stop()

    @staticmethod
    def _key(sizes: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(sorted(sizes.items()))

    @staticmethod
    def _emptied(daemon: RealDaemon) -> bool:
        gc.collect()  # Sessions and modules that the test let go of.
        try:
            daemon.forget_models()
        except subprocess.CalledProcessError:
            return False
        return True


@pytest.fixture(scope="session")
def _shelf() -> Iterator[_Shelf]:
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
    _shelf.put(sizes, daemon)


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
