"""What vLLM's compile cache is told of hoist."""

from __future__ import annotations

import itertools

import pytest

import hoist
from hoist.vllm._code_key import code_factors


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_budget_a_kernel_and_an_engine_without_hoist_have_other_code(on_cpu):
    said = [code_factors("auto", {}, on_cpu),
            code_factors("hoist", {"budget": 0.5}, on_cpu)]
    if on_cpu:
        said += [code_factors("hoist", {}, True),
                 code_factors("hoist", {"budget": 0.5,
                                        "cpu_kernels": "packed"}, True)]
    for one, other in itertools.combinations(said, 2):
        assert one != other


def test_budgets_share_code_as_each_layer_of_it_asks_the_plan():
    assert code_factors("hoist", {"budget": 0.5}, False) == code_factors(
        "hoist", {"budget": "8GiB", "deadline": 1}, False)


@pytest.mark.parametrize("load_format, options, on_cpu", [
    ("auto", None, True), ("auto", {"budget": 0.5}, True),
    ("hoist", None, False), ("hoist", {"name": "a"}, False),
    ("hoist", {"cpu_kernels": "packed"}, True)])
def test_code_that_is_vllms_own_is_shared_with_it(load_format, options,
                                                  on_cpu):
    assert code_factors(load_format, options, on_cpu) == {}


def test_options_that_do_not_do_are_told_before_a_key_is_made():
    with pytest.raises(hoist.InvalidArgument, match="budget"):
        code_factors("hoist", {"budget": "a lot"}, False)
