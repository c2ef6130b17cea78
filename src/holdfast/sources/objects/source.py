"""The source `objects` on the node: which objects there are, where the next batch of each ends, how they are read."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import BatchError, Unavailable
from holdfast.events import Event
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.source import (
    AfterPublish,
    CountsScans,
    CutsShort,
    Rebuilds,
    SalvagesDamage,
    Source,
    WeighsPartitions,
)
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.objects.config import ObjectsConfig
from holdfast.sources.objects.cutting import Cutting, damaged
from holdfast.sources.objects.finding_order import by_time
from holdfast.sources.objects.known import Known
from holdfast.sources.objects.pieces import Piece
from holdfast.sources.objects.site import Site

if TYPE_CHECKING:
    from holdfast.sources.objects.again import RecordsOfLetters
    from holdfast.sources.objects.reading import ObjectsRead

SCANS = "scans"
LIGHT = 1 << 20
"""Bytes of all objects of two rounds that are next to nothing beside what the rounds themselves cost."""


class ObjectsSource(Source, CountsScans, CutsShort, SalvagesDamage, Rebuilds, WeighsPartitions, ReportsEvents):
    """Objects of one folder or of buckets; each is a partition, or each prefix of a bucket is.

    Records are counted when they are read: a batch that has `max_records` of the limits is cut short there. One of a
    prefix is cut short where the next object begins.
    """

    def __init__(self, config: ObjectsConfig) -> None:
        self._config = config
        self._cutting = Cutting(config)
        self._site = _site(config)
        self._known = Known()
        self.rediscover_after = config.rescans_after
        self.found_again_within = config.found_again_within

    def open(self) -> None:
        self._site.open()

    @property
    def tidies(self) -> bool:
        """Whether objects are tagged or deleted when they are done."""
        return self._site.tidies

    def is_light(self, leases: Sequence[Lease]) -> bool:
        return sum(int(lease.spec.get("size", LIGHT)) for lease in leases) < LIGHT

    # --- on the node -------------------------------------------------------------------------------------------

    def discover(self, state: dict[str, Any]) -> Iterator[Partition | None]:
        """All objects of the scan, without most of those that this process has found before.

        An object that is yielded again is not read again.
        """
        self._site.admit(state)
        state[SCANS] = state.get(SCANS, 0) + 1
        found = self._site.find(time.time())
        if self.rediscover_after is not None:
            self._known.begin(state)
            found = self._known.without(found)
        if self._config.order != "name":
            found = by_time(found, newest=self._config.order == "newest")
        for one in found:
            yield None if one is None else one.partition()

    @property
    def may_end(self) -> bool:
        return self._config.scans is not None

    def next_scan_after(self, state: dict[str, Any]) -> float | None:
        scans = self._config.scans
        return None if scans is not None and state.get(SCANS, 0) >= scans else self.rediscover_after

    def name(self, lease: Lease) -> Name:
        if self._site.mark not in lease.spec:
            return Name("objects", hashlib.sha256(lease.key.encode()).hexdigest()[:32])
        return self._site.name(lease)

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        self._site.check()
        return [self._plan(lease, limits) for lease in leases]

    def _plan(self, lease: Lease, limits: Limits) -> Plan:
        if self._site.mark not in lease.spec:
            return BatchError(
                f"{lease.key} was found by other settings of folder, buckets or partition_by; give this pipeline "
                "another name, or those settings back"
            )
        return self._site.plan(lease, limits)

    def noticed(self) -> list[Event]:
        return self._site.noticed()

    # --- for Spark ---------------------------------------------------------------------------------------------

    def read(
        self,
        spark: Any,
        batches: Sequence[Batch],
        columns: frozenset[str] | None = None,  # noqa: ARG002 - records are read whole
    ) -> ObjectsRead:
        return self._cutting.read(spark, [self._pieces(batch) for batch in batches])

    def _pieces(self, batch: Batch) -> list[Piece]:
        return [self._cutting.salvaging(batch, piece) for piece in self._site.pieces(batch)]

    def rebuilder(self) -> RecordsOfLetters:
        from holdfast.sources.objects.again import RecordsOfLetters

        return RecordsOfLetters(self._cutting, self._config)

    def cut_short(self, batch: Batch, item: int) -> Json:
        return self._site.cut_short(batch, item)

    def damaged(self, end: Json, reason: str) -> Json:
        return damaged(end, reason)


class TidiedObjectsSource(ObjectsSource, AfterPublish):
    """Objects that are tagged or deleted when everything of them is visible."""

    def after_publish(self, leases: Sequence[Lease]) -> list[Unavailable | None]:
        return self._site.after_publish(leases)


def objects_source(config: ObjectsConfig) -> ObjectsSource:
    """The source for these settings."""
    source = ObjectsSource(config)
    return TidiedObjectsSource(config) if source.tidies else source


def _site(config: ObjectsConfig) -> Site:
    if config.folder is not None:
        from holdfast.sources.objects.folder import FolderSite

        return FolderSite(config, config.folder)
    if config.partition_by == "prefix":
        from holdfast.sources.objects.prefixes import PrefixSite

        return PrefixSite(config)
    from holdfast.sources.objects.s3_site import S3Site

    return S3Site(config)
