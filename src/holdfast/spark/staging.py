"""The task that stages: rows of all batches of a round in, one report per batch out.

An error of one batch is a line in its report, not a failed job. Nothing that a task stages counts before Spark has
returned its reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BatchError, SinkUnavailable
from holdfast.flow.deadletter import BATCH, Fault, decode_fault
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.staging import StagedBatch, Stager, Staging
from holdfast.leases.lease import Json

REPORT_SCHEMA = "batch string, report string"
MAX_ERROR = 1000


@dataclass(frozen=True)
class SinkTask:
    """One sink in a task: its stager, and which columns of the frame are the ones it wants."""

    stager: Stager
    columns: Mapping[str, str]
    """The sink's name of a column → the frame's."""


@dataclass
class BatchReport:
    """What one task did for one batch."""

    rows: int = 0
    dead: int = 0
    faults: int = 0
    """Rows with a fault that came, also after the batch had failed."""
    error: str | None = None
    unavailable: bool = False
    parts: dict[str, Json] = field(default_factory=dict)
    """By sink, this task's part of the receipt."""

    def encode(self) -> str:
        return json.dumps(self.__dict__)

    @classmethod
    def decode(cls, text: str) -> BatchReport:
        return cls(**json.loads(text))


class StageTask:
    """Stages record batches through all sinks of a pipeline. Picklable; called once per task attempt."""

    def __init__(self, batches: Sequence[StagedBatch], sinks: Mapping[str, SinkTask]) -> None:
        self._batches = {batch.id: batch for batch in batches}
        self._sinks = dict(sinks)

    def __call__(self, incoming: Iterator[Any]) -> Iterator[Any]:
        attempt = _Attempt(self._batches, self._sinks)
        try:
            for rows in incoming:
                attempt.take(rows)
            reports = attempt.finish()
        except BaseException:
            attempt.abandon_all()
            raise
        yield pa.RecordBatch.from_pydict(
            {"batch": list(reports), "report": [report.encode() for report in reports.values()]},
            pa.schema([("batch", pa.string()), ("report", pa.string())]),
        )


class _Attempt:
    """One attempt of one task."""

    def __init__(self, batches: Mapping[str, StagedBatch], sinks: Mapping[str, SinkTask]) -> None:
        self._batches = batches
        self._sinks = sinks
        self._stagings: dict[str, Staging] = {name: sink.stager.begin() for name, sink in sinks.items()}
        self._reports: dict[str, BatchReport] = {}

    def take(self, rows: Any) -> None:
        """Stage a portion, in which rows of several batches may be mixed."""
        for batch_id, own in _by_batch(rows):
            report = self._reports.setdefault(batch_id, BatchReport())
            report.faults += own.num_rows - own.column(FAULT_COLUMN).null_count
            if report.error is None:
                self._guarded(batch_id, report, partial(self._stage, batch_id, own))

    def finish(self) -> dict[str, BatchReport]:
        """Make everything durable."""
        for batch_id, report in self._reports.items():
            if report.error is None:
                self._guarded(batch_id, report, partial(self._finish, batch_id))
        return self._reports

    def abandon_all(self) -> None:
        for batch_id in self._reports:
            self._abandon(batch_id)

    def _stage(self, batch_id: str, rows: Any) -> None:
        batch, report = self._batches[batch_id], self._reports[batch_id]
        good, faulty = _parted(rows)
        if faulty:
            self._bury(batch, faulty)
            report.dead += len(faulty)
        if good.num_rows:
            items = good.column(ITEM_COLUMN)
            for name, sink in self._sinks.items():
                self._stagings[name].write(batch, items, _view(good, sink.columns))
            report.rows += good.num_rows

    def _bury(self, batch: StagedBatch, faulty: Sequence[tuple[int, Fault]]) -> None:
        for _, fault in faulty:
            if fault.kind == BATCH:
                raise BatchError(fault.reason)
        for staging in self._stagings.values():
            staging.bury(batch, faulty)

    def _finish(self, batch_id: str) -> None:
        parts = {name: staging.finish(self._batches[batch_id]) for name, staging in self._stagings.items()}
        self._reports[batch_id].parts = parts

    def _guarded(self, batch_id: str, report: BatchReport, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this batch's error and not the job's
            report.error = _told(error)
            report.unavailable = isinstance(error, SinkUnavailable)
            report.parts = {}
            self._abandon(batch_id)

    def _abandon(self, batch_id: str) -> None:
        for staging in self._stagings.values():
            staging.abandon(self._batches[batch_id])


def _by_batch(rows: Any) -> Iterator[tuple[str, Any]]:
    column = rows.column(BATCH_COLUMN)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    ids = encoded.dictionary.to_pylist()
    if len(ids) == 1 and not encoded.null_count:
        yield ids[0], rows
        return
    if encoded.null_count:
        raise BatchError(f"a row has lost its {BATCH_COLUMN}; processors must keep the system columns")
    for index, batch_id in enumerate(ids):
        own = rows.filter(pc.equal(encoded.indices, index))
        if own.num_rows:
            yield batch_id, own


def _parted(rows: Any) -> tuple[Any, list[tuple[int, Fault]]]:
    """Good rows, and faults with their items."""
    faults = rows.column(FAULT_COLUMN)
    if faults.null_count == len(faults):
        return rows, []
    bad = rows.filter(faults.is_valid())
    items, texts = bad.column(ITEM_COLUMN).to_pylist(), bad.column(FAULT_COLUMN).to_pylist()
    told = [(item or 0, decode_fault(text)) for item, text in zip(items, texts, strict=True)]
    return rows.filter(faults.is_null()), told


def _view(rows: Any, columns: Mapping[str, str]) -> Any:
    arrays = [rows.column(name) for name in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _told(error: Exception) -> str:
    text = str(error) or type(error).__name__
    known = isinstance(error, BatchError | SinkUnavailable)
    return (text if known else f"{type(error).__name__}: {text}")[:MAX_ERROR]
