"""What --model-loader-extra-config may say."""

from __future__ import annotations

import pytest

import hoist
from hoist.vllm import Options


def test_nothing_is_the_default():
    assert Options.of({}) == Options()
    assert Options.of({"idle_after": None}) == Options()


@pytest.mark.parametrize("given, says", [
    ({"fallback": True}, 'no "fallback"; it has socket'),
    ({"deadline": -1}, "a number of seconds"),
    ({"deadline": True}, "a number of seconds"),
    ({"idle_after": "5s"}, "a number of seconds"),
    ({"idle_after": 5, "budget": 0.5}, "exclude each other"),
    ({"in_place": "all", "budget": 0.5}, '"auto" or null'),
    ({"in_place": "auto"}, '"in_place" needs a "budget"'),
    ({"in_place": "auto", "budget": "much"}, "is no amount"),
    ({"in_place": "auto", "budget": 0.5, "idle_after": 5}, "exclude each other"),
    ({"unsupported": "auto"}, '"refuse" or "private"'),
    ({"socket": 7}, "a text"),
])
def test_what_does_not_do_is_told(given, says):
    with pytest.raises(hoist.InvalidArgument, match=says):
        Options.of(given)


def test_without_vllm_registering_is_no_error(caplog):
    from hoist.vllm import register
    register()
    assert "--load-format hoist is not there" in caplog.text
