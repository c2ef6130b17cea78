"""One Spark job: it reads, processes and stages some batches of one pipeline.

The planner decides what runs as a Spark expression and what inside the staging task, and builds each frame once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Refused, Unavailable
from holdfast.flow.batch import Batch
from holdfast.flow.engine import Failed, Report
from holdfast.flow.letter import RecordReader
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor, TaskStep
from holdfast.flow.sink import Sink, StagesByBatch
from holdfast.flow.source import (
    BATCH_COLUMN,
    ITEM_COLUMN,
    OPTIONAL_COLUMNS,
    SIZE_COLUMN,
    SYSTEM_COLUMNS,
    FixedColumns,
    MayChange,
    ReadsByConnector,
    RereadsRecords,
    Source,
    TaskRows,
)
from holdfast.flow.staging import ChecksColumns, StagedBatch, Stager, staged_batch
from holdfast.spark.batch_limits import SizeLimitStep
from holdfast.spark.columns import RECORD_COLUMN, quoted, with_record
from holdfast.spark.failures import Planning, readable, session_is_gone
from holdfast.spark.report import JobReport, TaskReport
from holdfast.spark.routes import routed
from holdfast.spark.row_counts import ProcessorCounts, ReadCounts, RowCount, unnamed
from holdfast.spark.task import SinkTask, StageTask, frame_of, run_tasks, staged_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


def run_job(spark: SparkSession, pipeline: Pipeline, batches: Sequence[Batch]) -> list[Report]:
    """Stage the batches, and return a report for each, also for those without rows. Blocks until Spark is done.

    Raises what Spark raises when it fails the job, and `BatchError` when the job as a whole cannot be trusted.
    """
    try:
        job = Planner(spark, pipeline, batches).job()
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True) for batch in batches]
    except Exception as error:
        if session_is_gone(spark, error):
            raise
        # The plan is the same for every batch: halves of the round would fail in the same way.
        reason = str(error) if isinstance(error, HoldfastError) else readable(error)
        away_now = isinstance(pipeline.source, ReadsByConnector) and pipeline.source.is_away(str(error))
        return [Failed(batch.id, reason, unavailable=away_now, what="source") for batch in batches]
    job_report = job.run(batches)
    try:
        doubts = doubts_of(pipeline.source, batches)
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True, what="source") for batch in batches]
    return job_report.of_batches(pipeline, batches, doubts)


def doubts_of(source: Source, batches: Sequence[Batch]) -> Mapping[str, str]:
    """By id, the batches that may hold other data than was planned, and why. Raises `SourceUnavailable`."""
    return source.doubts(batches) if isinstance(source, MayChange) else {}


@dataclass(frozen=True)
class Job:
    """A lazy Spark job, and the counters that its tasks fill."""

    reports: Any
    """A lazy frame or RDD of the reports of tasks, with the ids of their batches; None if there is nothing to read."""
    counts: ProcessorCounts | None = None
    size_limit: SizeLimitStep | None = None

    def run(self, batches: Sequence[Batch]) -> JobReport:
        """Run the job. Blocks; raises what Spark raises, and `BatchError` if rows with a fault were lost on the way."""
        reports = defaultdict[str, list[TaskReport]](list)
        if self.reports is None:
            return JobReport(reports)
        for batch_id, report in self.reports.collect():
            reports[batch_id].append(TaskReport.decode(report))
        dropped, read = dict[str, int](), dict[str, int]()
        if self.counts is not None:
            every = [report for of_batch in reports.values() for report in of_batch]
            staged = RowCount(sum(report.rows_in for report in every), sum(report.faults_in for report in every))
            dropped = self.counts.dropped(self.reports, staged)
            read = self.counts.read.rows_by_batch([batch.id for batch in batches])
        if self.size_limit is not None:
            for batch_id, admitted in self.size_limit.admitted().items():
                reports[batch_id].append(TaskReport(size=admitted.size, end=admitted.end, reads=True))
        return JobReport(reports, dropped, read)


class Planner:
    """Plans one job.

    The last processors run inside the staging task where they can. Without other processors, without routes, and if no
    sink needs an expression, rows that tasks read themselves never pass through the JVM.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, batches: Sequence[Batch], planning: Planning = unnamed
    ) -> None:
        """`planning` is entered with the path of each part of the pipeline while that part is planned."""
        self._planning = planning
        self._spark = spark
        self._pipeline = pipeline
        self._batches = batches
        self._processors, self._steps = _divided(pipeline)
        self._all_stagers = {name: sink.stager() for name, sink in pipeline.sinks.items()}
        fed = {name for stager in self._all_stagers.values() for name in stager.feeds}
        self._stagers = {name: stager for name, stager in self._all_stagers.items() if name not in fed}
        self._reader: RecordReader | None = None

    def job(self) -> Job:
        """The lazy job. Raises `Unavailable`, `Refused`, and what Spark raises for a plan that it cannot analyse."""
        from pyspark.sql import DataFrame

        rows = self._read()
        if isinstance(self._pipeline.source, RereadsRecords):
            self._reader = self._pipeline.source.record_reader(rows)
        return self._job_of_frame(rows) if isinstance(rows, DataFrame) else self._job_of_task_rows(rows)

    def analyse(self) -> None:
        """Build the frame of the job, also if there is nothing to read. Raises like `job`."""
        from pyspark.sql import DataFrame

        rows = self._read()
        if isinstance(rows, DataFrame):
            self._job_of_frame(rows)
        elif self._task_without_expressions(rows) is None:
            self._job_of_expressions(rows)

    def _read(self) -> DataFrame | TaskRows:
        with self._planning("source"):
            return self._pipeline.source.read(self._spark, self._batches, self._needed_columns())  # type: ignore[no-any-return]

    def _needed_columns(self) -> frozenset[str] | None:
        """The data columns that the source has to read; None for all, as processors and routes may need any."""
        source = self._pipeline.source
        if self._processors or self._pipeline.has_routes or not isinstance(source, FixedColumns):
            return None
        return self._step_inputs(self._sink_columns(source.columns()))

    def _job_of_task_rows(self, rows: TaskRows) -> Job:
        if not rows.tasks:
            return Job(None)
        task = self._task_without_expressions(rows)
        if task is not None:
            return Job(run_tasks(self._spark, rows.tasks, partial(_read_and_stage, rows, task)))
        return self._job_of_expressions(rows)

    def _job_of_expressions(self, rows: TaskRows) -> Job:
        counts = ProcessorCounts(self._spark, self._processors, self._planning)
        return Job(self._staged(processed(counts, frame_of(self._spark, rows, counts.read))), counts)

    def _job_of_frame(self, frame: DataFrame) -> Job:
        from pyspark.sql.types import StructType

        if not self._processors:
            return Job(self._staged(frame))
        counts = ProcessorCounts(self._spark, self._processors, self._planning)
        size_limit = SizeLimitStep(self._spark, self._to_stage)
        without_sizes = StructType([field for field in frame.schema.fields if field.name != SIZE_COLUMN])
        counted = frame.mapInArrow(_counting(counts.read, size_limit), without_sizes)
        return Job(self._staged(processed(counts, counted)), counts, size_limit)

    def _task_without_expressions(self, rows: TaskRows) -> StageTask | None:
        """The task that stages rows as they were read; None if anything in the pipeline needs a Spark expression."""
        if self._processors or self._pipeline.has_routes:
            return None
        if self._steps:
            return self._stage_task(dict.fromkeys(self._stagers))
        fields, names = _data_fields(rows.schema), dict[str, Mapping[str, str] | None]()
        for sink, stager in self._stagers.items():
            with self._planning("sinks", list(self._stagers).index(sink)):
                self._check_columns(stager, fields)
                columns = stager.plain_columns(fields)
            if columns is None:
                return None
            names[sink] = {name: name for name in columns}
        return self._stage_task(names)

    def _staged(self, frame: DataFrame) -> DataFrame:
        """The frame with staging as its last step. Sinks share columns, but not expressions."""
        from pyspark.sql import functions as sql

        fields = _data_fields(frame.schema)
        wanted = self._sink_columns(fields)
        ours = [name for name in (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS) if name in frame.columns]
        has_routes = self._pipeline.has_routes
        routes, route_columns = routed(frame, self._pipeline.routes, self._planning) if has_routes else ({}, {})
        carried: dict[str, Column] = {name: sql.col(name) for name in ours} | routes
        names: dict[str, dict[str, str] | None]
        if self._steps:
            names = dict.fromkeys(self._stagers)
            needed = self._step_inputs(wanted)
            for name in fields.names:
                if needed is None or name in needed:
                    carried[name] = sql.col(quoted(name))
        else:
            names = {sink: _carry(carried, index, columns) for index, (sink, columns) in enumerate(wanted.items())}
        whole_records = not self._several_rows or keeps_records_together(frame)
        task = self._stage_task(names, route_columns, whole_records=whole_records)
        return staged_frame(frame.select(*carried.values()), task)

    def _sink_columns(self, fields: StructType) -> dict[str, Mapping[str, Any]]:
        """By sink, the columns that it needs."""
        wanted = {}
        for number, (name, stager) in enumerate(self._stagers.items()):
            with self._planning("sinks", number):
                self._check_columns(stager, fields)
                wanted[name] = stager.columns(fields)
        return wanted

    def _check_columns(self, stager: Stager, fields: StructType) -> None:
        # Steps make columns inside the task, which are not known here.
        if isinstance(stager, ChecksColumns) and not self._steps:
            stager.check_columns(fields)

    def _step_inputs(self, wanted: Mapping[str, Mapping[str, Any]]) -> frozenset[str] | None:
        """The columns that the first step must be given; None for all. A sink's expression may need any."""
        as_they_are = all(made is None for columns in wanted.values() for made in columns.values())
        needed = frozenset(name for columns in wanted.values() for name in columns) if as_they_are else None
        for step in reversed(list(self._steps.values())):
            needed = step.inputs(needed)
        return needed

    def _stage_task(
        self,
        names: Mapping[str, Mapping[str, str] | None],
        route_columns: Mapping[str, str] = {},
        *,
        whole_records: bool = True,
    ) -> StageTask:
        # A sink that another one feeds needs no columns of the frame.
        sinks = {
            name: SinkTask(stager, names.get(name, {}), route_columns.get(name))
            for name, stager in self._task_stagers.items()
        }
        batches = self._to_stage
        if self._several_rows:
            batches = [replace(batch, whole_records=whole_records) for batch in batches]
        return StageTask(batches, sinks, self._steps)

    @property
    def _several_rows(self) -> bool:
        changing = [processor for processor in self._pipeline.processors if processor.changes_rows]
        return not all(processor.keeps_rows for processor in changing)

    @cached_property
    def _task_stagers(self) -> dict[str, Stager]:
        return {name: self._task_stager(name, sink) for name, sink in self._pipeline.sinks.items()}

    def _task_stager(self, name: str, sink: Sink) -> Stager:
        return sink.stager_for(self._batches) if isinstance(sink, StagesByBatch) else self._all_stagers[name]

    @cached_property
    def _to_stage(self) -> list[StagedBatch]:
        """The batches in the form in which tasks get them."""
        changing = [processor for processor in self._pipeline.processors if processor.changes_rows]
        bounded = any(stager.bounded for stager in self._task_stagers.values())
        limit = self._pipeline.receipt_bytes if bounded else lambda _batch: None
        return [
            staged_batch(
                batch,
                changed=bool(changing),
                max_receipt_bytes=limit(batch),
                several_rows=self._several_rows,
                reader=self._reader,
            )
            for batch in self._batches
        ]


def _divided(pipeline: Pipeline) -> tuple[dict[str, Processor], dict[str, TaskStep]]:
    """Processors of the frame, and the last ones that run inside the staging task; none do if there are routes."""
    processors = by_number_and_name(pipeline.processors)
    steps = dict[str, TaskStep]()
    for name, processor in reversed(processors.items()):
        step = None if pipeline.has_routes else processor.in_task()
        if step is None:
            break
        steps[name] = step
    frame_processors = {name: processor for name, processor in processors.items() if name not in steps}
    return frame_processors, dict(reversed(steps.items()))


_IN_PLACE = {
    *("Project", "Filter", "Generate", "MapInArrow", "MapInPandas", "Union", "SubqueryAlias", "View"),
    *("Relation", "RelationV2", "LogicalRDD", "LocalRelation", "Range"),
}
"""Spark's operators that leave rows in the task in which they are."""


def keeps_records_together(frame: DataFrame) -> bool:
    """Whether all rows of a record stay in one task: nothing in the frame's plan may move rows to other tasks."""
    plan = frame._jdf.queryExecution().analyzed().treeString()  # noqa: SLF001 - there is no public way
    operators = re.findall(r"^[\s:+\-*!']*(\w+)", plan, re.MULTILINE)
    return all(name in _IN_PLACE for name in operators)


def by_number_and_name(processors: Sequence[Processor]) -> dict[str, Processor]:
    """The processors by their names for people, such as `2-filter`; numbers begin at 1."""
    return {f"{number}-{processor.name}": processor for number, processor in enumerate(processors, 1)}


def processed(counts: ProcessorCounts, frame: DataFrame) -> DataFrame:
    """The frame after all processors. If one of them may fail rows, each row carries its record as it was read."""
    if not counts.may_fault:
        return counts.processed(frame)
    return counts.processed(with_record(frame)).drop(RECORD_COLUMN)


def _counting(counts: ReadCounts, size_limit: SizeLimitStep) -> Callable[[Iterator[Any]], Iterator[Any]]:
    # The function goes to the tasks, and processors must not go with it.
    return lambda portions: counts.counted_here(size_limit.admit(portions))


def _read_and_stage(rows: TaskRows, stage: StageTask, task: int) -> Iterator[tuple[str, str]]:
    return stage(rows.rows(task))


def _carry(carried: dict[str, Column], index: int, columns: Mapping[str, Any]) -> dict[str, str]:
    """Add the columns that a sink needs to those that are carried; returns their carried names by the sink's names."""
    from pyspark.sql import functions as sql

    names = {}
    for name, expression in columns.items():
        names[name] = name if expression is None else f"_{index}_{name}"
        carried.setdefault(names[name], sql.col(quoted(name)) if expression is None else expression.alias(names[name]))
    return names


def _data_fields(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    missing = [name for name in (BATCH_COLUMN, ITEM_COLUMN) if name not in schema.names]
    if missing:
        raise Refused(f"the columns {', '.join(missing)} are missing; a processor must keep the system columns")
    fields = [field for field in schema.fields if field.name not in (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS)]
    if len({field.name for field in fields}) < len(fields):
        raise Refused("two columns have the same name; rename one of them")
    return StructType(fields)
