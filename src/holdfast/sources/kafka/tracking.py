"""What a node remembers about the partitions it holds: record sizes, waiting times, and what was reported.

All of it is in memory. A node that takes a partition over looks at the first unread record once, for its time and for a
guess at the size of records, which the first batch corrects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.events import Event, LagMeasured, Notice, RecordsLost, TopicDenied, WaitsBehindTransaction
from holdfast.leases.lease import Lease
from holdfast.sources.kafka.cluster import Glimpse, TopicPartition

FIRST_GUESS = 256.0
"""Assumed bytes of a record when none could be looked at. A guess that is too small costs one short batch."""
WEIGHT = 0.3
"""Weight of the latest batch in the running mean."""


@dataclass(slots=True)
class _Track:
    position: int = -1
    mean_bytes: float | None = None
    waiting_since: float | None = None
    seen_end: int = -1
    seen_at: float = 0.0
    """When `seen_end`, the end of the log, was last looked up."""
    made_at: float | None = None
    """Kafka's timestamp of the record at the position."""
    read_before: bool = False
    """This node read the batch that ended at the position, so it saw all later records arrive."""


class Tracking:
    """Sizes and waiting times by partition. `now` is seconds since 1970."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tracks: dict[TopicPartition, _Track] = {}

    def mean_bytes(self, topic_partition: TopicPartition) -> float:
        """Return the expected size of a record, at least 1: of this partition, else of its topic, else a guess."""
        mean = self._track(topic_partition).mean_bytes
        if mean is not None:
            return max(1.0, mean)  # records without key and value have no bytes at all
        tracks = [track for at, track in self._tracks.items() if at.topic == topic_partition.topic]
        others = [track.mean_bytes for track in tracks if track.mean_bytes]
        return max(1.0, sum(others) / len(others)) if others else FIRST_GUESS

    def learn(self, topic_partition: TopicPartition, end: int, rows: int, size: int) -> None:
        """Note that a batch was staged up to `end`."""
        track = self._track(topic_partition)
        if rows > 0:
            mean = size / rows
            track.mean_bytes = mean if track.mean_bytes is None else WEIGHT * mean + (1 - WEIGHT) * track.mean_bytes
        # Records that were there when the batch was planned have waited since then.
        since = track.seen_at if track.seen_end > end else None
        track.position, track.waiting_since, track.made_at, track.read_before = end, since, None, True

    def look(self, topic_partition: TopicPartition, position: int, end: int) -> None:
        """Note that the partition is at `position` and has records up to `end`."""
        track = self._track(topic_partition)
        if track.position != position:
            track.position, track.waiting_since, track.made_at, track.read_before = position, None, None, False
        track.seen_end, track.seen_at = end, self._now()
        if end > position and track.waiting_since is None:
            track.waiting_since = self._now()

    def unseen(self) -> dict[TopicPartition, int]:
        """Return positions whose record was not looked at yet."""
        return {
            topic_partition: track.position
            for topic_partition, track in self._tracks.items()
            if track.waiting_since is not None and track.made_at is None
        }

    def glimpse(self, seen: Mapping[TopicPartition, Glimpse]) -> None:
        """Note the records at these partitions' positions."""
        for topic_partition, record in seen.items():
            track = self._track(topic_partition)
            track.made_at = record.made_at
            if track.mean_bytes is None:
                track.mean_bytes = float(max(record.size, 1))

    def age(self, topic_partition: TopicPartition) -> float:
        """Return how many seconds the oldest unread record has waited, as far as this node can see."""
        track = self._track(topic_partition)
        if track.waiting_since is None:
            return 0.0
        since = track.waiting_since
        if not track.read_before and track.made_at is not None:
            # The partition was taken over: the record may have waited while no node looked.
            since = min(since, track.made_at)
        return max(0.0, self._now() - since)

    def seen_end(self, topic_partition: TopicPartition) -> int:
        """Return where the log ended when this node last looked; -1 if it never did."""
        return self._track(topic_partition).seen_end

    def stood(self, topic_partition: TopicPartition) -> float:
        """Return for how many seconds this node has seen unread records at the same position."""
        since = self._track(topic_partition).waiting_since
        return 0.0 if since is None else max(0.0, self._now() - since)

    def lag_seconds(self, topic_partition: TopicPartition) -> float | None:
        """Return the age of the oldest unread record by its timestamp; 0 if there is none, None if it is unknown."""
        track = self._track(topic_partition)
        if track.waiting_since is None:
            return 0.0
        return None if track.made_at is None else max(0.0, self._now() - track.made_at)

    def _track(self, topic_partition: TopicPartition) -> _Track:
        return self._tracks.setdefault(topic_partition, _Track())


REPORT_EVERY = 60.0
"""Seconds until an open transaction is reported, and between two reports of the same condition."""


class Reports:
    """Events about partitions: each is emitted once, or repeated after a while if the condition lasts.

    `now` is seconds since 1970.
    """

    def __init__(self, emit: Callable[[Event], None], now: Callable[[], float]) -> None:
        self._emit = emit
        self._now = now
        self._reported_at: dict[tuple[type[Event], str], float] = {}
        self._reported_lost: set[tuple[str, int]] = set()
        self._reported_deleted: set[str] = set()

    def lag(self, lease: Lease, records: int, seconds: float | None, kept: float | None) -> None:
        self._reported_deleted.discard(lease.key)
        self._emit(LagMeasured(lease.pipeline, lease.key, max(records, 0), seconds, kept))

    def lost(self, lease: Lease, start: int, end: int) -> None:
        """Offsets from `start` up to `end` were deleted before they were read."""
        if (lease.key, end) not in self._reported_lost:
            self._reported_lost.add((lease.key, end))
            self._emit(RecordsLost(lease.pipeline, lease.key, start, end))

    def deleted(self, lease: Lease, position: int | None) -> None:
        """The topic was deleted, and no unread record is known to be lost."""
        if lease.key not in self._reported_deleted:
            self._reported_deleted.add(lease.key)
            read = "no record of it was ever seen"
            if position is not None:
                read = f"all records that were seen, up to offset {position}, have been read"
            self._emit(Notice(f"the topic of {lease.key} was deleted; {read}"))

    def denied(self, lease: Lease, error: str) -> None:
        if self._is_due(TopicDenied, lease):
            self._emit(TopicDenied(lease.pipeline, lease.key, error))

    def transaction(self, lease: Lease, offset: int, stood: float, waited: float) -> None:
        """For `stood` seconds everything readable has been read, and records wait behind an open transaction."""
        if stood >= REPORT_EVERY and self._is_due(WaitsBehindTransaction, lease):
            since = datetime.fromtimestamp(self._now() - waited, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._emit(WaitsBehindTransaction(lease.pipeline, lease.key, offset, since, round(waited, 1)))

    def _is_due(self, kind: type[Event], lease: Lease) -> bool:
        now = self._now()
        if now < self._reported_at.get((kind, lease.key), -REPORT_EVERY) + REPORT_EVERY:
            return False
        self._reported_at[kind, lease.key] = now
        return True
