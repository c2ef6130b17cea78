"""Rows by folder: in order, and rows with a fault need none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import BatchError
from holdfast.flow.staging import Room
from holdfast.spark.arrow_rows import by_output_folder, divided, output_folders_of, rows_within

FAULT = '{"kind": "record", "reason": "bad"}'


def rows(*folders: str | None) -> pa.RecordBatch:
    """A row for each folder; one without has a fault."""
    return pa.RecordBatch.from_pydict(
        {
            "_item": pa.array(range(len(folders)), pa.int64()),
            "_fault": pa.array([FAULT if folder is None else None for folder in folders], pa.string()),
            "_place": pa.array(folders, pa.string()),
        }
    )


def room(files: int, *open_folders: str, size: int | None = None) -> Room:
    return Room(files, size, open_folders.__contains__, len)


def test_room_is_bounded_by_files_and_by_the_bytes_of_their_names() -> None:
    portion = rows("a", "b", "a", "cc", "ddd", "a")
    assert rows_within(portion, room(2, "a")) == 4
    assert rows_within(portion, room(3, "a")) == 6
    assert rows_within(portion, room(0)) == 0
    assert rows_within(portion, room(9, "a", size=3)) == 4
    assert rows_within(portion, room(9, "a", size=6)) == 6
    assert output_folders_of(portion.slice(0, 3)) == {"a", "b"}


def test_only_rows_that_a_sink_gets_take_its_room() -> None:
    portion = rows("a", "b", "c").append_column("_mine", pa.array([True, False, True]))
    assert rows_within(portion, room(1), "_mine") == 2
    assert rows_within(portion, room(2), "_mine") == 3


def test_rows_without_places_take_one_file() -> None:
    portion = rows("a", "b").drop_columns(["_place"])
    assert [rows_within(portion, room(0)), rows_within(portion, room(1)), rows_within(portion, room(0, ""))] == [
        0,
        2,
        2,
    ]


def test_rows_with_a_fault_have_no_place_and_are_no_trouble() -> None:
    mixed = rows(None, "a", "b", None, "a", "c")
    assert output_folders_of(mixed) == {"a", "b", "c"}
    assert rows_within(mixed, room(2)) == 5
    assert rows_within(mixed, room(1, "a")) == 5
    assert rows_within(mixed, room(3)) == 6
    good, faulty = divided(mixed)
    assert [item for item, _ in faulty] == [0, 3]
    assert [(folder, part.column("_item").to_pylist()) for folder, part in by_output_folder(good)] == [
        ("a", [1, 4]),
        ("b", [2]),
        ("c", [5]),
    ]


def test_only_rows_with_a_fault_take_no_place() -> None:
    faulty = rows(None, None)
    assert output_folders_of(faulty) == set()
    assert rows_within(faulty, room(0)) == 2


def test_a_good_row_without_a_place_fails_the_batch() -> None:
    mixed = rows("a", None).set_column(1, "_fault", pa.nulls(2, pa.string()))
    with pytest.raises(BatchError, match="has no _place"):
        list(by_output_folder(mixed))
