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
        found = {batch: part.column("v").to_pylist() for batch, part in by_batch(portion, ["x", "y"])}
        assert found == {"y": ["a", "c"], "x": ["b"]}


@given(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1), st.booleans())
def test_rows_of_batches_are_kept_apart_and_in_order_however_they_are_mixed(batches: list[str], ordered: bool) -> None:
    given_batches = sorted(batches) if ordered else batches
    found = [(batch, part.column("_item").to_pylist()) for batch, part in by_batch(rows(_batch=given_batches), [])]
    assert len(found) == len(set(given_batches))
    assert dict(found) == {
        batch: [item for item, other in enumerate(given_batches) if other == batch] for batch in set(given_batches)
    }


@given(st.lists(st.sampled_from(["dt=1", "dt=2", "dt=3"]), min_size=1))
def test_places_are_kept_apart_and_in_order(folders: list[str]) -> None:
    found = {folder: part.column("_item").to_pylist() for folder, part in by_output_folder(rows(_place=folders))}
    assert found == {
        folder: [item for item, other in enumerate(folders) if other == folder] for folder in dict.fromkeys(folders)
    }


def test_rows_without_places_are_one_portion() -> None:
    ((folder, part),) = by_output_folder(rows(v=[1, 2]))
    assert (folder, part.num_rows) == ("", 2)


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
        sized = rows(_size=portion).set_column(1, "_item", pa.array(range(item, item + len(portion))))
        taken += limit.admit("b1", sized).num_rows
        item += len(portion)
    fitting = next((n for n in range(1, len(sizes)) if sum(sizes[: n + 1]) > 100), len(sizes))
    assert taken == fitting
    if sizes:
        assert limit.admitted["b1"].end == (fitting if fitting < len(sizes) else None)
