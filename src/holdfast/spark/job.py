"""One Spark job: read, process and stage some batches of one pipeline, and tell what became of each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, HoldfastError, Refused, Unavailable
from holdfast.flow.batch import Batch
from holdfast.flow.engine import Failed, Report, Staged, TaskEnd, common_end
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor, TaskStep
from holdfast.flow.sink import Sink, StagesByBatch
from holdfast.flow.source import (
    BATCH_COLUMN,
    ITEM_COLUMN,
    OPTIONAL_COLUMNS,
    SIZE_COLUMN,
    SYSTEM_COLUMNS,
    CutsShort,
    FixedColumns,
    MayChange,
    ReadsByConnector,
    SalvagesDamage,
    Source,
    TaskRows,
)
from holdfast.flow.staging import Stager, staged_batch
from holdfast.leases.lease import Counts, Json
from holdfast.spark.arrow import frame_of, run_tasks
from holdfast.spark.failures import readable, session_is_gone
from holdfast.spark.gate import GateBefore
from holdfast.spark.records import RECORD_COLUMN, quoted, with_record
from holdfast.spark.routing import routed
from holdfast.spark.staging import REPORT_SCHEMA, BatchReport, SinkTask, StageTask
from holdfast.spark.tally import ProcessorTally, Seen, SourceTally, numbered_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


FEW_FILES = 16
"""So few fit into any row."""


def run_job(spark: SparkSession, pipeline: Pipeline, batches: Sequence[Batch]) -> list[Report]:
    """Stage the batches; blocks until Spark is done. One report for each, also for those without rows.

    Raises what Spark raises when it fails the job, and `BatchError` when the job as a whole cannot be trusted.
    """
    try:
        job = _planned(spark, pipeline, batches)
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True) for batch in batches]
    except Exception as error:
        if session_is_gone(spark, error):
            raise
        # The plan is the same for every batch: halves of the round would fail in the same way.
        reason = str(error) if isinstance(error, HoldfastError) else readable(error)
        away_now = isinstance(pipeline.source, ReadsByConnector) and pipeline.source.is_away(str(error))
        return [Failed(batch.id, reason, unavailable=away_now, what="source") for batch in batches]
    told, dropped = job.run()
    try:
        doubts = doubts_of(pipeline.source, batches)
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True, what="source") for batch in batches]
    read = {} if job.tally is None else job.tally.source.rows_of([batch.id for batch in batches])
    reports = [
        Failed(batch.id, doubts[batch.id])
        if batch.id in doubts
        else _report(pipeline, batch, told.get(batch.id, []), read)
        for batch in batches
    ]
    return _with_dropped(reports, dropped)


def doubts_of(source: Source, batches: Sequence[Batch]) -> Mapping[str, str]:
    """By id, which of these may hold other data than was planned, and why. Raises `SourceUnavailable`."""
    return source.doubts(batches) if isinstance(source, MayChange) else {}


def _with_dropped(reports: list[Report], dropped: Mapping[str, int]) -> list[Report]:
    """The reports, of which the first that can tells what the frame's processors have dropped of all batches."""
    for place, report in enumerate(reports if dropped else ()):
        if isinstance(report, Staged):
            reports[place] = replace(report, dropped={**report.dropped, **dropped})
            break
    return reports


@dataclass(frozen=True)
class _Job:
    """A lazy job, and what it has to be compared with when it is done."""

    frame: DataFrame | None
    """None if there is nothing to read."""
    tally: ProcessorTally | None = None
    gate: GateBefore | None = None

    def run(self) -> tuple[dict[str, list[BatchReport]], dict[str, int]]:
        """Reports of the tasks by batch, and by processor the rows that it dropped.

        Raises `BatchError` when faults were lost on the way.
        """
        told = defaultdict(list)
        for row in self.frame.collect() if self.frame is not None else ():
            told[row.batch].append(BatchReport.decode(row.report))
        dropped = dict[str, int]()
        if self.tally is not None and self.frame is not None:
            parts = [part for parts in told.values() for part in parts]
            staged = Seen(sum(part.came for part in parts), sum(part.faults for part in parts))
            dropped = self.tally.dropped(self.frame, staged)
        for batch_id, passed in self.gate.passed().items() if self.gate is not None else ():
            told[batch_id].append(BatchReport(size=passed.size, end=passed.end, reads=True))
        return told, dropped


def _report(pipeline: Pipeline, batch: Batch, told: Sequence[BatchReport], read: Mapping[str, int] = {}) -> Report:
    """`read`: rows that came to the processors of the frame, where there are any."""
    for part in told:
        if part.error is not None:
            return Failed(batch.id, part.error, part.unavailable)
    rows, dead = sum(part.rows for part in told), sum(part.dead for part in told)
    inside = _dropped_in_tasks(told)
    before = max(0, read.get(batch.id, 0) - sum(part.came for part in told))
    counts = Counts(rows + dead + sum(part.untaken for part in told), rows, 0, dead, before + sum(inside.values()))
    try:
        ends = [TaskEnd(part.rows + part.dead + part.untaken, part.end, part.reads) for part in told]
        cut_at = common_end([*ends, *(TaskEnd(0, part.left, reads=True) for part in told if part.left is not None)])
        receipts = {
            name: sink.receipt([part.parts[name] for part in told if name in part.parts])
            | _share(pipeline, name, told, counts)
            for name, sink in pipeline.sinks.items()
        }
        _check_size(pipeline, batch, receipts)
    except BatchError as wrong:
        return Failed(batch.id, str(wrong))
    staged = Staged(batch.id, batch.cut.end, batch.cut.last, receipts, counts, dropped=inside)
    staged = replace(staged, size=sum(part.size for part in told))
    if cut_at is not None:
        return _cut_short(pipeline.source, batch, staged, cut_at)
    damage = next((part.damage for part in told if part.damage is not None), None)
    if damage is not None and isinstance(pipeline.source, SalvagesDamage):
        return replace(staged, end=pipeline.source.damaged(batch.cut.end, damage), last=False)
    return staged


def _cut_short(source: Source, batch: Batch, staged: Staged, item: int) -> Report:
    if not isinstance(source, CutsShort):
        return Failed(
            batch.id,
            f"the batch must be cut short at item {item}, and its source cannot go on from there. Raise max_files of "
            "the sink, or let the source plan smaller batches",
        )
    return replace(staged, end=source.cut_short(batch, item), last=False)


def _dropped_in_tasks(told: Sequence[BatchReport]) -> dict[str, int]:
    dropped = defaultdict[str, int](int)
    for part in told:
        for name, rows in part.dropped.items():
            dropped[name] += rows
    return dict(dropped)


def _check_size(pipeline: Pipeline, batch: Batch, receipts: Mapping[str, Json]) -> None:
    """Raise `BatchError` if the row could not hold the receipts: each task has kept the bound for itself alone."""
    for sink, receipt in receipts.items():
        if len(files := receipt.get("files", ())) <= FEW_FILES:
            continue
        if (size := len(json.dumps(receipt))) > (most := pipeline.receipt_bytes(batch)):
            raise BatchError(
                f"sink {sink!r} has {len(files)} files of this batch, whose receipt takes {size} bytes; the row of the "
                f"store has room for {most}. Keep the rows of a batch in one task, or let records have fewer partition "
                "names"
            )


def _share(pipeline: Pipeline, sink: str, told: Sequence[BatchReport], counts: Counts) -> Json:
    """How many of the batch's rows a sink with routes was given: counted apart from what it says it has staged."""
    if sink not in pipeline.routes.by_sink:
        return {}
    return {"routed": {"rows": sum(part.given.get(sink, 0) for part in told), "of": counts.processed}}


def _planned(spark: SparkSession, pipeline: Pipeline, batches: Sequence[Batch]) -> _Job:
    """The lazy job: what runs as Spark expressions, and what inside the staging task."""
    from pyspark.sql import DataFrame

    before, steps = _parted(pipeline)
    rows = pipeline.source.read(spark, batches, _needed_columns(pipeline, before, steps))
    if isinstance(rows, DataFrame):
        return _of_frame(spark, pipeline, batches, rows, before, steps)
    return _of_task_rows(spark, pipeline, batches, rows, before, steps)


def _needed_columns(
    pipeline: Pipeline, before: Mapping[str, Processor], steps: Mapping[str, TaskStep]
) -> frozenset[str] | None:
    """The data columns that the source has to read; None for all, as processors and routes may need any."""
    if before or pipeline.has_routes or not isinstance(pipeline.source, FixedColumns):
        return None
    return _inputs(_wanted(pipeline, pipeline.source.columns()), steps)


def _of_task_rows(
    spark: SparkSession,
    pipeline: Pipeline,
    batches: Sequence[Batch],
    rows: TaskRows,
    before: Mapping[str, Processor],
    steps: Mapping[str, TaskStep],
) -> _Job:
    if not rows.tasks:
        return _Job(None)
    stage = None if before or pipeline.has_routes else _without_expressions(pipeline, batches, rows, steps)
    if stage is not None:
        return _Job(run_tasks(spark, rows.tasks, partial(_read_and_stage, rows, stage), REPORT_SCHEMA))
    tally = ProcessorTally(spark, before)
    frame = _processed(tally, frame_of(spark, rows, tally.source))
    return _Job(_staged(frame, pipeline, batches, steps), tally)


def _of_frame(
    spark: SparkSession,
    pipeline: Pipeline,
    batches: Sequence[Batch],
    frame: DataFrame,
    before: Mapping[str, Processor],
    steps: Mapping[str, TaskStep],
) -> _Job:
    from pyspark.sql.types import StructType

    if not before:
        return _Job(_staged(frame, pipeline, batches, steps))
    tally, gate = ProcessorTally(spark, before), GateBefore(spark, [staged_batch(batch) for batch in batches])
    kept = StructType([one for one in frame.schema.fields if one.name != SIZE_COLUMN])
    counted = frame.mapInArrow(_counting(tally.source, gate), kept)
    return _Job(_staged(_processed(tally, counted), pipeline, batches, steps), tally, gate)


def _counting(tally: SourceTally, gate: GateBefore) -> Callable[[Iterator[Any]], Iterator[Any]]:
    # The function goes to the tasks, and processors must not go with it.
    return lambda portions: tally.counted_here(gate.through(portions))


def _parted(pipeline: Pipeline) -> tuple[dict[str, Processor], dict[str, TaskStep]]:
    """Processors of the frame, and the last ones that run inside the staging task; none do before routes."""
    before = dict(zip(numbered_names(pipeline.processors), pipeline.processors, strict=True))
    steps = list[tuple[str, TaskStep]]()
    for name, processor in reversed(before.items()):
        step = None if pipeline.has_routes else processor.in_task()
        if step is None:
            break
        steps.insert(0, (name, step))
    inside = dict(steps)
    return {name: one for name, one in before.items() if name not in inside}, inside


def _processed(tally: ProcessorTally, frame: DataFrame) -> DataFrame:
    if not tally.may_fault:
        return tally.processed(frame)
    return tally.processed(with_record(frame)).drop(RECORD_COLUMN)


def _read_and_stage(rows: TaskRows, stage: StageTask, task: int) -> Any:
    return stage(rows.rows(task))


def _without_expressions(
    pipeline: Pipeline, batches: Sequence[Batch], rows: TaskRows, steps: Mapping[str, TaskStep]
) -> StageTask | None:
    """How to stage the rows as they were read; None if a sink wants an expression over them."""
    if steps:
        return _stage_task(pipeline, batches, dict.fromkeys(pipeline.sinks), steps)
    fields, names = _data_fields(rows.schema), dict[str, Mapping[str, str] | None]()
    for name, sink in pipeline.sinks.items():
        columns = sink.stager().plain_columns(fields)
        if columns is None:
            return None
        names[name] = {own: own for own in columns}
    return _stage_task(pipeline, batches, names)


def _staged(
    frame: DataFrame, pipeline: Pipeline, batches: Sequence[Batch], steps: Mapping[str, TaskStep] = {}
) -> DataFrame:
    """The frame with staging as its last step. Sinks share columns; each expression gets a name of its own."""
    from pyspark.sql import functions as sql

    fields = _data_fields(frame.schema)
    wanted = _wanted(pipeline, fields)
    ours = [name for name in (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS) if name in frame.columns]
    routes, taken = routed(frame, pipeline.routes)
    carried: dict[str, Column] = {name: sql.col(name) for name in ours} | routes
    names: dict[str, dict[str, str] | None]
    if steps:
        names = dict.fromkeys(pipeline.sinks)
        needed = _inputs(wanted, steps)
        for name in fields.names:
            if needed is None or name in needed:
                carried[name] = sql.col(quoted(name))
    else:
        names = {sink: _carry(carried, index, columns) for index, (sink, columns) in enumerate(wanted.items())}
    task = _stage_task(pipeline, batches, names, steps, taken)
    return frame.select(*carried.values()).mapInArrow(task, REPORT_SCHEMA)


def _carry(carried: dict[str, Column], index: int, columns: Mapping[str, Any]) -> dict[str, str]:
    """Add what one sink wants to the columns that are carried; answers the names under which it finds them."""
    from pyspark.sql import functions as sql

    names = {}
    for own, expression in columns.items():
        names[own] = own if expression is None else f"_{index}_{own}"
        carried.setdefault(names[own], sql.col(quoted(own)) if expression is None else expression.alias(names[own]))
    return names


def _inputs(wanted: Mapping[str, Mapping[str, Any]], steps: Mapping[str, TaskStep]) -> frozenset[str] | None:
    """The columns that must come to the first step; None for all. A sink's expression may need any."""
    as_they_are = all(made is None for columns in wanted.values() for made in columns.values())
    needed = frozenset(name for columns in wanted.values() for name in columns) if as_they_are else None
    for step in reversed(list(steps.values())):
        needed = step.inputs(needed)
    return needed


def _stage_task(
    pipeline: Pipeline,
    batches: Sequence[Batch],
    names: Mapping[str, Mapping[str, str] | None],
    steps: Mapping[str, TaskStep] = {},
    taken: Mapping[str, str] = {},
) -> StageTask:
    sinks = {
        name: SinkTask(_stager_for(sink, batches), names[name], taken.get(name))
        for name, sink in pipeline.sinks.items()
    }
    changed = any(processor.changes_rows for processor in pipeline.processors)
    bounded = any(sink.stager.bounded for sink in sinks.values())
    told = [
        staged_batch(batch, changed=changed, max_receipt_bytes=pipeline.receipt_bytes(batch) if bounded else None)
        for batch in batches
    ]
    return StageTask(told, sinks, steps)


def _stager_for(sink: Sink, batches: Sequence[Batch]) -> Stager:
    return sink.stager_for(batches) if isinstance(sink, StagesByBatch) else sink.stager()


def _wanted(pipeline: Pipeline, fields: StructType) -> dict[str, Mapping[str, Any]]:
    return {name: sink.stager().columns(fields) for name, sink in pipeline.sinks.items()}


def _data_fields(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    missing = [name for name in (BATCH_COLUMN, ITEM_COLUMN) if name not in schema.names]
    if missing:
        raise Refused(f"the columns {', '.join(missing)} are missing; a processor must keep the system columns")
    own = [one for one in schema.fields if one.name not in (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS)]
    if len({one.name for one in own}) < len(own):
        raise Refused("two columns have the same name; rename one of them")
    return StructType(own)
