"""For every Python test: attempts and CPU time, as properties of its JUnit
case, which scripts/tally.py reads."""

from __future__ import annotations

import os
import resource
from typing import Any, Generator

import pytest

_began = pytest.StashKey[float]()
_first = pytest.StashKey[str]()


def pytest_collection_modifyitems(config: pytest.Config,
                                  items: list[pytest.Item]) -> None:
    """Only what real time decides is run again."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("real_time"):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_began] = _cpu_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item
                              ) -> Generator[None, Any, None]:
    report = (yield).get_result()
    attempt = getattr(item, "execution_count", 1)  # By rerunfailures.
    if report.failed and attempt == 1:
        item.stash.setdefault(_first, _why(item, report))
    if report.when == "teardown":
        used = _cpu_seconds() - item.stash[_began]
        report.user_properties.append(("cpu_seconds", f"{used:.2f}"))
        if attempt > 1:
            report.user_properties += [("reruns", attempt - 1),
                                       ("rerun_after", item.stash.get(
                                           _first, "its process ended"))]


def _cpu_seconds() -> float:
    """Of this process, and of the children that it has waited for."""
    used = (resource.getrusage(whose) for whose in (
        resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _why(item: pytest.Item, report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return (str(report.longrepr).splitlines() or [""])[-1]
    where = os.path.relpath(crash.path, item.config.rootpath)
    return f"{where}:{crash.lineno}: {crash.message.splitlines()[0]}"
