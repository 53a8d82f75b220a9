"""Ranges of files' tensors: what a copy of a view is made of."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from hoist.serving._ranges import (Copy, FileRange, Gaps,  # noqa: E402
                                   Overlap, lay_end_to_end, ranges_of_copy,
                                   ranges_within)


def copy(offset, shape, strides, source_offset, source_strides):
    return Copy(offset, shape, strides, 0, 0, source_offset, source_strides)


def test_rows_are_one_run():
    assert ranges_of_copy(copy(10, (3, 4), (4, 1), 8, (4, 1)), "w") == [
        (10, FileRange("w", 8, 12))]


def test_columns_are_one_range_of_many_runs():
    assert ranges_of_copy(copy(0, (3, 2), (2, 1), 2, (4, 1)), "w") == [
        (0, FileRange("w", 2, 2, 4, 3))]


def test_columns_that_go_to_columns_are_a_run_each():
    assert ranges_of_copy(copy(0, (3, 2), (8, 1), 0, (2, 1)), "w") == [
        (0, FileRange("w", 0, 2)), (8, FileRange("w", 2, 2)),
        (16, FileRange("w", 4, 2))]


def test_a_transposed_matrix_is_an_element_a_run():
    # Where it goes, a row is 2 long; in the file its elements lie 3 apart.
    assert ranges_of_copy(copy(0, (3, 2), (2, 1), 0, (1, 3)), "w") == [
        (0, FileRange("w", 0, 1, 3, 2)), (2, FileRange("w", 1, 1, 3, 2)),
        (4, FileRange("w", 2, 1, 3, 2))]


def test_an_element_that_goes_to_many_places_is_a_range_for_each():
    # Runs of hoistd's do not overlap.
    assert ranges_of_copy(copy(0, (3,), (1,), 5, (0,)), "w") == [
        (at, FileRange("w", 5, 1)) for at in range(3)]


def test_what_is_put_to_a_place_last_counts():
    first, last = FileRange("a", 0, 4), FileRange("b", 0, 4)
    assert lay_end_to_end([(0, first), (0, last)]) == [(0, last)]
    with pytest.raises(Overlap):
        lay_end_to_end([(0, first), (2, last)])


def test_neighbours_are_joined_and_gaps_are_counted():
    ordered = [(0, FileRange("a", 0, 4)), (4, FileRange("a", 4, 4)),
               (9, FileRange("a", 9, 3))]
    assert ranges_within(ordered[:2], 0, 8) == [FileRange("a", 0, 8)]
    with pytest.raises(Gaps) as gaps:
        ranges_within(ordered, 0, 12)
    assert gaps.value.elements == 1


def test_a_part_of_many_runs_is_cut_in_the_middle_of_one():
    ordered = [(0, FileRange("w", 2, 2, 4, 3))]
    assert ranges_within(ordered, 1, 4) == [FileRange("w", 3, 1),
                                            FileRange("w", 6, 2)]
