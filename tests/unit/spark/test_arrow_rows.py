"""Rows of a task, taken apart and cut; nothing may be lost, doubled or reordered on the way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BatchError
from holdfast.flow.batch import Name
from holdfast.flow.staging import StagedBatch
from holdfast.spark.arrow_rows import by_batch, by_output_folder
from holdfast.spark.batch_limits import SizeLimit

BATCH = StagedBatch("b1", "archive", "orders|0", Name("orders", "0"), token=1, generation=1, max_bytes=100)


def rows(**columns: Any) -> pa.RecordBatch:
    number = len(next(iter(columns.values())))
    given_columns = {"_batch": pa.array([0] * number, pa.int32()), "_item": list(range(number)), **columns}
    return pa.RecordBatch.from_pydict(given_columns)


def test_rows_tell_their_batch_by_number_or_by_id() -> None:
    by_number = rows(_batch=pa.array([1, 0, 1], pa.int32()), v=["a", "b", "c"])
    by_id = rows(_batch=["y", "x", "y"], v=["a", "b", "c"])
    for portion in (by_number, by_id):
        found = {batch: own.column("v").to_pylist() for batch, own in by_batch(portion, ["x", "y"])}
        assert found == {"y": ["a", "c"], "x": ["b"]}


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1), st.booleans())
def test_rows_of_batches_are_kept_apart_and_in_order_however_they_are_mixed(batches: list[str], ordered: bool) -> None:
    told = sorted(batches) if ordered else batches
    found = [(batch, own.column("_item").to_pylist()) for batch, own in by_batch(rows(_batch=told), [])]
    assert len(found) == len(set(told))
    assert dict(found) == {one: [item for item, batch in enumerate(told) if batch == one] for one in set(told)}


@given(st.lists(st.sampled_from(["dt=1", "dt=2", "dt=3"]), min_size=1))
def test_places_are_kept_apart_and_in_order(places: list[str]) -> None:
    found = {place: own.column("_item").to_pylist() for place, own in by_output_folder(rows(_place=places))}
    assert found == {one: [item for item, place in enumerate(places) if place == one] for one in dict.fromkeys(places)}


def test_rows_without_places_are_one_portion() -> None:
    ((place, own),) = by_output_folder(rows(v=[1, 2]))
    assert (place, own.num_rows) == ("", 2)


def test_a_row_that_has_no_place_where_others_have_one_is_an_error() -> None:
    with pytest.raises(BatchError, match="_place"):
        list(by_output_folder(rows(_place=["dt=1", None])))


def test_a_batch_is_cut_where_it_is_full_and_stays_cut() -> None:
    limit = SizeLimit({"b1": BATCH})
    first = limit.admit("b1", rows(_size=[40, 40, 40]))
    assert first.schema.names == ["_batch", "_item"]
    assert first.num_rows == 2
    assert limit.admitted["b1"].end == 2
    assert limit.admitted["b1"].size == 80
    assert limit.admit("b1", rows(_size=[1])).num_rows == 0


def test_a_first_record_larger_than_the_batch_is_taken_alone() -> None:
    limit = SizeLimit({"b1": BATCH})
    assert limit.admit("b1", rows(_size=[500, 1])).num_rows == 1
    assert limit.admitted["b1"].end == 1


@given(st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), max_size=5))
def test_the_cut_follows_from_the_records_and_not_from_the_portions(portions: list[list[int]]) -> None:
    sizes = [size for portion in portions for size in portion]
    limit, taken, item = SizeLimit({"b1": BATCH}), 0, 0
    for portion in portions:
        told = rows(_size=portion).set_column(1, "_item", pa.array(range(item, item + len(portion))))
        taken += limit.admit("b1", told).num_rows
        item += len(portion)
    fitting = next((n for n in range(1, len(sizes)) if sum(sizes[: n + 1]) > 100), len(sizes))
    assert taken == fitting
    if sizes:
        assert limit.admitted["b1"].end == (fitting if fitting < len(sizes) else None)
