"""Which cases of a test are for the night alone; README.md says why."""

from __future__ import annotations

import collections
from typing import Any, Iterable

import pytest

_Param = type(pytest.param())


def sampled(values: Iterable[Any], *often: Any) -> list[Any]:
    """For `parametrize`: all are `nightly`, but those that are named. Of several
    parameters at once a value is a tuple."""
    params = [one if isinstance(one, _Param) else pytest.param(*_tuple(one))
              for one in values]
    named = [_tuple(one) for one in often]
    unknown = [one for one in named
               if one not in [param.values for param in params]]
    assert not unknown, f"there are no {unknown}"
    return [param if param.values in named else pytest.param(
        *param.values, marks=[*param.marks, pytest.mark.nightly], id=param.id)
            for param in params]


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def sample_combinations(items: Iterable[pytest.Item]) -> None:
    """Of a function that has several `parametrize`, all cases are `nightly`
    but the fewest, by a greedy choice. In these each value of each occurs,
    and about as often as the others. Cases that are `nightly` already do not
    count."""
    functions = collections.defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("nightly"):
            functions[item.nodeid.split("[")[0]].append(item)
    for cases in functions.values():
        # An id for each `parametrize`.
        values = {case: set(enumerate(case.callspec._idlist))
                  for case in cases}
        missing = set().union(*values.values())
        used: collections.Counter[tuple[int, str]] = collections.Counter()
        while missing:
            case = max(values, key=lambda one: (
                len(missing & values[one]),
                -sum(used[value] for value in values[one])))
            used.update(values[case])
            missing -= values.pop(case)
        for case in values:
            case.add_marker(pytest.mark.nightly)
