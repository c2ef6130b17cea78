"""What is counted around a step inside the staging task.

The simulator has an engine of its own, without processors: what these drop is seen here and in `tests/spark`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.flow.batch import Name
from holdfast.flow.fault import record_fault
from holdfast.flow.processor import TaskStep
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.formats.text import Text
from holdfast.sinks.files.late_records import LateRule, LateStager
from holdfast.sinks.files.periods import Periods
from holdfast.sinks.files.staging import FilesStager
from holdfast.spark.report import TaskReport
from holdfast.spark.task import SinkTask, StageTask
from holdfast.testing.flows import MemoryBucket

BATCH = StagedBatch("b", "p", "k", Name("orders", "3"), 1, 1)
FAULT = record_fault("no JSON", b"oops").encode()
ROWS = pa.RecordBatch.from_pydict(
    {
        "_batch": ["b"] * 4,
        "_item": pa.array(range(4), pa.int64()),
        "_fault": pa.array([None, FAULT, None, None], pa.string()),
        "amount": [5, None, -1, 0],
    }
)


class _Nothing(Stager, Staging):
    """Keeps nothing."""

    def columns(self, fields: Any) -> dict[str, Any]:
        return {}

    def begin(self) -> Staging:
        return self

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        return 0

    def bury(self, batch: StagedBatch, faults: Any) -> None: ...

    def finish(self, batch: StagedBatch) -> Any:
        return {}

    def abandon(self, batch: StagedBatch) -> None: ...


@dataclass(frozen=True)
class _Keeping(TaskStep):
    kept: Callable[[Any], Any]

    def inputs(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return wanted

    def apply(self, batch: StagedBatch, rows: Any) -> Any:
        return rows.filter(self.kept(rows))


def report_of(**steps: Callable[[Any], Any]) -> TaskReport:
    named = {name: _Keeping(kept) for name, kept in steps.items()}
    ((_, encoded),) = StageTask([BATCH], {"out": SinkTask(_Nothing(), None)}, named)(iter([ROWS, ROWS]))
    return TaskReport.decode(encoded)


def test_good_rows_that_a_step_drops_are_counted() -> None:
    report = report_of(
        first=lambda rows: pc.or_kleene(pc.greater_equal(rows.column("amount"), 0), rows.column("_fault").is_valid()),
        second=lambda rows: pc.fill_null(pc.not_equal(rows.column("amount"), 0), True),
    )
    assert (report.error, report.dropped) == (None, {"first": 2, "second": 2})
    assert (report.rows_in, report.faults_in, report.rows, report.dead) == (8, 2, 2, 2)


def test_a_step_that_drops_a_fault_fails_the_batch_and_is_named() -> None:
    report = report_of(
        harmless=lambda rows: pa.array([True] * rows.num_rows),
        greedy=lambda rows: pc.greater_equal(rows.column("amount"), 0),
    )
    assert "1 of 1 rows with a fault are lost in processor greedy" in str(report.error)


class _Refusing(_Nothing):
    """Cannot hold any row."""

    def write(self, batch: StagedBatch, items: Any, rows: Any, output_folder: str = "") -> int:
        return int(rows.num_rows)

    def letter_reason(self, batch: StagedBatch) -> str | None:
        return "400 mapper_parsing_exception: failed to parse field 'n' of document 17"


@pytest.mark.parametrize(
    ("rows", "stager", "reason"),
    [
        (ROWS, _Nothing(), "no JSON"),
        (ROWS, _Refusing(), "no JSON"),
        (ROWS.slice(2), _Refusing(), "400 mapper_parsing_exception: failed to parse field … of document …"),
        (ROWS.slice(2), _Nothing(), None),
    ],
)
def test_a_report_tells_why_rows_became_dead_letters_without_their_values(
    rows: Any, stager: _Nothing, reason: str | None
) -> None:
    ((_, encoded),) = StageTask([BATCH], {"out": SinkTask(stager, None)})(iter([rows]))
    assert TaskReport.decode(encoded).letter_reason == reason


def test_sinks_of_files_tell_why_their_format_cannot_hold_a_row() -> None:
    rows = ROWS.slice(2).append_column("value", pa.array(["a\nb", "c"]))
    sink = SinkTask(FilesStager(MemoryBucket(), Text()), {"value": "value"})
    ((_, encoded),) = StageTask([BATCH], {"out": sink})(iter([rows]))
    report = TaskReport.decode(encoded)
    assert (report.rows, report.dead) == (1, 1)
    assert "delimiter" in str(report.letter_reason)


def test_late_records_that_a_setting_makes_dead_letters_are_told_apart_from_errors() -> None:
    folders = pa.array(["dt=2026-01-01", "", "dt=2026-01-01", "dt=2026-01-05"])
    rows = ROWS.append_column("_place", folders).append_column("value", pa.array(["a", None, "b", "c"]))
    rule = LateRule(Periods(), "dead_letter", final={"b": datetime(2026, 1, 3, tzinfo=UTC).timestamp()})
    sink = SinkTask(LateStager(FilesStager(MemoryBucket(), Text()), rule), {"value": "value"})
    ((_, encoded),) = StageTask([BATCH], {"out": sink})(iter([rows]))
    report = TaskReport.decode(encoded)
    assert (report.error, report.rows, report.dead, report.chosen_letters) == (None, 1, 3, 2)
