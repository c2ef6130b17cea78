"""Ids by origin: the same for the same record, different for different ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.sinks.opensearch.bulk_body import RecordNumbers, check_records_together, origin_prefix

BATCH = StagedBatch("b1", "orders", "in|a", Name("in", "a"), 3, 1, incarnation="e1")


def numbered(*portions: list[int]) -> list[str]:
    numbers = RecordNumbers()
    return [text for some in portions for text in numbers.of(pa.array(some, pa.int64())).to_pylist()]


def test_an_origin_is_the_key_and_the_incarnation_and_nothing_else() -> None:
    assert origin_prefix(BATCH) == origin_prefix(replace(BATCH, id="b2", token=9, generation=4, pipeline="other"))
    others = {origin_prefix(replace(BATCH, key=key, incarnation=of)) for key, of in [("in|b", "e1"), ("in|a", "e2")]}
    assert len(others | {origin_prefix(BATCH)}) == 3
    assert len(origin_prefix(BATCH)) == 21


def test_records_have_their_numbers() -> None:
    assert numbered([0, 10], [20]) == ["0", "10", "20"]


def test_rows_of_one_record_are_told_apart_also_when_portions_part_them() -> None:
    assert numbered([5, 5, 7]) == ["5", "5-1", "7"]
    assert numbered([5], [5, 5], [5, 7]) == ["5", "5-1", "5-2", "5-3", "7"]
    assert numbered([0, 0], [], [0]) == ["0", "0-1", "0-2"]


@given(st.lists(st.integers(0, 20), max_size=40).map(sorted), st.lists(st.integers(0, 40), max_size=5).map(sorted))
def test_numbers_are_unique_and_do_not_depend_on_portions(items: list[int], borders: list[int]) -> None:
    cuts = [0, *(min(border, len(items)) for border in borders), len(items)]
    portions = [items[start:end] for start, end in itertools.pairwise(cuts)]
    whole = numbered(items)
    assert numbered(*portions) == whole
    assert len(set(whole)) == len(items)


def test_rows_out_of_order_are_fine_unless_those_of_one_record_came_apart() -> None:
    numbers = RecordNumbers()
    numbers.of(pa.array([5, 3, 9], pa.int64()))
    numbers.check()
    numbers.of(pa.array([3], pa.int64()))
    with pytest.raises(BatchError, match="separated rows of the same record"):
        numbers.check()


def packed(*items: int) -> str:
    numbers = RecordNumbers()
    numbers.of(pa.array(items, pa.int64()))
    return numbers.packed()


def test_rows_of_one_record_in_two_tasks_are_found() -> None:
    check_records_together([])
    check_records_together([packed(1, 1, 3)])
    check_records_together([packed(1, 1, 3), packed(), packed(2, 4), packed(9, 0)])
    with pytest.raises(BatchError, match="separated rows of the same record"):
        check_records_together([packed(7, 1), packed(2, 4), packed(9, 9, 1)])


def test_records_that_follow_each_other_are_packed_small() -> None:
    assert len(packed(*range(100_000))) < 10_000
