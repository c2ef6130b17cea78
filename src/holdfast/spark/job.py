"""One Spark job: read, process and stage some batches of one pipeline, and tell what became of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, HoldfastError, Refused, Unavailable
from holdfast.flow.batch import Batch
from holdfast.flow.engine import Failed, Report, Staged
from holdfast.flow.processor import Processor, TaskStep
from holdfast.flow.routes import Routes
from holdfast.flow.sink import Sink
from holdfast.flow.source import (
    BATCH_COLUMN,
    ITEM_COLUMN,
    OPTIONAL_COLUMNS,
    SIZE_COLUMN,
    SYSTEM_COLUMNS,
    DirectRead,
    Source,
)
from holdfast.flow.staging import staged_batch
from holdfast.leases.lease import Counts, Json
from holdfast.spark.arrow import frame_of, run_tasks
from holdfast.spark.failures import readable, session_is_gone
from holdfast.spark.gate import GateBefore
from holdfast.spark.records import RECORD_COLUMN, quoted, with_record
from holdfast.spark.routing import routed
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
    routes: Routes = field(default_factory=Routes)

    @property
    def has_routes(self) -> bool:
        """Whether conditions over the last processor's rows decide where these go."""
        return bool(self.routes.by_sink)


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
    try:
        doubts = recipe.source.doubts(batches)
    except Unavailable as away:
        return [Failed(batch.id, str(away), unavailable=True) for batch in batches]
    return [
        Failed(batch.id, doubts[batch.id]) if batch.id in doubts else _report(recipe, batch, told.get(batch.id, []))
        for batch in batches
    ]


@dataclass(frozen=True)
class _Job:
    """A lazy job, and what it has to be compared with when it is done."""

    frame: DataFrame | None
    """None if there is nothing to read."""
    tally: FaultTally | None = None
    gate: GateBefore | None = None

    def run(self) -> dict[str, list[BatchReport]]:
        """Reports of the tasks, by batch. Raises `BatchError` when faults were lost on the way."""
        told = defaultdict(list)
        for row in self.frame.collect() if self.frame is not None else ():
            told[row.batch].append(BatchReport.decode(row.report))
        if self.tally is not None:
            self.tally.compare(sum(part.faults for parts in told.values() for part in parts))
        for batch_id, passed in self.gate.passed().items() if self.gate is not None else ():
            told[batch_id].append(BatchReport(size=passed.size, end=passed.end))
        return told


def _report(recipe: Recipe, batch: Batch, told: Sequence[BatchReport]) -> Report:
    for part in told:
        if part.error is not None:
            return Failed(batch.id, part.error, part.unavailable)
    rows, dead = sum(part.rows for part in told), sum(part.dead for part in told)
    counts = Counts(rows + dead + sum(part.untaken for part in told), rows, 0, dead)
    try:
        receipts = {
            name: sink.receipt([part.parts[name] for part in told if name in part.parts])
            | _share(recipe, name, told, counts)
            for name, sink in recipe.sinks.items()
        }
    except BatchError as wrong:
        return Failed(batch.id, str(wrong))
    size = sum(part.size for part in told)
    cut_at = next((part.end for part in told if part.end is not None), None)
    if cut_at is not None:
        return Staged(batch.id, recipe.source.position(cut_at), last=False, receipts=receipts, counts=counts, size=size)
    damage = next((part.damage for part in told if part.damage is not None), None)
    if damage is not None:
        end = recipe.source.damaged(batch.cut.end, damage)
        return Staged(batch.id, end, last=False, receipts=receipts, counts=counts, size=size)
    return Staged(batch.id, batch.cut.end, batch.cut.last, receipts, counts, size=size)


def _share(recipe: Recipe, sink: str, told: Sequence[BatchReport], counts: Counts) -> Json:
    """How many of the batch's rows a sink with routes was given: counted apart from what it says it has staged."""
    if sink not in recipe.routes.by_sink:
        return {}
    return {"routed": {"rows": sum(part.given.get(sink, 0) for part in told), "of": counts.processed}}


def _planned(spark: SparkSession, recipe: Recipe, batches: Sequence[Batch]) -> _Job:
    direct = recipe.source.direct(spark, batches)
    if direct is None:
        return _read_by_frame(spark, recipe, batches)
    if not direct.tasks:
        return _Job(None)
    before, steps = _parted(recipe)
    stage = None if before or recipe.has_routes else _without_expressions(recipe, batches, direct, steps)
    if stage is not None:
        return _Job(run_tasks(spark, direct.tasks, partial(_read_and_stage, direct, stage), REPORT_SCHEMA))
    tally = FaultTally(spark)
    frame = _processed(before, frame_of(spark, direct, tally))
    return _Job(_staged(frame, recipe, batches, steps), tally)


def _read_by_frame(spark: SparkSession, recipe: Recipe, batches: Sequence[Batch]) -> _Job:
    from pyspark.sql.types import StructType

    frame = recipe.source.read(spark, batches)
    before, steps = _parted(recipe)
    if not before:
        narrow = frame if recipe.has_routes else _narrowed(spark, recipe, batches, frame, steps)
        return _Job(_staged(narrow, recipe, batches, steps))
    tally, gate = FaultTally(spark), GateBefore(spark, [staged_batch(batch) for batch in batches])
    kept = StructType([one for one in frame.schema.fields if one.name != SIZE_COLUMN])
    counted = frame.mapInArrow(lambda portions: tally.counted_here(gate.through(portions)), kept)
    return _Job(_staged(_processed(before, counted), recipe, batches, steps), tally, gate)


def _narrowed(
    spark: SparkSession, recipe: Recipe, batches: Sequence[Batch], frame: DataFrame, steps: Sequence[TaskStep]
) -> DataFrame:
    """The same frame without columns that nobody wants, if the source can leave them out."""
    wanted = _inputs(_wanted(recipe, _data_fields(frame.schema)), steps)
    narrow = None if wanted is None else recipe.source.narrowed(spark, batches, wanted)
    return frame if narrow is None else narrow


def _parted(recipe: Recipe) -> tuple[list[Processor], list[TaskStep]]:
    """Processors of the frame, and the last ones that run inside the staging task; none do before routes."""
    before, steps = list(recipe.processors), list[TaskStep]()
    while before and not recipe.has_routes and (step := before[-1].in_task()) is not None:
        steps.insert(0, step)
        before.pop()
    return before, steps


def _processed(processors: Sequence[Processor], frame: DataFrame) -> DataFrame:
    may_fault = any(processor.may_fault for processor in processors)
    frame = with_record(frame) if may_fault else frame
    for processor in processors:
        frame = processor.apply(frame)
    return frame.drop(RECORD_COLUMN) if may_fault else frame


def _read_and_stage(direct: DirectRead, stage: StageTask, task: int) -> Any:
    return stage(direct.rows(task))


def _without_expressions(
    recipe: Recipe, batches: Sequence[Batch], direct: DirectRead, steps: Sequence[TaskStep]
) -> StageTask | None:
    """How to stage the rows as they were read; None if a sink wants an expression over them."""
    if steps:
        return _stage_task(recipe, batches, dict.fromkeys(recipe.sinks), steps)
    fields, names = _data_fields(direct.schema), dict[str, Mapping[str, str] | None]()
    for name, sink in recipe.sinks.items():
        columns = sink.stager().plain_columns(fields)
        if columns is None:
            return None
        names[name] = {own: own for own in columns}
    return _stage_task(recipe, batches, names)


def _staged(frame: DataFrame, recipe: Recipe, batches: Sequence[Batch], steps: Sequence[TaskStep] = ()) -> DataFrame:
    """The frame with staging as its last step. Sinks share columns; each expression gets a name of its own."""
    from pyspark.sql import functions as sql

    fields = _data_fields(frame.schema)
    wanted = _wanted(recipe, fields)
    ours = [name for name in (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS) if name in frame.columns]
    routes, taken = routed(frame, recipe.routes)
    carried: dict[str, Column] = {name: sql.col(name) for name in ours} | routes
    names: dict[str, dict[str, str] | None]
    if steps:
        names = dict.fromkeys(recipe.sinks)
        needed = _inputs(wanted, steps)
        for name in fields.names:
            if needed is None or name in needed:
                carried[name] = sql.col(quoted(name))
    else:
        names = {sink: _carry(carried, index, columns) for index, (sink, columns) in enumerate(wanted.items())}
    task = _stage_task(recipe, batches, names, steps, taken)
    return frame.select(*carried.values()).mapInArrow(task, REPORT_SCHEMA)


def _carry(carried: dict[str, Column], index: int, columns: Mapping[str, Any]) -> dict[str, str]:
    """Add what one sink wants to the columns that are carried; answers the names under which it finds them."""
    from pyspark.sql import functions as sql

    names = {}
    for own, expression in columns.items():
        names[own] = own if expression is None else f"_{index}_{own}"
        carried.setdefault(names[own], sql.col(quoted(own)) if expression is None else expression.alias(names[own]))
    return names


def _inputs(wanted: Mapping[str, Mapping[str, Any]], steps: Sequence[TaskStep]) -> frozenset[str] | None:
    """The columns that must come to the first step; None for all. A sink's expression may need any."""
    as_they_are = all(made is None for columns in wanted.values() for made in columns.values())
    needed = frozenset(name for columns in wanted.values() for name in columns) if as_they_are else None
    for step in reversed(steps):
        needed = step.inputs(needed)
    return needed


def _stage_task(
    recipe: Recipe,
    batches: Sequence[Batch],
    names: Mapping[str, Mapping[str, str] | None],
    steps: Sequence[TaskStep] = (),
    taken: Mapping[str, str] = {},
) -> StageTask:
    sinks = {
        name: SinkTask(sink.stager_for(batches), names[name], taken.get(name)) for name, sink in recipe.sinks.items()
    }
    changed = any(processor.changes_rows for processor in recipe.processors)
    return StageTask([staged_batch(batch, changed=changed) for batch in batches], sinks, steps)


def _wanted(recipe: Recipe, fields: StructType) -> dict[str, Mapping[str, Any]]:
    return {name: sink.stager().columns(fields) for name, sink in recipe.sinks.items()}


def _data_fields(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    missing = [name for name in (BATCH_COLUMN, ITEM_COLUMN) if name not in schema.names]
    if missing:
        raise Refused(f"the columns {', '.join(missing)} are missing; a processor must keep the system columns")
    own = [one for one in schema.fields if one.name not in (*SYSTEM_COLUMNS, *OPTIONAL_COLUMNS)]
    if len({one.name for one in own}) < len(own):
        raise Refused("two columns have the same name; rename one of them")
    return StructType(own)
