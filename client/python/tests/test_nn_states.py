"""What a group may become, whoever asks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hoist.nn._show.group import Group  # noqa: E402
from hoist.nn._show.shown import Shown  # noqa: E402
from hoist.nn._show.states import (IDLE, Idle, Placed, Resident,  # noqa: E402
                                   Staged)

STATES = {Idle: IDLE, Placed: Placed(Shown(0, [], [], []), [], {}),
          Staged: Staged(0, None, IDLE), Resident: Resident(0, None)}
# A resident's tensors keep a lease of their own: it is not staged.
REFUSED = {(Staged, Staged), (Resident, Placed), (Resident, Staged),
           (Resident, Resident)}


@pytest.mark.parametrize("before", STATES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("after", STATES, ids=lambda kind: kind.__name__)
def test_a_group_becomes_what_may_follow_and_nothing_else(before, after):
    group = object.__new__(Group)
    group.state = STATES[before]
    if (before, after) in REFUSED:
        with pytest.raises(AssertionError):
            group._become(STATES[after])
        assert group.state is STATES[before]
    else:
        group._become(STATES[after])
        assert group.state is STATES[after]


def test_what_is_shared_by_all_groups_counts_nothing():
    staged = Staged(1, None, IDLE)
    staged.running += 1
    staged.holds += 1
    assert (IDLE.running, IDLE.holds, IDLE.shown) == (0, 0, None)
    assert not vars(IDLE)
