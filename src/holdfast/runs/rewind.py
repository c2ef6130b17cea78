"""Rewind: read a part of a Kafka partition again and write it under the next generation, into a root of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from holdfast import assemble
from holdfast.config.models import Settings
from holdfast.errors import PartitionNotFound, UsageError
from holdfast.flow.batch import Name
from holdfast.flow.run import Run
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.leases.store import Store
from holdfast.registry import Registry
from holdfast.runs.creation import check_roots_are_free, coming_generation, new_roots
from holdfast.runs.execution import Job, NewRun, begin
from holdfast.runs.selection import parse_time

KIND = "rewind"


@dataclass(frozen=True)
class Rewind:
    """What to read again: from `to` up to what is committed now."""

    pipeline: str
    topic: str
    partition: int
    to: str
    """An offset, or a time."""

    @property
    def key(self) -> str:
        return f"{self.topic}|{self.partition}"

    @property
    def name(self) -> Name:
        return Name(self.topic, str(self.partition))


def rewind(settings: Settings, store: Store, asked: Rewind, emit: assemble.Emit, *, root: str | None, by: str) -> Run:
    """Write the records again, by this file's parsing. Blocks until the run has ended. Raises `UsageError`."""
    row = partition_row(settings, store, asked)
    first, committed = first_offset(settings, asked), row.progress.position["offset"]
    if first >= committed:
        raise UsageError(f"{asked.key} is committed up to {committed}: there is nothing to read again from {first} on")
    number = coming_generation(settings, store, asked.pipeline, by)
    roots = new_roots(settings, asked.pipeline, root, number)
    check_roots_are_free(assemble.with_roots(settings, asked.pipeline, roots), asked.pipeline, [asked.name])
    told = {"kind": KIND, "key": asked.key, "from": first, "to": committed, "generation": number, "roots": roots}
    new = NewRun([_partition(asked, row, first, committed)], told, by)
    return begin(store, job_of(settings, asked.pipeline, told), new, emit)


def job_of(settings: Settings, pipeline: str, told: Mapping[str, Json]) -> Job:
    """The job of a run of this kind, as its row tells of it."""
    changed = assemble.with_roots(settings, pipeline, told["roots"])
    parts = assemble.build_pipeline(changed.pipelines[pipeline], Registry.installed())
    return Job(changed, pipeline, parts, told["generation"])


def partition_row(settings: Settings, store: Store, asked: Rewind) -> Lease:
    """The live row of the partition. Raises `UsageError` if it was never read."""
    if settings.pipelines[asked.pipeline].source.name != "kafka":
        raise UsageError(f"pipeline {asked.pipeline!r} does not read Kafka; there is nothing to rewind")
    try:
        row = assemble.operator(settings, store, asked.pipeline).show(asked.key)
    except PartitionNotFound:
        raise UsageError(f"pipeline {asked.pipeline!r} knows no partition {asked.key}") from None
    if row.progress.position is None:
        raise UsageError(f"nothing of {asked.key} was read yet")
    return row


def first_offset(settings: Settings, asked: Rewind) -> int:
    """The offset that is meant. Raises `UsageError` if Kafka does not have it any more."""
    from holdfast.sources.kafka.cluster import TopicPartition

    place = TopicPartition(asked.topic, asked.partition)
    with closing(_cluster(settings, asked.pipeline)) as cluster:
        if asked.to.isdigit():
            wanted = int(asked.to)
        else:
            wanted = cluster.at_time([place], int(parse_time(asked.to).timestamp() * 1000))[place]
        there = cluster.starts([place]).get(place)
    if there is None or wanted < there:
        raise UsageError(
            f"Kafka has no offset {wanted} of {asked.key} any more, it begins at {there}; use a backfill from a backup"
        )
    return wanted


def _cluster(settings: Settings, pipeline: str) -> Any:
    from holdfast.sources.kafka.cluster import Cluster
    from holdfast.sources.kafka.properties import client_properties

    config = settings.pipelines[pipeline].source.config
    return Cluster(client_properties(config), config.isolation)


def _partition(asked: Rewind, row: Lease, first: int, end: int) -> Partition:
    return Partition(
        key=asked.key,
        group=asked.topic,
        spec={"topic": asked.topic, "partition": asked.partition, "start": first, "end": end},
        estimated_count=end - first,
        index=asked.partition,
        incarnation=row.commit.incarnation,
    )
