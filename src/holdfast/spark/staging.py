"""The task that stages: rows of all batches of a round in, one report per batch out.

An error of one batch is a line in its report, not a failed job. Nothing that a task stages counts before Spark has
returned its reports.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.errors import BatchError, SourceUnavailable, Unavailable, is_host_fault
from holdfast.flow.fault import BATCH, CUT, DAMAGE, UNAVAILABLE, Fault
from holdfast.flow.processor import TaskStep
from holdfast.flow.source import FAULT_COLUMN, ITEM_COLUMN
from holdfast.flow.staging import Room, StagedBatch, Stager, Staging
from holdfast.leases.lease import Json
from holdfast.spark.gate import Gate
from holdfast.spark.portions import (
    by_batch,
    by_place,
    data_of,
    number_taken,
    parted,
    places_of,
    shares_of,
    with_faults,
)
from holdfast.spark.shortening import Shortening
from holdfast.spark.tally import Seen, dropped_rows

REPORT_SCHEMA = "batch string, report string"
MAX_ERROR = 1000


@dataclass(frozen=True)
class SinkTask:
    """One sink in a task: its stager, and which columns of the frame are the ones it wants."""

    stager: Stager
    columns: Mapping[str, str] | None
    """The sink's name of a column → the frame's. None: all that the last step gives."""
    taken: str | None = None
    """The frame's column that is true for rows which belong to this sink; None: all do."""


@dataclass
class BatchReport:
    """What one task did for one batch."""

    rows: int = 0
    dead: int = 0
    untaken: int = 0
    """Good rows that by their routes belong to no sink."""
    came: int = 0
    """Rows that came, also after the batch had failed."""
    faults: int = 0
    """Those of them that came with a fault."""
    dropped: dict[str, int] = field(default_factory=dict)
    """By processor, good rows that did not come out of it."""
    size: int = 0
    end: int | None = None
    """The first item that was left for the next batch; None if all was staged."""
    reads: bool = False
    """Told by a step that reads in order and stages nothing: what it left has come to no task."""
    left: int | None = None
    """The first item that the source itself has left for the next batch: what is behind it came to no task."""
    damage: str | None = None
    """What is wrong with what the rows were read from; those that are there are good."""
    error: str | None = None
    unavailable: bool = False
    parts: dict[str, Json] = field(default_factory=dict)
    """By sink, this task's part of the receipt."""
    given: dict[str, int] = field(default_factory=dict)
    """By sink, the rows that it was given, good and faulty ones."""

    def encode(self) -> str:
        return json.dumps(self.__dict__)

    @classmethod
    def decode(cls, text: str) -> BatchReport:
        return cls(**json.loads(text))


class StageTask:
    """Stages record batches through all sinks of a pipeline, behind steps that have names.

    Picklable; called once per task attempt.
    """

    def __init__(
        self, batches: Sequence[StagedBatch], sinks: Mapping[str, SinkTask], steps: Mapping[str, TaskStep] = {}
    ) -> None:
        self._batches = {batch.id: batch for batch in batches}
        self._sinks = dict(sinks)
        self._steps = dict(steps)

    def __call__(self, incoming: Iterator[Any]) -> Iterator[Any]:
        attempt = _Attempt(self._batches, self._sinks, self._steps)
        try:
            for rows in incoming:
                attempt.take(rows)
            reports = attempt.finish()
        except BaseException:
            attempt.abandon_all()
            raise
        finally:
            attempt.close()
        yield pa.RecordBatch.from_pydict(
            {"batch": list(reports), "report": [report.encode() for report in reports.values()]},
            pa.schema([("batch", pa.string()), ("report", pa.string())]),
        )


class _Attempt:
    """One attempt of one task."""

    def __init__(
        self, batches: Mapping[str, StagedBatch], sinks: Mapping[str, SinkTask], steps: Mapping[str, TaskStep]
    ) -> None:
        self._batches = batches
        self._order = list(batches)
        self._sinks = sinks
        self._shared = {sink.taken for sink in sinks.values()}
        self._steps = steps
        self._gate = Gate(batches)
        is_bounded = any(sink.stager.bounded for sink in sinks.values())
        self._shortening = Shortening(self._gate, self._rooms, is_bounded=is_bounded)
        self._stagings: dict[str, Staging] = {name: sink.stager.begin() for name, sink in sinks.items()}
        self._reports: dict[str, BatchReport] = {}

    def take(self, rows: Any) -> None:
        """Stage a portion, in which rows of several batches may be mixed."""
        for batch_id, own in by_batch(with_faults(rows), self._order):
            report = self._reports.setdefault(batch_id, BatchReport())
            seen = _seen(own)
            report.came, report.faults = report.came + seen.rows, report.faults + seen.faults
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

    def close(self) -> None:
        for staging in self._stagings.values():
            staging.close()

    def _stage(self, batch_id: str, rows: Any) -> None:
        batch, report = self._batches[batch_id], self._reports[batch_id]
        self._shortening.check_left(batch, rows)
        rows = self._gate.admit(batch_id, rows)
        for name, step in self._steps.items():
            before, rows = _seen(rows), step.apply(batch, rows)
            if lost := dropped_rows(name, before, _seen(rows)):
                report.dropped[name] = report.dropped.get(name, 0) + lost
        for portion in self._shortening.through(batch, rows):
            self._stage_portion(batch, portion)

    def _stage_portion(self, batch: StagedBatch, rows: Any) -> None:
        report = self._reports[batch.id]
        good, faulty = parted(rows)
        places = places_of(good) if good.num_rows else set[str]()
        for staging in self._stagings.values():
            staging.expect(batch, places)
        if faulty := self._without_cut(report, faulty):
            self._bury(batch, faulty)
            report.dead += len(faulty)
            for name in self._sinks:
                report.given[name] = report.given.get(name, 0) + len(faulty)
        if good.num_rows:
            for place, own in by_place(good):
                self._write(batch, report, own, place)

    def _write(self, batch: StagedBatch, report: BatchReport, rows: Any, place: str) -> None:
        shares = shares_of(rows, self._shared)
        refused: dict[str, int] = {}
        for name, sink in self._sinks.items():
            share = shares[sink.taken]
            report.given[name] = report.given.get(name, 0) + share.num_rows
            if share.num_rows:
                items, own = share.column(ITEM_COLUMN), _view(share, sink.columns)
                refused[name] = self._stagings[name].write(batch, items, own, place)
        taken = number_taken(rows, self._shared)
        dead = self._dead(refused, taken)
        report.rows += taken - dead
        report.dead += dead
        report.untaken += rows.num_rows - taken

    def _dead(self, refused: Mapping[str, int], most: int) -> int:
        """How many rows are dead letters, from what each sink refused; at most so many."""
        by_routes: dict[str | None, int] = defaultdict(int)
        for name, number in refused.items():
            # The same rows came to every sink with the same routes: one of them could hold the fewest.
            routes = self._sinks[name].taken
            by_routes[routes] = max(by_routes[routes], number)
        return min(most, sum(by_routes.values()))

    def _rooms(self, batch: StagedBatch) -> list[tuple[Room, str | None]]:
        """What the sinks with a bound have left for the batch, each with the column that is true for its rows."""
        rooms = ((staging.room(batch), self._sinks[name].taken) for name, staging in self._stagings.items())
        return [(room, taken) for room, taken in rooms if room is not None]

    def _without_cut(self, report: BatchReport, faulty: Sequence[tuple[int, Fault]]) -> list[tuple[int, Fault]]:
        """The faults of records; a row that tells where the source has cut the batch short is taken out."""
        for item, fault in faulty:
            if fault.kind == CUT:
                report.left = item
        return [(item, fault) for item, fault in faulty if fault.kind != CUT]

    def _bury(self, batch: StagedBatch, faulty: Sequence[tuple[int, Fault]]) -> None:
        for _, fault in faulty:
            if fault.kind == BATCH:
                raise BatchError(fault.reason)
            if fault.kind == UNAVAILABLE:
                raise SourceUnavailable(fault.reason)
            if fault.kind == DAMAGE:
                self._reports[batch.id].damage = fault.reason
        for staging in self._stagings.values():
            staging.bury(batch, faulty)

    def _finish(self, batch_id: str) -> None:
        for portion in self._shortening.rest(self._batches[batch_id]):
            self._stage_portion(self._batches[batch_id], portion)
        parts = {name: staging.finish(self._batches[batch_id]) for name, staging in self._stagings.items()}
        passed, report = self._gate.passed[batch_id], self._reports[batch_id]
        report.parts, report.size, report.end = parts, passed.size, passed.end
        refused = {name: staging.late_unfit(self._batches[batch_id]) for name, staging in self._stagings.items()}
        late = self._dead(refused, report.rows)
        report.rows, report.dead = report.rows - late, report.dead + late

    def _guarded(self, batch_id: str, report: BatchReport, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this batch's error and not the job's
            report.error = _told(error)
            report.unavailable = isinstance(error, Unavailable) or is_host_fault(error)
            report.parts = {}
            self._abandon(batch_id)

    def _abandon(self, batch_id: str) -> None:
        self._shortening.forget(batch_id)
        for staging in self._stagings.values():
            staging.abandon(self._batches[batch_id])


def _seen(rows: Any) -> Seen:
    return Seen(rows.num_rows, rows.num_rows - rows.column(FAULT_COLUMN).null_count)


def _view(rows: Any, columns: Mapping[str, str] | None) -> Any:
    if columns is None:
        return data_of(rows)
    arrays = [rows.column(name) for name in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _told(error: Exception) -> str:
    text = str(error) or type(error).__name__
    known = isinstance(error, BatchError | Unavailable)
    return (text if known else f"{type(error).__name__}: {text}")[:MAX_ERROR]
