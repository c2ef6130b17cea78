"""Shared by the sources of a folder, of buckets and of prefixes: scans, reading, and dead letters."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError
from holdfast.flow.batch import Batch, Name
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.source import CountsScans, CutsShort, Rebuilds, RereadsRecords, SalvagesDamage, Source
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.listing import Candidate, ListingCache, by_time
from holdfast.sources.objects.planner import ObjectPlanner, cut_short, damaged
from holdfast.sources.objects.splits import Split

if TYPE_CHECKING:
    from holdfast.sources.objects.record_reader import RecordRebuilder
    from holdfast.sources.objects.task_rows import ObjectRows

SCANS = "scans"
"""In the state of discovery: how many scans there have been."""
LIGHT_BYTES = 1 << 20
"""Total bytes of two rounds below which reading the objects takes negligible time compared with the rounds themselves.
"""


class ObjectsSource(Source, CountsScans, CutsShort, SalvagesDamage, Rebuilds, RereadsRecords, ReportsEvents):
    """A source of objects. Each subclass finds, names and plans its own kind of partition.

    Records are counted while they are read: a batch that reaches `max_records` of the limits is cut short there.
    """

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config
        self._planner = ObjectPlanner(config)
        self._listing_cache = ListingCache()
        self.rediscover_after = config.rescans_after
        self.rediscovery_window = config.rediscovery_window

    @abstractmethod
    def _splits(self, batch: Batch) -> list[Split]:
        """The byte ranges of objects that tasks read for this batch."""

    # --- scans -------------------------------------------------------------------------------------------------

    @property
    def may_end(self) -> bool:
        return self._config.scans is not None

    def next_scan_after(self, state: dict[str, Any]) -> float | None:
        scans = self._config.scans
        return None if scans is not None and state.get(SCANS, 0) >= scans else self.rediscover_after

    def _scan(self, state: dict[str, Any], found: Iterator[Candidate | None]) -> Iterator[Partition | None]:
        """The partitions of one scan, in the order of the settings, without most of those of this process's last scan.

        A partition that is yielded a second time is not read a second time.
        """
        state[SCANS] = state.get(SCANS, 0) + 1
        if self.rediscover_after is not None:
            self._listing_cache.begin(state)
            found = self._listing_cache.without(found)
        if self._config.order != "name":
            found = by_time(found, newest=self._config.order == "newest")
        for candidate in found:
            yield None if candidate is None else candidate.partition()

    # --- reading -----------------------------------------------------------------------------------------------

    def read(
        self,
        spark: Any,
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002 - records are read whole
    ) -> ObjectRows:
        return self._planner.rows(spark, [self.splits(batch) for batch in batches])

    def splits(self, batch: Batch) -> list[Split]:
        """The byte ranges of objects that tasks read for this batch, each with what to do about damage."""
        return [self._planner.salvaged(batch, split) for split in self._splits(batch)]

    def cut_short(self, batch: Batch, item: int) -> Json:
        return cut_short(batch.cut.start, item)

    def damaged(self, end: Json, reason: str) -> Json:
        return damaged(end, reason)

    def rebuilder(self) -> RecordRebuilder:
        from holdfast.sources.objects.record_reader import RecordRebuilder

        return RecordRebuilder(self._planner, self._config)

    def record_reader(self, rows: ObjectRows) -> ObjectRows:
        return rows


def is_light(leases: Sequence[Lease]) -> bool:
    """Like `WeighsPartitions.is_light`, by the sizes in the specs."""
    return sum(int(lease.spec.get("size", LIGHT_BYTES)) for lease in leases) < LIGHT_BYTES


def name_by_key(lease: Lease) -> Name:
    """A name for a partition that was found with other settings, whose spec this source cannot read."""
    return Name("objects", hashlib.sha256(lease.key.encode()).hexdigest()[:32])


def found_by_other_settings(lease: Lease) -> BatchError:
    return BatchError(
        f"{lease.key} was found with other settings of folder, buckets or partition_by; give this pipeline another "
        "name, or restore those settings"
    )
