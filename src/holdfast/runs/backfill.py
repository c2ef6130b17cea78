"""Backfill: puts records from the files of a backup pipeline through another pipeline's processors again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

from holdfast.assemble import Emit, StoredPipeline
from holdfast.buckets.root import bucket_of
from holdfast.errors import UsageError
from holdfast.flow.batch import Name
from holdfast.flow.kafka_columns import KAFKA_COLUMNS, OFFSET
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor
from holdfast.flow.run import Run
from holdfast.flow.run_driver import RunDriver
from holdfast.flow.sink import Sink
from holdfast.flow.source import Source
from holdfast.formats.choice import chosen_formats
from holdfast.leases.lease import Json, Partition
from holdfast.registry import Registry
from holdfast.runs.execution import NewRun, RunPipeline, RunPreview, begin
from holdfast.runs.next_generation import FILES, ChooseRoots, expected_roots, registered_roots
from holdfast.runs.selection import Between, OnlyNames, TimeSpan, parse_between
from holdfast.sources.archive.source import ArchiveSource

KIND = "backfill"


@dataclass(frozen=True)
class Backfill:
    """Which records of a backup pipeline to write again."""

    backup: str
    between: str = ".."
    """Offsets or times, in the form that `parse_between` accepts."""
    topics: Sequence[str] = ()
    names: str | None = None


def backfill(
    pipeline: StoredPipeline, request: Backfill, emit: Emit, *, root: str | None, by: str, detached: bool = False
) -> Run:
    """Write the records again with this file's parsing. Blocks until the run has ended, unless it is detached.

    Raises `UsageError`, and `Refused` when the backup's format does not keep what the parsing needs.
    """
    configuration = _plan(pipeline, request, root, partial(registered_roots, by=by)).configuration
    return begin(run_pipeline(pipeline, configuration), NewRun(configuration, by, detached), emit)


def look(pipeline: StoredPipeline, request: Backfill, *, root: str | None = None) -> RunPreview:
    """Return what a backfill would do now. Changes nothing. Raises like `backfill`."""
    return _plan(pipeline, request, root, expected_roots)


def _plan(pipeline: StoredPipeline, request: Backfill, root: str | None, choose: ChooseRoots) -> RunPreview:
    partitions = [found for found in _checked(pipeline, request).source.discover({}) if found is not None]
    if not any(partition.spec["end"] > partition.spec["start"] for partition in partitions):
        raise UsageError(f"the files of pipeline {request.backup!r} hold no such records")
    names = [Name(partition.group, str(partition.index)) for partition in partitions]
    number, roots = choose(pipeline, root, names)
    chosen = asdict(request) | {"pipeline": pipeline.name, "topics": list(request.topics)}
    configuration = {"kind": KIND, **chosen, "generation": number, "roots": roots}
    records = sum(partition.spec["end"] - partition.spec["start"] for partition in partitions)
    return RunPreview(configuration, len(partitions), records)


def run_pipeline(pipeline: StoredPipeline, configuration: Mapping[str, Json]) -> RunPipeline:
    """Return the pipeline of a backfill from the configuration in the run's row."""
    changed = pipeline.with_roots(configuration["roots"])
    request = Backfill(*(configuration[field] for field in ("backup", "between", "topics", "names")))
    built = _checked(changed, request)
    return RunPipeline(changed, built, configuration["generation"], BackfillDriver(built.source))


class BackfillDriver(RunDriver):
    """Lists the partitions of a backfill: those of the backup's files."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def partitions(self, run: Run) -> list[Partition]:  # noqa: ARG002 - the source knows what was chosen
        return [found for found in self._source.discover({}) if found is not None]


def _checked(pipeline: StoredPipeline, request: Backfill) -> Pipeline:
    """Return the pipeline with the backup as its source, if the backup has the columns that it needs."""
    if request.names and not pipeline.configured.processors:
        raise UsageError(f"--partition-names needs a parser that sets names; pipeline {pipeline.name!r} has none")
    between = parse_between(request.between)
    source = archive_of(pipeline, request, between)
    built = pipeline.build()
    built.source.close()
    processors = _with_selection(request, between, built.processors)
    source.check(needed_columns(processors, list(built.sinks.values()), routed=bool(built.routes.by_sink)))
    return replace(built, source=source, processors=processors)


def archive_of(pipeline: StoredPipeline, request: Backfill, between: Between) -> ArchiveSource:
    """Return the backup pipeline's files as a source. Raises `UsageError` if it writes none."""
    pipelines = pipeline.settings.pipelines
    if request.backup not in pipelines:
        raise UsageError(f"there is no pipeline {request.backup!r} in this file; it has {', '.join(pipelines)}")
    use = pipeline.configured.source
    policy = use.config.policy_of if use.name == "kafka" else None
    for named in pipelines[request.backup].sinks:
        if named.use.name == FILES:
            config = named.use.config
            formats = chosen_formats(config.format, config.topics, Registry.installed())
            bucket = bucket_of(config.root, config.s3)
            start, end = between.offsets
            return ArchiveSource(bucket, formats, topics=request.topics, start=start, end=end, policy=policy)
    raise UsageError(f"pipeline {request.backup!r} has no sink `files` to backfill from")


def needed_columns(processors: Sequence[Processor], sinks: Sequence[Sink], *, routed: bool = False) -> frozenset[str]:
    """Return Kafka's columns that the processors, sinks and formats need; with routes, all of them."""
    from pyspark.sql import types as kinds

    # A DDL string would need an active session; a format looks at names, and at the type of `value`.
    everything = frozenset(KAFKA_COLUMNS)
    fields = kinds.StructType([kinds.StructField(name, kinds.BinaryType()) for name in sorted(everything)])
    chosen = frozenset(name for sink in sinks for name in sink.stager().columns(fields))
    needed = None if routed else chosen
    for processor in reversed(processors):
        step = processor.in_task()
        needed = None if step is None else step.inputs(needed)
    return (everything if needed is None else needed & everything) | {OFFSET}


def _with_selection(request: Backfill, between: Between, processors: Sequence[Processor]) -> tuple[Processor, ...]:
    before = (TimeSpan(between),) if between.by_time else ()
    behind = (OnlyNames(request.names),) if request.names else ()
    return (*before, *processors, *behind)
