"""Rewind: reads part of a Kafka partition again and writes it as the next generation, into a separate root."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.assemble import Emit, StoredPipeline
from holdfast.errors import PartitionNotFound, UsageError
from holdfast.flow.batch import Name
from holdfast.flow.run import Run
from holdfast.flow.run_driver import RunDriver
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.runs.execution import NewRun, RunPipeline, RunPreview, begin
from holdfast.runs.next_generation import ChooseRoots, expected_roots, registered_roots
from holdfast.runs.selection import parse_time

KIND = "rewind"


@dataclass(frozen=True)
class Rewind:
    """A Kafka partition to read again, from `to` up to the position that is committed now."""

    topic: str
    partition: int
    to: str
    """An offset or a time."""

    @classmethod
    def of_key(cls, key: str, to: str) -> Rewind:
        """Return the rewind for the key of a partition. Raises `UsageError` if that is not a topic and a number."""
        topic, _, partition = key.rpartition("|")
        if not topic or not partition.isdecimal():
            raise UsageError(f"{key!r} is not a partition of Kafka, such as orders|3; there is nothing to rewind")
        return cls(topic, int(partition), to)

    @property
    def key(self) -> str:
        return f"{self.topic}|{self.partition}"

    @property
    def name(self) -> Name:
        return Name(self.topic, str(self.partition))


def rewind(
    pipeline: StoredPipeline, request: Rewind, emit: Emit, *, root: str | None, by: str, detached: bool = False
) -> Run:
    """Write the records again with this file's parsing. Blocks until the run has ended, unless it is detached.

    Raises `UsageError`.
    """
    configuration = _configuration(pipeline, request, root, partial(registered_roots, by=by))
    return begin(run_pipeline(pipeline, configuration), NewRun(configuration, by, detached), emit)


def look(pipeline: StoredPipeline, request: Rewind, *, root: str | None = None) -> RunPreview:
    """Return what a rewind would do now. Changes nothing. Raises `UsageError` like `rewind`."""
    configuration = _configuration(pipeline, request, root, expected_roots)
    return RunPreview(configuration, 1, configuration["to"] - configuration["from"])


def _configuration(pipeline: StoredPipeline, request: Rewind, root: str | None, choose: ChooseRoots) -> dict[str, Json]:
    row = partition_row(pipeline, request)
    first, committed = first_offset(pipeline, request), row.progress.position["offset"]
    if first >= committed:
        raise UsageError(
            f"{request.key} is committed up to {committed}: there is nothing to read again from {first} on"
        )
    number, roots = choose(pipeline, root, [request.name])
    return {
        "kind": KIND,
        "key": request.key,
        "from": first,
        "to": committed,
        "incarnation": row.commit.incarnation,
        "generation": number,
        "roots": roots,
    }


def run_pipeline(pipeline: StoredPipeline, configuration: Mapping[str, Json]) -> RunPipeline:
    """Return the pipeline of a rewind from the configuration in the run's row."""
    changed = pipeline.with_roots(configuration["roots"])
    return RunPipeline(changed, changed.build(), configuration["generation"], RewindDriver())


class RewindDriver(RunDriver):
    """Lists the one partition of a rewind, as its configuration names it."""

    def partitions(self, run: Run) -> list[Partition]:
        configuration = run.configuration
        topic, _, partition = str(configuration["key"]).rpartition("|")
        first, end = configuration["from"], configuration["to"]
        return [
            Partition(
                key=configuration["key"],
                group=topic,
                spec={"topic": topic, "partition": int(partition), "start": first, "end": end},
                estimated_count=end - first,
                index=int(partition),
                incarnation=configuration["incarnation"],
            )
        ]


def partition_row(pipeline: StoredPipeline, request: Rewind) -> Lease:
    """Return the live row of the partition. Raises `UsageError` if it was never read."""
    if pipeline.configured.source.name != "kafka":
        raise UsageError(f"pipeline {pipeline.name!r} does not read Kafka; there is nothing to rewind")
    try:
        row = pipeline.operator().show(request.key)
    except PartitionNotFound:
        raise UsageError(f"pipeline {pipeline.name!r} has no partition {request.key}") from None
    if row.progress.position is None:
        raise UsageError(f"partition {request.key} was not read yet")
    return row


def first_offset(pipeline: StoredPipeline, request: Rewind) -> int:
    """Return the offset that `request.to` names. Raises `UsageError` if Kafka no longer has it."""
    from holdfast.sources.kafka.cluster import TopicPartition

    topic_partition = TopicPartition(request.topic, request.partition)
    with closing(_cluster(pipeline)) as cluster:
        if request.to.isdigit():
            wanted = int(request.to)
        else:
            milliseconds = int(parse_time(request.to).timestamp() * 1000)
            wanted = cluster.at_time([topic_partition], milliseconds)[topic_partition]
        earliest = cluster.starts([topic_partition]).get(topic_partition)
    if earliest is None or wanted < earliest:
        raise UsageError(
            f"Kafka no longer has offset {wanted} of {request.key}, the log begins at {earliest}; "
            "use a backfill from a backup"
        )
    return wanted


def _cluster(pipeline: StoredPipeline) -> Any:
    from holdfast.config.kafka_client import client_properties
    from holdfast.sources.kafka.cluster import Cluster

    config = pipeline.configured.source.config
    return Cluster(client_properties(config), config.isolation)
