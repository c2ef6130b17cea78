"""The staging task: stages rows of all batches of a round, and returns one report per batch.

An error of one batch is part of its report, not a failed job. Nothing that a task stages counts before Spark has
returned its reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from holdfast.errors import BatchError, SourceUnavailable, Unavailable, UsageError, is_host_fault
from holdfast.flow.fault import BATCH, CUT, DAMAGE, UNAVAILABLE, Fault
from holdfast.flow.letter import general_reason
from holdfast.flow.processor import TaskStep
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, TaskRows
from holdfast.flow.staging import Room, StagedBatch, Stager, Staging
from holdfast.spark.arrow_rows import (
    by_batch,
    by_output_folder,
    count_routed,
    data_of,
    divided,
    items_of,
    output_folders_of,
    rows_by_route,
    with_faults,
    with_first_refused,
    with_folderless_refused,
)
from holdfast.spark.batch_limits import CommitLimit, SizeLimit
from holdfast.spark.report import NEEDS_MEMORY, TaskReport
from holdfast.spark.row_counts import RowCount, dropped_rows
from holdfast.spark.whole_records import WholeRecords

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.row_counts import ReadCounts

T = TypeVar("T")
MAX_ERROR = 1000


@dataclass(frozen=True)
class SinkTask:
    """One sink in a task: its stager, and the columns of the frame that it needs."""

    stager: Stager
    columns: Mapping[str, str] | None
    """The sink's name of a column → the frame's. None: all that the last step returns."""
    route: str | None = None
    """The frame's column that is true for the rows of this sink; None: all rows are."""


class StageTask:
    """Stages record batches through all sinks of a pipeline, after the steps, which are given by name.

    Picklable; called once per task attempt.
    """

    def __init__(
        self, batches: Sequence[StagedBatch], sinks: Mapping[str, SinkTask], steps: Mapping[str, TaskStep] = {}
    ) -> None:
        self._batches = {batch.id: batch for batch in batches}
        self._sinks = dict(sinks)
        self._steps = dict(steps)

    def __call__(self, incoming: Iterator[Any]) -> Iterator[tuple[str, str]]:
        """Stage all rows, and yield the id of each batch that had rows, with its encoded `TaskReport`."""
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
        for batch_id, report in reports.items():
            yield batch_id, report.encode()


class _Attempt:
    """One attempt of one task."""

    def __init__(
        self, batches: Mapping[str, StagedBatch], sinks: Mapping[str, SinkTask], steps: Mapping[str, TaskStep]
    ) -> None:
        self._batches = batches
        self._batch_ids = list(batches)
        all_sinks, fed = sinks, {name for sink in sinks.values() for name in sink.stager.feeds}
        self._sinks = sinks = {name: sink for name, sink in sinks.items() if name not in fed}
        self._routes = {sink.route for sink in sinks.values()}
        self._steps = steps
        self._size_limit = SizeLimit(batches)
        is_bounded = any(sink.stager.bounded for sink in sinks.values())
        self._commit_limit = CommitLimit(self._size_limit, self._rooms, is_bounded=is_bounded)
        self._stagings: dict[str, Staging] = {name: sink.stager.begin() for name, sink in sinks.items()}
        self._fed: dict[str, Staging] = {name: all_sinks[name].stager.begin() for name in sorted(fed)}
        """Stagings that get their rows from another one when that finishes."""
        for name, sink in sinks.items():
            self._stagings[name].feed({other: self._fed[other] for other in sink.stager.feeds})
        several_rows = any(batch.several_rows for batch in batches.values())
        self._records = {name: WholeRecords(staging) for name, staging in self._stagings.items() if several_rows}
        self._writers: dict[str, Staging | WholeRecords] = {**self._stagings, **self._records}
        self._reports: dict[str, TaskReport] = {}

    def take(self, rows: Any) -> None:
        """Stage a portion, in which rows of several batches may be mixed."""
        for batch_id, batch_rows in by_batch(with_faults(rows), self._batch_ids):
            report = self._reports.setdefault(batch_id, TaskReport())
            report.rows_in += batch_rows.num_rows
            report.faults_in += batch_rows.num_rows - batch_rows.column(FAULT_COLUMN).null_count
            if report.error is None:
                self._guarded(batch_id, report, partial(self._stage, batch_id, batch_rows))

    def finish(self) -> dict[str, TaskReport]:
        """Make everything durable."""
        for batch_id, report in self._reports.items():
            if report.error is None:
                self._guarded(batch_id, report, partial(self._finish, batch_id))
        return self._reports

    def abandon_all(self) -> None:
        for batch_id in self._reports:
            self._abandon(batch_id)

    def close(self) -> None:
        for staging in (*self._stagings.values(), *self._fed.values()):
            staging.close()

    def _stage(self, batch_id: str, rows: Any) -> None:
        batch, report = self._batches[batch_id], self._reports[batch_id]
        self._commit_limit.check_order(batch, rows)
        parts = [self._size_limit.admit(batch_id, rows)]
        for name, step in self._steps.items():
            before, parts = _count(*parts), [made for part in parts for made in _applied(step, batch, part)]
            if dropped := dropped_rows(name, before, _count(*parts)):
                report.dropped[name] = report.dropped.get(name, 0) + dropped
        for part in parts:
            for portion in self._commit_limit.admit(batch, part):
                self._stage_portion(batch, portion)

    def _stage_portion(self, batch: StagedBatch, rows: Any) -> None:
        report = self._reports[batch.id]
        good, faults = divided(with_folderless_refused(batch, rows))
        folders = output_folders_of(good) if good.num_rows else set[str]()
        for staging in self._stagings.values():
            staging.expect(batch, folders)
        faults = self._without_cut(report, faults)
        if batch.several_rows:
            self._withhold(batch, good, faults)
        if faults:
            self._bury(batch, faults)
            report.dead += len(faults)
            report.letter_reason = report.letter_reason or faults[0][1].reason
            for name in self._sinks:
                report.routed[name] = report.routed.get(name, 0) + len(faults)
        if good.num_rows:
            for folder, folder_rows in by_output_folder(good):
                self._write(batch, report, folder_rows, folder)
        if batch.several_rows and rows.num_rows:
            for records in self._records.values():
                records.staged(batch, items_of(rows))

    def _withhold(self, batch: StagedBatch, good: Any, faults: Sequence[tuple[int, Fault]]) -> None:
        """Let every sink find the records that it will not stage, before any of their rows is staged."""
        by_folder = list(by_output_folder(good)) if good.num_rows else []
        for name, sink in self._sinks.items():
            found = [(folder, rows_by_route(rows, [sink.route])[sink.route]) for folder, rows in by_folder]
            parts = [(folder, rows.column(ITEM_COLUMN), _renamed(rows, sink.columns)) for folder, rows in found]
            self._records[name].look_at(batch, parts, faults)

    def _write(self, batch: StagedBatch, report: TaskReport, rows: Any, folder: str) -> None:
        by_route = rows_by_route(rows, self._routes)
        refused: dict[str, int] = {}
        for name, sink in self._sinks.items():
            sink_rows = by_route[sink.route]
            report.routed[name] = report.routed.get(name, 0) + sink_rows.num_rows
            if sink_rows.num_rows:
                items, columns = sink_rows.column(ITEM_COLUMN), _renamed(sink_rows, sink.columns)
                refused[name] = self._writers[name].write(batch, items, columns, folder)
        routed = count_routed(rows, self._routes)
        dead = self._dead(refused, routed)
        report.rows += routed - dead
        report.dead += dead
        report.unrouted += rows.num_rows - routed

    def _dead(self, refused: Mapping[str, int], most: int) -> int:
        """How many rows are dead letters, from how many each sink refused; `most` is an upper bound."""
        if not any(refused.values()):
            return 0
        by_route = Counter[str | None]()
        for name, count in refused.items():
            # The same rows came to every sink with the same routes: what one refuses, another may have refused too.
            route = self._sinks[name].route
            by_route[route] = max(by_route[route], count)
        return min(most, by_route.total())

    def _rooms(self, batch: StagedBatch) -> list[tuple[Room, str | None]]:
        """The room that sinks with a bound have left for the batch, each with the column that is true for its rows."""
        rooms = ((staging.room(batch), self._sinks[name].route) for name, staging in self._stagings.items())
        return [(room, route) for room, route in rooms if room is not None]

    def _without_cut(self, report: TaskReport, faults: Sequence[tuple[int, Fault]]) -> list[tuple[int, Fault]]:
        """The faults of records. A row that marks where the source cut the batch short is removed."""
        for item, fault in faults:
            if fault.kind == CUT:
                report.source_end, report.source_position = item, fault.raw
        return [(item, fault) for item, fault in faults if fault.kind != CUT]

    def _bury(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> None:
        for _, fault in faults:
            if fault.kind == BATCH:
                raise BatchError(fault.reason)
            if fault.kind == UNAVAILABLE:
                raise SourceUnavailable(fault.reason)
            if fault.kind == DAMAGE:
                self._reports[batch.id].damage = fault.reason
        for writer in self._writers.values():
            writer.bury(batch, faults)

    def _finish(self, batch_id: str) -> None:
        batch, report = self._batches[batch_id], self._reports[batch_id]
        for portion in self._commit_limit.rest(batch):
            self._stage_portion(batch, portion)
        parts = {name: staging.finish(batch) for name, staging in (*self._stagings.items(), *self._fed.items())}
        admitted = self._size_limit.admitted[batch_id]
        report.parts, report.size, report.end = parts, admitted.size, admitted.end
        refused = {name: staging.late_unfit(batch) for name, staging in self._stagings.items()}
        late = self._dead(refused, report.rows)
        report.rows, report.dead = report.rows - late, report.dead + late
        if report.dead:
            chosen = {name: staging.chosen_letters(batch) for name, staging in self._stagings.items()}
            report.chosen_letters = self._dead(chosen, report.dead)
            found = [report.letter_reason, *(staging.letter_reason(batch) for staging in self._stagings.values())]
            report.letter_reason = next((general_reason(reason) for reason in found if reason is not None), None)

    def _guarded(self, batch_id: str, report: TaskReport, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this batch's error and not the job's
            report.error = _error_text(error)
            report.unavailable = isinstance(error, Unavailable) or is_host_fault(error)
            report.parts = {}
            self._abandon(batch_id)

    def _abandon(self, batch_id: str) -> None:
        self._commit_limit.forget(batch_id)
        for staging in (*self._stagings.values(), *self._fed.values()):
            staging.abandon(self._batches[batch_id])


def _count(*parts: Any) -> RowCount:
    number = sum(rows.num_rows for rows in parts)
    return RowCount(number, number - sum(rows.column(FAULT_COLUMN).null_count for rows in parts))


def _applied(step: TaskStep, batch: StagedBatch, rows: Any) -> list[Any]:
    """The rows after the step. A record that is nested too deeply for it is found by halving, and gets a fault."""
    try:
        return [step.apply(batch, rows)]
    except RecursionError:
        if not rows.num_rows:
            raise
        if rows.num_rows == 1:
            return [with_first_refused(batch, rows, 1, "it is nested too deeply")]
    half = rows.num_rows // 2
    return [*_applied(step, batch, rows.slice(0, half)), *_applied(step, batch, rows.slice(half))]


def _renamed(rows: Any, columns: Mapping[str, str] | None) -> Any:
    """The columns that a sink needs, under its names; None: all data columns."""
    if columns is None:
        return data_of(rows)
    arrays = [rows.column(name) for name in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _error_text(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return ": ".join(part for part in (type(error).__name__, str(error)[: MAX_ERROR // 2], NEEDS_MEMORY) if part)
    text = str(error) or type(error).__name__
    is_ours = isinstance(error, BatchError | Unavailable)
    return (text if is_ours else f"{type(error).__name__}: {text}")[:MAX_ERROR]


# --- tasks in Spark ---------------------------------------------------------------------------------------------------


def run_tasks(spark: SparkSession, tasks: int, work: Callable[[int], Iterator[T]]) -> RDD[T]:
    """What `work` yields for each task number, lazily; one Spark task each.

    Spark plans nothing for it, so that it costs the JVM less than a frame.
    """
    try:
        numbers = spark.sparkContext.parallelize(range(tasks), tasks)
    except OSError as error:  # it writes a temporary file, and no such error is about a batch
        raise Unavailable(f"this host cannot prepare a job of Spark: {error}") from error
    return numbers.flatMap(work)


def staged_frame(frame: DataFrame, task: StageTask) -> DataFrame:
    """The lazy frame of what `task` yields for the rows of each partition of the frame."""

    def staged(incoming: Iterator[Any]) -> Iterator[Any]:
        reports = list(task(incoming))
        columns = [pa.array([report[column] for report in reports], pa.string()) for column in range(2)]
        yield pa.RecordBatch.from_arrays(columns, names=["batch", "report"])

    return frame.mapInArrow(staged, "batch string, report string")


def warm_up(spark: SparkSession, stagers: Sequence[Stager]) -> None:
    """Run a task on every core that loads the modules of these stagers; blocks until all are done.

    The first job of a JVM takes seconds, during which a node that has joined would hold leases without using them.
    Raises `UsageError` when Spark cannot run a task at all, for example because executors have another Python.
    """
    from holdfast.spark.failures import readable

    cores = spark.sparkContext.defaultParallelism
    try:
        # As a frame, although most tasks need none: frames are what Java takes longest to load.
        spark.range(0, cores, 1, cores).mapInArrow(partial(_prepared, stagers), "id long").collect()
    except Exception as error:
        raise UsageError(f"Spark cannot run a task of holdfast: {readable(error)}") from error


def _prepared(stagers: Sequence[Stager], numbers: Iterator[Any]) -> Iterator[Any]:
    for stager in stagers:
        stager.warm_up()
    yield from numbers


def frame_of(spark: SparkSession, read: TaskRows, counts: ReadCounts | None = None) -> DataFrame:
    """The lazy frame of rows that tasks make themselves; `counts` counts the rows that come out of it."""
    if not read.tasks:
        return spark.createDataFrame([], read.schema)

    def rows(numbers: Iterator[Any]) -> Iterator[Any]:
        for task in chain.from_iterable(batch.column(0).to_pylist() for batch in numbers):
            portions = read.rows(task)
            yield from map(_without_dictionary, portions if counts is None else counts.counted(task, portions))

    return spark.range(0, read.tasks, 1, read.tasks).mapInArrow(rows, read.schema)


def _without_dictionary(rows: Any) -> Any:
    """The same rows, their batch ids decoded: Spark does not take dictionaries."""
    index = rows.schema.get_field_index(BATCH_COLUMN)
    column = rows.column(index)
    if pa.types.is_dictionary(column.type):
        return rows.set_column(index, BATCH_COLUMN, column.dictionary_decode())
    return rows
