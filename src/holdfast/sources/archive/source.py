"""The source `archive` on the node: topic partitions of a root that holdfast wrote, commit by commit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.buckets.bucket import Bucket
from holdfast.errors import BatchError, Refused
from holdfast.flow.batch import Batch, Cut, Done, Limits, Name, Plan
from holdfast.flow.format import Format
from holdfast.flow.kafka_columns import OFFSET, PARTITION, TOPIC
from holdfast.flow.source import OffsetPositions, RereadsRecords, Source
from holdfast.flow.upload_policy import UploadPolicy
from holdfast.leases.lease import Lease, Partition
from holdfast.sources.archive.catalog import Commit, commits, partitions

if TYPE_CHECKING:
    from holdfast.sources.archive.reading import ArchivedBatch, ArchiveRead


class ChosenFormats(Protocol):
    """The format of each topic's files."""

    def of(self, stream: str) -> Format: ...


class ArchiveSource(Source, OffsetPositions, RereadsRecords):
    """Files that a pipeline from Kafka has published, as the records that they were made from.

    `start` and `end` bound the offsets of every topic partition; by default all of them.
    """

    def __init__(
        self,
        bucket: Bucket,
        formats: ChosenFormats,
        *,
        topics: Sequence[str] = (),
        start: int = 0,
        end: int | None = None,
        policy: Callable[[str], UploadPolicy] | None = None,
    ) -> None:
        """`policy` returns how large a batch of a topic may be, as for the Kafka source that this source replaces."""
        self._bucket = bucket
        self._formats = formats
        self._topics = frozenset(topics)
        self._start = start
        self._end = end
        self._policy = policy or (lambda _topic: UploadPolicy(sys.maxsize))
        self._catalogs: dict[Name, list[Commit]] = {}

    def check(self, needed: frozenset[str]) -> None:
        """Raise `Refused` if the archive's formats do not keep a column that is needed."""
        for name in self._names():
            chosen = self._formats.of(name.stream)
            missing = needed - chosen.keeps - {TOPIC, PARTITION}
            if OFFSET in missing and all(file.is_dense for commit in self._catalog(name) for file in commit.files):
                missing -= {OFFSET}
            if missing:
                raise Refused(
                    f"the archive of topic {name.stream} is {chosen.extension}, which does not keep "
                    f"{', '.join(sorted(missing))}; back up in the format `raw` to keep everything"
                )

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:  # noqa: ARG002 - nothing to remember
        for name in self._names():
            catalog = self._catalog(name)
            if catalog:
                yield self._partition(name, catalog)

    def _partition(self, name: Name, catalog: Sequence[Commit]) -> Partition:
        start = max(self._start, catalog[0].start)
        end = catalog[-1].end if self._end is None else min(self._end, catalog[-1].end)
        return Partition(
            key=f"{name.stream}|{name.label}",
            group=name.stream,
            spec={"topic": name.stream, "partition": int(name.label), "start": start, "end": max(start, end)},
            estimated_count=sum(file.rows for commit in catalog for file in commit.files),
            index=int(name.label),
        )

    def name(self, lease: Lease) -> Name:
        return Name(lease.spec["topic"], str(lease.spec["partition"]))

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        return [self._next(lease, limits) for lease in leases]

    def _next(self, lease: Lease, limits: Limits) -> Plan:
        position, end = lease.progress.position, lease.spec["end"]
        start = lease.spec["start"] if position is None else position["offset"]
        if start >= end:
            return Done()
        try:
            chosen = _within(self._catalog(self.name(lease)), start, end, limits.max_bytes)
        except BatchError as wrong:
            return wrong
        policy = self._policy(lease.spec["topic"])
        until = min(end, chosen[-1].end) if chosen else end
        most_records = [most for most in (policy.max_records, limits.max_records) if most is not None]
        until = min([until, *(start + most for most in most_records)])
        size = sum(commit.size for commit in chosen)
        most = None if policy.max_bytes == sys.maxsize else policy.max_bytes
        return Cut(self.position(start), self.position(until), last=until >= end, size=size, max_bytes=most)

    def read(
        self,
        spark: Any,  # noqa: ARG002 - Spark only runs it
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002 - files are read whole
    ) -> ArchiveRead:
        from pyspark.sql.pandas.types import from_arrow_schema

        from holdfast.sources.archive.reading import SCHEMA, ArchiveRead

        return ArchiveRead(self._bucket, [self._batch(batch) for batch in batches], from_arrow_schema(SCHEMA))

    def record_reader(self, rows: ArchiveRead) -> ArchiveRead:
        return rows

    def _batch(self, batch: Batch) -> ArchivedBatch:
        from holdfast.sources.archive.reading import ArchivedBatch

        name, start, end = self.name(batch.lease), batch.cut.start["offset"], batch.cut.end["offset"]
        chosen = [commit.files for commit in self._catalog(name) if commit.start < end and commit.end > start]
        return ArchivedBatch(
            batch.id, name.stream, int(name.label), start, end, tuple(chosen), self._formats.of(name.stream)
        )

    def _names(self) -> list[Name]:
        names = [name for name in partitions(self._bucket) if not self._topics or name.stream in self._topics]
        redriven = next((name for name in names if not name.label.isdigit()), None)
        if redriven is not None:
            raise Refused(
                f"the archive has files of {redriven.stream} {redriven.label}, which is not a Kafka partition: they "
                "hold redriven dead letters, and cannot be read in the order of offsets"
            )
        return names

    def _catalog(self, name: Name) -> list[Commit]:
        """All commits of a topic partition, read once: what comes later is not part of this run."""
        if name not in self._catalogs:
            self._catalogs[name] = commits(self._bucket, name)
        return self._catalogs[name]


def _within(catalog: Sequence[Commit], start: int, end: int, max_bytes: int) -> list[Commit]:
    """Return commits from `start` on, as many as fit; at least one with records, if there is any."""
    chosen: list[Commit] = []
    size = 0
    for commit in catalog:
        if commit.end <= start or commit.start >= end:
            continue
        if size and size + commit.size > max_bytes:
            break
        chosen.append(commit)
        size += commit.size
    return chosen
