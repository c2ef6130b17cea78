"""A batch that is full is cut between two records, or refused; everything real from the task to the readers' view."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.audit.documents import read_receipt
from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Cut, Name, TaskEnd, common_end
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.fault import cut_fault, record_fault
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import TaskStep
from holdfast.flow.staging import StagedBatch, staged_batch
from holdfast.formats.text import PLUGIN as TEXT
from holdfast.formats.text import TextConfig
from holdfast.leases.codec import encode_within
from holdfast.leases.lease import Lease, Ownership, Status
from holdfast.leases.store import SMALLEST_BODY
from holdfast.leases.transitions import Advance, commit
from holdfast.sinks.files import staging
from holdfast.sinks.files.sink import FilesSink
from holdfast.sinks.files.staging import FilesStager
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.source import KafkaSource
from holdfast.spark.report import TaskReport, batch_report
from holdfast.spark.task import SinkTask, StageTask
from holdfast.testing.flows import MemoryBucket

Row = tuple[int, str | None]
"""An item and its folder; a row without a folder has a fault."""

SOURCE = KafkaSource(KafkaConfig(bootstrap_servers="x:1", topics=("t",)), cluster=object())  # type: ignore[arg-type]


def portion(batch_id: str, rows: Sequence[Row], *, size: int = 0) -> Any:
    faults = [None if folder is not None else record_fault("bad", b"x").encode() for _, folder in rows]
    return pa.RecordBatch.from_pydict(
        {
            "_batch": [batch_id] * len(rows),
            "_item": pa.array([item for item, _ in rows], pa.int64()),
            "_fault": pa.array(faults, pa.string()),
            "_place": pa.array([folder for _, folder in rows], pa.string()),
            "value": [f"{item}@{folder}".encode().ljust(size, b".") for item, folder in rows],
        }
    )


class Desk:
    """One partition that is read by several tasks, batch after batch, until all of it is committed."""

    def __init__(self, row_bytes: int = 1 << 20, lease: Lease | None = None, **bounds: Any) -> None:
        self.bucket = MemoryBucket()
        self.stager = FilesStager(self.bucket, TEXT.build(TextConfig()), **bounds)
        self.pipeline = Pipeline(
            SOURCE, [], {"files": FilesSink("files", self.bucket, self.stager)}, max_receipt_bytes=row_bytes
        )
        owned = Ownership(Status.ASSIGNED, "me", 1, 1)
        self.lease = lease or Lease("p", "t|0", ownership=owned)
        self.ends: list[int] = []
        self.changed = True

    def batch(self, start: int, end: int, *, may_be_cut: bool = True) -> Batch:
        cut = Cut({"offset": start}, {"offset": end}, max_bytes=1 << 40 if may_be_cut else None)
        return Batch(f"b{len(self.ends)}", self.lease, Name("t", "0"), cut)

    def stage(self, batch: Batch, *tasks: Sequence[Sequence[Row]], size: int = 0) -> Report:
        """What becomes of the batch, whose rows come to tasks in these portions."""
        reports = []
        sinks = {"files": SinkTask(self.stager, {"value": "value"})}
        for portions in tasks:
            whole = staged_batch(batch, changed=self.changed, max_receipt_bytes=self.pipeline.receipt_bytes(batch))
            task = StageTask([whole], sinks)
            for _, report in task(portion(batch.id, rows, size=size) for rows in portions if rows):
                reports.append(TaskReport.decode(report))
        return batch_report(self.pipeline, batch, reports)

    def carry_out(self, rows: Sequence[Row], end: int, pieces: Sequence[int]) -> collections.Counter[str]:
        """Commit batches until the end; returns how often each row is in a commit's files."""
        seen: collections.Counter[str] = collections.Counter()
        while (start := self.ends[-1] if self.ends else 0) < end:
            left = [row for row in rows if row[0] >= start]
            report = self.stage(self.batch(start, end), list(_cut(left, pieces)))
            assert isinstance(report, Staged), report
            receipt = report.receipts["files"]
            self.check(receipt)
            self.ends.append(report.end["offset"])
            assert self.ends[-1] > start
            for file in receipt["files"]:
                seen.update(_contents(self.bucket.staged[file["staged"]], file["key"]))
        return seen

    def check(self, receipt: Any) -> None:
        data = [file for file in receipt["files"] if "deadletters" not in file["key"]]
        assert len(data) <= self.stager.max_files
        assert len(receipt["files"]) - len(data) <= 1
        receipts = {"files": {**receipt, "from": {"offset": 0}, "to": {"offset": 1 << 40}, "token": 1}}
        row = commit(self.lease, Advance("c", {"offset": 1 << 40}, receipts), self.lease, 0.0)
        encode_within(row, self.pipeline.max_receipt_bytes)


def _cut(rows: Sequence[Row], pieces: Sequence[int]) -> Iterator[Sequence[Row]]:
    at = 0
    for number in pieces:
        yield rows[at : at + number]
        at += number
    yield rows[at:]


def _contents(data: bytes, key: str) -> list[str]:
    if "deadletters" in key:
        return [f"{json.loads(line)['origin']['item']}@None" for line in data.splitlines()]
    return [line.decode().rstrip(".") for line in data.splitlines()]


def _wanted(rows: Sequence[Row]) -> collections.Counter[str]:
    return collections.Counter(f"{item}@{folder}" for item, folder in rows)


records = st.lists(
    st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=3), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=150)
@given(records, st.integers(3, 4), st.lists(st.integers(1, 5), max_size=8), st.integers(1, 4))
def test_every_row_is_in_one_commit_however_records_are_exploded_and_portioned(
    folders: list[list[str | None]], max_files: int, pieces: list[int], max_open_files: int
) -> None:
    rows = [(item, folder) for item, some in enumerate(folders) for folder in some]
    desk = Desk(max_files=max_files, max_open_files=max_open_files)
    assert desk.carry_out(rows, len(folders), pieces) == _wanted(rows)


def test_a_cut_falls_on_the_border_of_a_record() -> None:
    rows: list[Row] = [(0, "a"), (0, "b"), (1, "b"), (1, "c"), (2, "c")]
    for pieces in ([], [3], [1, 1, 1, 1]):
        desk = Desk(max_files=2)
        assert desk.carry_out(rows, 3, pieces) == _wanted(rows)
        assert desk.ends == [1, 3]


def test_rows_of_open_folders_still_fit_when_there_is_no_further_file() -> None:
    desk = Desk(max_files=2)
    rows: list[Row] = [(item, "ab"[item % 2]) for item in range(1000)]
    assert desk.carry_out(rows, 1000, [10] * 50) == _wanted(rows)
    assert desk.ends == [1000]


def test_rows_that_no_processor_has_changed_are_cut_where_they_come() -> None:
    desk = Desk(max_files=2)
    desk.changed = False
    rows: list[Row] = [(0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, "a")]
    assert desk.carry_out(rows, 5, [2, 1]) == _wanted(rows)
    assert desk.ends == [3, 5]


def test_files_that_were_closed_to_make_room_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "MAX_BUFFERED_BYTES", 10_000)
    desk = Desk(max_files=10, max_open_files=4)
    rows: list[Row] = [(item, f"dt={item % 9}") for item in range(180)]
    ends: list[int] = []
    while not ends or ends[-1] < 180:
        start = ends[-1] if ends else 0
        report = desk.stage(desk.batch(start, 180), list(_cut(rows[start:], [10] * 20)), size=1000)
        assert isinstance(report, Staged), report
        assert len(report.receipts["files"]["files"]) <= 10
        ends.append(report.end["offset"])
    assert len(ends) > 1


def test_files_of_a_bounded_size_are_bounded_in_number() -> None:
    desk = Desk(max_files=3, max_file_bytes=1 << 20)
    rows: list[Row] = [(item, "a") for item in range(9)]
    report = desk.stage(desk.batch(0, 9), [[row] for row in rows], size=33 << 20)
    assert isinstance(report, Staged)
    assert len(report.receipts["files"]["files"]) == 3
    assert report.end["offset"] < 9


def test_rows_that_are_not_in_order_are_refused_where_there_is_no_place_to_cut() -> None:
    for rows in (
        [(1, "a"), (2, "b"), (2, "c"), (0, "a")],
        [(0, "a"), (3, "b"), (2, "c"), (1, "a")],
        [(5, "a"), (6, "b"), (0, "c")],
    ):
        for pieces in ([], [1, 1, 1]):
            desk = Desk(max_files=2)
            report = desk.stage(desk.batch(0, 9), list(_cut(rows, pieces)))
            assert isinstance(report, Failed)
            assert "not in the order of their records" in report.error
            assert desk.bucket.staged == {}


def test_rows_that_are_not_in_order_are_fine_where_all_fit() -> None:
    desk = Desk(max_files=3)
    assert isinstance(desk.stage(desk.batch(0, 9), [[(1, "a"), (0, "b"), (2, "c")]]), Staged)


def test_a_batch_in_several_tasks_is_not_cut() -> None:
    first, second = [(0, "a"), (2, "b"), (4, "c"), (6, "a")], [(1, "a"), (3, "b"), (5, "b"), (7, "a")]
    desk = Desk(max_files=2)
    report = desk.stage(desk.batch(0, 8), [first], [second])
    assert isinstance(report, Failed)
    assert "its rows are in 2 tasks" in report.error
    whole = Desk(max_files=6)
    assert isinstance(whole.stage(whole.batch(0, 8), [first], [second]), Staged)


def test_tasks_that_keep_the_bound_each_by_itself_do_not_break_it_together() -> None:
    desk = Desk(max_files=2)
    report = desk.stage(desk.batch(0, 8), [[(0, "a"), (2, "b")]], [[(1, "a"), (3, "b")]])
    assert isinstance(report, Failed)
    assert "2 tasks have made 4 files" in report.error


@pytest.mark.parametrize("pieces", [[], [1], [2, 2], [1, 1, 1, 1, 1, 1]])
def test_a_record_that_no_commit_can_hold_is_a_dead_letter_and_those_around_it_are_not(pieces: list[int]) -> None:
    rows: list[Row] = [(0, "a"), (1, "a"), (1, "b"), (1, "c"), (2, "a"), (2, "d"), (3, "a"), (3, "b"), (3, "c")]
    desk = Desk(max_files=2)
    alone = {item: [row for row in rows if row[0] == item] for item in range(4)}
    assert desk.carry_out(rows, 4, pieces) == _wanted([*alone[0], (1, None), *alone[2], (3, None)])


def test_a_record_that_no_commit_can_hold_keeps_its_reason_and_what_it_was() -> None:
    desk = Desk(max_files=2)
    report = desk.stage(desk.batch(0, 1), [[(0, "a"), (0, "b"), (0, "c")]])
    assert isinstance(report, Staged)
    (file,) = report.receipts["files"]["files"]
    (letter,) = map(json.loads, desk.bucket.staged[file["staged"]].splitlines())
    assert "this record alone becomes more files than one commit may have" in letter["reason"]
    assert letter["raw"] == "0@a"
    assert (report.counts.processed, report.counts.dead) == (1, 1)


def test_a_row_that_has_no_room_for_a_single_folder_makes_its_records_dead_letters() -> None:
    desk = Desk(30_000)
    rows: list[Row] = [(0, "a"), (1, "\x01" * 4000), (2, "b")]
    assert desk.carry_out(rows, 3, []) == _wanted([(0, "a"), (1, None), (2, "b")])


def test_of_several_ends_the_least_is_taken() -> None:
    reads = TaskEnd(0, 7, reads=True)
    assert common_end([TaskEnd(5, 5), reads]) == 5
    assert common_end([reads, TaskEnd(5, 5)]) == 5
    assert common_end([TaskEnd(5, None), TaskEnd(3, None), reads]) == 7
    assert common_end([TaskEnd(5, None), TaskEnd(3, None)]) is None
    with pytest.raises(BatchError):
        common_end([TaskEnd(5, 9), TaskEnd(3, None)])


# --- the row ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_bytes", [SMALLEST_BODY, 360_000, 1 << 20])
def test_a_receipt_fits_into_its_row_however_long_names_are(row_bytes: int) -> None:
    desk = Desk(row_bytes, max_files=100_000)
    rows: list[Row] = [(item, "/".join(f"k{part}={item}{'x' * 90}" for part in range(6))) for item in range(1500)]
    desk.carry_out(rows, 1500, [500, 500])
    assert len(desk.ends) > 1


def test_what_else_is_in_the_row_leaves_less_room() -> None:
    lease = Lease("p", "t|0", spec={"long": "x" * 200_000}, ownership=Ownership(Status.ASSIGNED, "me", 1, 1))
    desk = Desk(SMALLEST_BODY, lease, max_files=1000)
    rows: list[Row] = [(item, f"dt={item}") for item in range(500)]
    desk.carry_out(rows, 500, [])
    assert len(desk.ends) > 3


def test_a_batch_that_cannot_be_cut_is_refused_before_its_receipt_outgrows_the_row() -> None:
    desk = Desk(SMALLEST_BODY, max_files=10)
    rows: list[Row] = [(item, f"dt={item}") for item in range(1000)]
    fits = desk.stage(desk.batch(0, 100, may_be_cut=False), [rows[:100]])
    assert isinstance(fits, Staged)
    report = desk.stage(replace(desk.batch(0, 1000, may_be_cut=False), id="x"), [rows])
    assert isinstance(report, Failed)
    assert "cannot be cut short" in report.error


def test_receipts_of_several_sinks_fit_into_one_row() -> None:
    desk = Desk(SMALLEST_BODY, max_files=1000)
    alone = desk.pipeline.receipt_bytes(desk.batch(0, 1))
    both = replace(desk.pipeline, sinks={**desk.pipeline.sinks, "second": desk.pipeline.sinks["files"]})
    assert both.receipt_bytes(desk.batch(0, 1)) <= alone // 2


class Recursing(TaskStep):
    """A step that descends into each record."""

    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return wanted

    def apply(self, batch: StagedBatch, rows: Any) -> Any:
        if b"3@a" in rows.column("value").to_pylist():
            raise RecursionError("maximum recursion depth exceeded")
        return rows


def test_a_record_that_is_nested_too_deeply_for_a_step_is_a_dead_letter_alone() -> None:
    desk = Desk()
    batch = desk.batch(0, 9)
    whole = staged_batch(batch, max_receipt_bytes=desk.pipeline.receipt_bytes(batch))
    task = StageTask([whole], {"files": SinkTask(desk.stager, {"value": "value"})}, {"1-deep": Recursing()})
    ((_, encoded),) = task(iter([portion(batch.id, [(item, "a") for item in range(9)])]))
    report = batch_report(desk.pipeline, batch, [TaskReport.decode(encoded)])
    assert isinstance(report, Staged)
    assert (report.counts.succeeded, report.counts.dead) == (8, 1)
    letters = [file for file in report.receipts["files"]["files"] if "deadletters" in file["key"]]
    (letter,) = map(json.loads, desk.bucket.staged[letters[0]["staged"]].splitlines())
    assert (letter["reason"], letter["raw"], letter["origin"]["item"]) == ("it is nested too deeply", "3@a", 3)


def test_a_source_may_name_the_position_where_it_has_cut_a_batch_short() -> None:
    desk, position = Desk(), {"after": ["k'7"], "row": 3}
    batch = desk.batch(0, 9, may_be_cut=False)
    rows = portion(batch.id, [(item, "a") for item in range(4)])
    rows = rows.set_column(2, "_fault", pa.array([None, None, None, cut_fault(position).encode()], pa.string()))
    whole = staged_batch(batch, max_receipt_bytes=desk.pipeline.receipt_bytes(batch))
    ((_, encoded),) = StageTask([whole], {"files": SinkTask(desk.stager, {"value": "value"})})(iter([rows]))
    report = batch_report(desk.pipeline, batch, [TaskReport.decode(encoded)])
    assert isinstance(report, Staged)
    assert (report.end, report.last, report.counts.processed, report.counts.dead) == (position, False, 3, 0)


def test_the_store_counts_what_a_format_skips_as_the_receipt_does() -> None:
    desk = Desk()
    desk.stager = FilesStager(desk.bucket, TEXT.build(TextConfig(delimiter="@b", containing="skip")))
    report = desk.stage(desk.batch(0, 4), [[(0, "a"), (1, "b"), (2, None), (3, "b")]])
    assert isinstance(report, Staged)
    receipt = report.receipts["files"]
    assert (report.counts.processed, report.counts.dead, receipt["skipped"]) == (4, 1, 2)
    assert read_receipt({**receipt, "from": 0, "to": 4}).rows == report.counts.processed


def test_a_row_for_which_a_processor_has_named_no_folder_is_a_dead_letter_alone() -> None:
    desk = Desk()
    batch = desk.batch(0, 3)
    rows = portion(batch.id, [(0, "a"), (1, "b"), (2, "a")])
    rows = rows.set_column(3, "_place", pa.array(["a", None, "a"]))
    whole = staged_batch(batch, changed=True, max_receipt_bytes=desk.pipeline.receipt_bytes(batch))
    ((_, encoded),) = StageTask([whole], {"files": SinkTask(desk.stager, {"value": "value"})})(iter([rows]))
    report = batch_report(desk.pipeline, batch, [TaskReport.decode(encoded)])
    assert isinstance(report, Staged)
    assert (report.counts.succeeded, report.counts.dead) == (2, 1)
    (letters,) = [file for file in report.receipts["files"]["files"] if "deadletters" in file["key"]]
    (letter,) = map(json.loads, desk.bucket.staged[letters["staged"]].splitlines())
    assert letter["reason"] == "_place is null: a processor has named no output folder for it"
    assert (letter["raw"], letter["origin"]["item"]) == ("1@b", 1)
