"""One Spark job: read, process and stage some batches of one pipeline, and tell what became of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, HoldfastError, Refused, Unavailable
from holdfast.flow.batch import Batch
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.processor import Processor
from holdfast.flow.sink import Sink
from holdfast.flow.source import SYSTEM_COLUMNS, DirectRead, Source
from holdfast.flow.staging import staged_batch
from holdfast.leases.lease import Counts
from holdfast.spark.arrow import frame_of, run_tasks
from holdfast.spark.failures import readable, session_is_gone
from holdfast.spark.staging import REPORT_SCHEMA, BatchReport, SinkTask, StageTask
from holdfast.spark.tally import FaultTally

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Recipe:
    """How the rows of one pipeline move."""

    source: Source
    processors: Sequence[Processor]
    sinks: Mapping[str, Sink]


def run_job(spark: SparkSession, recipe: Recipe, batches: Sequence[Batch]) -> list[Report]:
    """Stage the batches; blocks until Spark is done. One report for each, also for those without rows.

    Raises what Spark raises when it fails the job, and `BatchError` when the job as a whole cannot be trusted.
    """
    try:
        job = _planned(spark, recipe, batches)
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True) for batch in batches]
    except Exception as error:
        if session_is_gone(spark, error):
            raise
        # The plan is the same for every batch: halves of the round would fail in the same way.
        reason = str(error) if isinstance(error, HoldfastError) else readable(error)
        return [Failed(batch.id, reason) for batch in batches]
    told = job.run()
    return [_report(recipe, batch, told.get(batch.id, [])) for batch in batches]


@dataclass(frozen=True)
class _Job:
    """A lazy job, and what it has to be compared with when it is done."""

    frame: DataFrame | None
    """None if there is nothing to read."""
    tally: FaultTally | None = None

    def run(self) -> dict[str, list[BatchReport]]:
        """Reports of the tasks, by batch. Raises `BatchError` when faults were lost on the way."""
        told = defaultdict(list)
        for row in self.frame.collect() if self.frame is not None else ():
            told[row.batch].append(BatchReport.decode(row.report))
        if self.tally is not None:
            self.tally.compare(sum(part.faults for parts in told.values() for part in parts))
        return told


def _report(recipe: Recipe, batch: Batch, told: Sequence[BatchReport]) -> Report:
    for part in told:
        if part.error is not None:
            return Failed(batch.id, part.error, part.unavailable)
    rows, dead = sum(part.rows for part in told), sum(part.dead for part in told)
    try:
        receipts = {name: sink.receipt([part.parts[name] for part in told]) for name, sink in recipe.sinks.items()}
    except BatchError as wrong:
        return Failed(batch.id, str(wrong))
    return Staged(batch.id, batch.cut.end, batch.cut.last, receipts, Counts(rows + dead, rows, 0, dead))


def _planned(spark: SparkSession, recipe: Recipe, batches: Sequence[Batch]) -> _Job:
    direct = recipe.source.direct(spark, batches)
    if direct is None:
        return _read_by_frame(spark, recipe, batches)
    if not direct.tasks:
        return _Job(None)
    stage = None if recipe.processors else _without_expressions(recipe, batches, direct)
    if stage is not None:
        return _Job(run_tasks(spark, direct.tasks, partial(_read_and_stage, direct, stage), REPORT_SCHEMA))
    tally = FaultTally(spark)
    return _Job(_staged(_processed(recipe, frame_of(spark, direct, tally)), recipe, batches), tally)


def _read_by_frame(spark: SparkSession, recipe: Recipe, batches: Sequence[Batch]) -> _Job:
    frame = recipe.source.read(spark, batches)
    if not recipe.processors:
        return _Job(_staged(frame, recipe, batches))
    tally = FaultTally(spark)
    counted = frame.mapInArrow(tally.counted_here, frame.schema)
    return _Job(_staged(_processed(recipe, counted), recipe, batches), tally)


def _processed(recipe: Recipe, frame: DataFrame) -> DataFrame:
    for processor in recipe.processors:
        frame = processor.apply(frame)
    return frame


def _read_and_stage(direct: DirectRead, stage: StageTask, task: int) -> Any:
    return stage(direct.rows(task))


def _without_expressions(recipe: Recipe, batches: Sequence[Batch], direct: DirectRead) -> StageTask | None:
    """How to stage the rows as they were read; None if a sink wants an expression over them."""
    wanted = _wanted(recipe, _data_fields(direct.schema))
    if any(expression is not None for columns in wanted.values() for expression in columns.values()):
        return None
    return _stage_task(recipe, batches, {name: {own: own for own in columns} for name, columns in wanted.items()})


def _staged(frame: DataFrame, recipe: Recipe, batches: Sequence[Batch]) -> DataFrame:
    """The frame with staging as its last step. Sinks share columns; each expression gets a name of its own."""
    from pyspark.sql import functions as sql

    wanted = _wanted(recipe, _data_fields(frame.schema))
    carried: dict[str, Column] = {name: sql.col(name) for name in SYSTEM_COLUMNS}
    names: dict[str, dict[str, str]] = {}
    for index, (sink, columns) in enumerate(wanted.items()):
        names[sink] = {}
        for own, expression in columns.items():
            name = own if expression is None else f"_{index}_{own}"
            names[sink][own] = name
            carried.setdefault(name, sql.col(_quoted(own)) if expression is None else expression.alias(name))
    stage = _stage_task(recipe, batches, names)
    return frame.select(*carried.values()).mapInArrow(stage, REPORT_SCHEMA)


def _stage_task(recipe: Recipe, batches: Sequence[Batch], names: Mapping[str, Mapping[str, str]]) -> StageTask:
    sinks = {name: SinkTask(sink.stager(), names[name]) for name, sink in recipe.sinks.items()}
    return StageTask([staged_batch(batch) for batch in batches], sinks)


def _wanted(recipe: Recipe, fields: StructType) -> dict[str, Mapping[str, Any]]:
    return {name: sink.stager().columns(fields) for name, sink in recipe.sinks.items()}


def _data_fields(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    missing = [name for name in SYSTEM_COLUMNS if name not in schema.names]
    if missing:
        raise Refused(f"the columns {', '.join(missing)} are missing; a processor must keep the system columns")
    own = [one for one in schema.fields if one.name not in SYSTEM_COLUMNS]
    if len({one.name for one in own}) < len(own):
        raise Refused("two columns have the same name; rename one of them")
    return StructType(own)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
