"""Records of several rows: a sink of files has all rows of a record, or keeps all of them as letters of that record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.flow.batch import Name
from holdfast.flow.fault import Fault, record_fault
from holdfast.flow.letter import SourceRecord
from holdfast.flow.staging import StagedBatch
from holdfast.formats.text import PLUGIN as TEXT
from holdfast.formats.text import TextConfig
from holdfast.sinks.files.staging import FilesStager
from holdfast.spark.report import TaskReport
from holdfast.spark.task import SinkTask, StageTask
from holdfast.testing.flows import MemoryBucket

Row = tuple[int, str, str | None]
"""Item, output folder, and the value; None if a processor could not make the row."""
TORN = "a\nb"
"""A value that the format cannot hold."""


@dataclass(frozen=True)
class Records:
    """A `RecordReader`."""

    def records(self, _batch: Any, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        return (SourceRecord({"item": item}, b"record %d" % item) for item, _ in faults)


def staged(
    portions: Sequence[Sequence[Row]], *, together: bool = True, max_bytes: int | None = None, reader: Any = Records()
) -> tuple[Counter[str], list[Any], TaskReport]:
    """The values in files, the letters, and the report."""
    bucket = MemoryBucket()
    batch = StagedBatch(
        "b",
        "p",
        "t|0",
        Name("t", "0"),
        1,
        1,
        max_bytes,
        changed=True,
        several_rows=True,
        whole_records=together,
        reader=reader,
    )
    task = StageTask([batch], {"files": SinkTask(FilesStager(bucket, TEXT.build(TextConfig())), {"value": "value"})})
    ((_, encoded),) = task(map(portion, portions))
    report = TaskReport.decode(encoded)
    assert report.error is None, report.error
    files, letters = Counter[str](), list[Any]()
    for file in report.parts["files"]["files"]:
        lines = bucket.staged[file["staged"]].decode().splitlines()
        if "deadletters" in file["key"]:
            letters += map(json.loads, lines)
        else:
            files.update(lines)
    return files, letters, report


def portion(rows: Sequence[Row]) -> Any:
    faults = [None if value is not None else record_fault("no row", b"half").encode() for _, _, value in rows]
    return pa.RecordBatch.from_pydict(
        {
            "_batch": ["b"] * len(rows),
            "_item": pa.array([item for item, _, _ in rows], pa.int64()),
            "_fault": pa.array(faults, pa.string()),
            "_place": [folder for _, folder, _ in rows],
            "value": pa.array([value for _, _, value in rows], pa.string()),
        }
    )


def test_a_record_of_which_a_row_is_refused_is_a_letter_with_all_its_rows_and_can_be_sent_again() -> None:
    rows = [(1, "a", "1"), (2, "a", "2"), (2, "b", TORN), (2, "c", "2 again"), (3, "a", "3"), (3, "b", "3 again")]
    for bounded in (None, 1 << 40):
        files, letters, report = staged([rows[:2], rows[2:3], rows[3:]], max_bytes=bounded)
        assert files == Counter(["1", "3", "3 again"])
        assert [(letter["raw"], letter.get("form"), letter["origin"]["item"]) for letter in letters] == [
            ("record 2", None, 2)
        ] * 3
        reasons = sorted(letter["reason"] for letter in letters)
        assert reasons[0] == reasons[1] == f"another row of its record was refused: {reasons[2]}"
        assert (report.rows, report.dead) == (3, 3)


def test_a_row_that_a_processor_could_not_make_keeps_the_others_of_its_record_out_of_the_files() -> None:
    files, letters, _ = staged([[(1, "a", "1"), (1, "a", None)], [(2, "a", "2")]])
    assert files == Counter(["2"])
    assert [letter["raw"] for letter in letters] == ["record 1", "record 1"]


@pytest.mark.parametrize("apart", [{"together": False}, {"reader": None}])
def test_where_a_record_cannot_be_kept_whole_its_good_rows_are_written_and_the_letter_is_not_sent_again(
    apart: dict[str, Any],
) -> None:
    files, letters, _ = staged([[(1, "a", "1"), (1, "a", TORN)]], **apart)
    assert files == Counter(["1"])
    assert [letter["form"] for letter in letters] == ["row"]


rows = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.sampled_from(["x", TORN, None])), max_size=20)


@settings(deadline=None, max_examples=150)
@given(rows, st.lists(st.integers(1, 5), max_size=6), st.booleans())
def test_no_row_is_in_a_file_and_in_a_letter_that_can_be_sent_however_rows_come(
    drawn: list[Row], cuts: list[int], ordered: bool
) -> None:
    rows = [(item, folder, value and f"{item}{value}") for item, folder, value in drawn]
    rows = sorted(rows, key=lambda row: row[0]) if ordered else rows
    portions, left = list[list[Row]](), rows
    for size in cuts:
        portions, left = [*portions, left[:size]], left[size:]
    portions = [part for part in (*portions, left) if part]
    if not portions:
        return
    files, letters, _ = staged(portions)
    sendable = {letter["origin"]["item"] for letter in letters if letter.get("form") != "row"}
    written = Counter(int(value[0]) for value in files.elements())
    assert not sendable & written.keys()
    in_letters = Counter(letter["origin"]["item"] for letter in letters)
    assert written + in_letters == Counter(item for item, _, _ in rows)
    if ordered:
        bad = {item for item, _, value in rows if value is None or TORN in value}
        assert sendable == bad
