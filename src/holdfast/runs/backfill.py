"""Backfill: the records of a backup pipeline's files once more through another pipeline's parsers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from holdfast import assemble
from holdfast.assemble import Emit
from holdfast.buckets.root import bucket_of
from holdfast.config.models import Settings
from holdfast.errors import UsageError
from holdfast.flow.batch import Name
from holdfast.flow.kafka_columns import KAFKA_COLUMNS, OFFSET
from holdfast.flow.pipeline import Pipeline
from holdfast.flow.processor import Processor
from holdfast.flow.run import Run
from holdfast.flow.sink import Sink
from holdfast.formats.choice import chosen_formats
from holdfast.leases.lease import Json
from holdfast.leases.store import Store
from holdfast.registry import Registry
from holdfast.runs.creation import FILES, check_roots_are_free, coming_generation, new_roots
from holdfast.runs.execution import Job, NewRun, begin
from holdfast.runs.selection import Between, OnlyNames, TimeSpan, parse_between
from holdfast.sources.archive.source import ArchiveSource

KIND = "backfill"


@dataclass(frozen=True)
class Backfill:
    """What to write again, and from where."""

    pipeline: str
    backup: str
    between: str = ".."
    """Offsets or times, as `parse_between` takes them."""
    topics: Sequence[str] = ()
    names: str | None = None


def backfill(settings: Settings, store: Store, asked: Backfill, emit: Emit, *, root: str | None, by: str) -> Run:
    """Write the records again, by this file's parsing. Blocks until the run has ended.

    Raises `UsageError`, and `Refused` when the backup's format does not keep what the parsing needs.
    """
    partitions = [one for one in _checked(settings, asked).source.discover({}) if one is not None]
    if not any(one.spec["end"] > one.spec["start"] for one in partitions):
        raise UsageError(f"the files of pipeline {asked.backup!r} hold nothing of that")
    number = coming_generation(settings, store, asked.pipeline, by)
    roots = new_roots(settings, asked.pipeline, root, number)
    names = [Name(one.group, str(one.index)) for one in partitions]
    check_roots_are_free(assemble.with_roots(settings, asked.pipeline, roots), asked.pipeline, names)
    told = {"kind": KIND, **asdict(asked), "topics": list(asked.topics), "generation": number, "roots": roots}
    return begin(store, job_of(settings, asked.pipeline, told), NewRun(partitions, told, by), emit)


def job_of(settings: Settings, pipeline: str, told: Mapping[str, Json]) -> Job:
    """The job of a run of this kind, as its row tells of it."""
    changed = assemble.with_roots(settings, pipeline, told["roots"])
    asked = Backfill(pipeline, told["backup"], told["between"], told["topics"], told["names"])
    return Job(changed, pipeline, _checked(changed, asked), told["generation"])


def _checked(settings: Settings, asked: Backfill) -> Pipeline:
    """The parts of the pipeline with the backup as their source, if that can give what they need."""
    if asked.names and not settings.pipelines[asked.pipeline].processors:
        raise UsageError(f"--partition-names needs a parser that gives names; pipeline {asked.pipeline!r} has none")
    registry = Registry.installed()
    between = parse_between(asked.between)
    source = archive_of(settings, registry, asked, between)
    built = assemble.build_pipeline(settings.pipelines[asked.pipeline], registry)
    built.source.close()
    processors = _choosing(asked, between, built.processors)
    source.check(needed_columns(processors, list(built.sinks.values()), routed=bool(built.routes.by_sink)))
    return replace(built, source=source, processors=processors)


def archive_of(settings: Settings, registry: Registry, asked: Backfill, between: Between) -> ArchiveSource:
    """The backup pipeline's files as a source. Raises `UsageError` if it writes none."""
    use = settings.pipelines[asked.pipeline].source
    policy = use.config.policy_of if use.name == "kafka" else None
    for named in settings.pipelines[asked.backup].sinks:
        if named.use.name == FILES:
            config = named.use.config
            formats = chosen_formats(config.format, config.topics, registry)
            bucket = bucket_of(config.root, config.s3)
            start, end = between.offsets
            return ArchiveSource(bucket, formats, topics=asked.topics, start=start, end=end, policy=policy)
    raise UsageError(f"pipeline {asked.backup!r} has no sink `files` to backfill from")


def needed_columns(processors: Sequence[Processor], sinks: Sequence[Sink], *, routed: bool = False) -> frozenset[str]:
    """Kafka's columns that must be in the backup: for names, for the parser, for the formats. Routes may need any."""
    from pyspark.sql import types as kinds

    # Without an active session there is no way from a DDL string; a format looks at names, and at the kind of `value`.
    everything = frozenset(KAFKA_COLUMNS)
    fields = kinds.StructType([kinds.StructField(name, kinds.BinaryType()) for name in sorted(everything)])
    chosen = frozenset(name for sink in sinks for name in sink.stager().columns(fields))
    needed = None if routed else chosen
    for processor in reversed(processors):
        step = processor.in_task()
        needed = None if step is None else step.inputs(needed)
    return (everything if needed is None else needed & everything) | {OFFSET}


def _choosing(asked: Backfill, between: Between, processors: Sequence[Processor]) -> tuple[Processor, ...]:
    before = (TimeSpan(between),) if between.by_time else ()
    behind = (OnlyNames(asked.names),) if asked.names else ()
    return (*before, *processors, *behind)
