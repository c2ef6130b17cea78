"""A node's view of the logs of its partitions: topic ids, first offsets, retention, leader epochs, backlog.

A leader never takes records back. While the leader's epoch is the one under which a position was read, nothing has
changed. Only after a change of leader, the end of the log of the old epoch is requested from the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from holdfast.errors import SourceUnavailable
from holdfast.events import Event, LagMeasured, Notice, RecordsLost, TopicDenied, WaitsBehindTransaction
from holdfast.leases.lease import Lease
from holdfast.sources.kafka.cluster import Cluster, Glimpse, TopicPartition

CHECK_EVERY = 5.0
"""Seconds for which first offsets are cached; a Spark job that reads deleted offsets fails by itself."""
FIRST_GUESS = 256.0
"""Assumed bytes of a record when none could be looked at. A guess that is too small costs one short batch."""
WEIGHT = 0.3
"""Weight of the latest batch in the running mean."""
REPORT_EVERY = 60.0
"""Seconds until an open transaction is reported, and between two reports of the same condition."""


class Logs:
    """Facts looked up periodically, and at once for new partitions. `now` is seconds since 1970."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self.ids: dict[str, str] = {}
        """Ids of the topics that exist."""
        self.firsts: dict[TopicPartition, int] = {}
        """The first offset that still exists."""
        self.kept: dict[str, float | None] = {}
        """Seconds for which topics keep records; None: for ever, or unknown."""
        self._checked_at = 0.0
        self._gone_since: dict[str, float] = {}

    def check(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Look everything up again if `CHECK_EVERY` has passed. Raises `SourceUnavailable`."""
        topics = {tp.topic for tp in topic_partitions}
        complete = topics <= self.ids.keys() and all(tp in self.firsts for tp in topic_partitions)
        if complete and abs(self._now() - self._checked_at) < CHECK_EVERY:
            return
        self._checked_at = self._now()
        self.firsts |= self._cluster.starts(topic_partitions)
        self.learn_ids(topics)
        self.learn_retention(topics & self.ids.keys())

    def learn_ids(self, topics: set[str]) -> None:
        """Look up which of these topics exist."""
        there = {topic.name: topic.id for topic in self._cluster.described(sorted(topics))}
        self.ids = {name: topic_id for name, topic_id in self.ids.items() if name not in topics} | there
        for name in topics:
            if name in there or name in self._cluster.denied:
                self._gone_since.pop(name, None)
            else:
                self._gone_since.setdefault(name, self._now())

    def gone_for(self, topic: str) -> float:
        """Return for how many seconds the brokers have reported that the topic does not exist."""
        return max(0.0, self._now() - self._gone_since.get(topic, self._now()))

    def learn_retention(self, topics: set[str]) -> None:
        """Look up how long topics keep records. Only warnings depend on it, and access may be denied."""
        unknown = sorted(topics - self.kept.keys())
        with suppress(SourceUnavailable):
            self.kept |= dict.fromkeys(unknown) | (self._cluster.retention(unknown) if unknown else {})


class ReadPosition(NamedTuple):
    """How far a partition was read, and under which leader."""

    position: int
    epoch: int | None
    """Epoch of the leader under which the last batch was planned, as stored in the row."""
    current_epoch: int | None
    """Epoch of the leader that reported the log's end."""


class Doubt(NamedTuple):
    """Why reading of a partition may not continue."""

    epoch: int
    truncated: bool
    """Whether the log is known to be cut off; if not, the brokers have not responded yet."""


class LeaderEpochs:
    """Leader epochs that this node has seen, in memory; the rows keep what must outlive the node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[TopicPartition, tuple[int, int]] = {}

    def doubts(self, read: Mapping[TopicPartition, ReadPosition]) -> dict[TopicPartition, Doubt]:
        """Return partitions whose log may not continue where reading ended; a leader change causes a request."""
        changed: dict[TopicPartition, tuple[int, int]] = {}
        for topic_partition, at in read.items():
            epoch = self._last_epoch(topic_partition, at)
            if epoch is None:
                self.accept(topic_partition, at)
            elif at.current_epoch is not None and at.current_epoch != epoch:
                changed[topic_partition] = (at.position, epoch)
        # An earlier epoch than the last one comes from a deposed leader and does not count.
        later = {tp: at for tp, at in changed.items() if (read[tp].current_epoch or 0) > at[1]}
        found = self._cluster.continued(later) if later else {}
        for topic_partition in changed:
            if found.get(topic_partition):
                self.accept(topic_partition, read[topic_partition])
        doubted = [tp for tp in changed if not found.get(tp)]
        return {tp: Doubt(changed[tp][1], truncated=found.get(tp) is False) for tp in doubted}

    def accept(self, topic_partition: TopicPartition, at: ReadPosition) -> None:
        """Note that up to that position the current leader's log is the one that was read."""
        if at.current_epoch is not None:
            self._seen[topic_partition] = (at.position, at.current_epoch)

    def _last_epoch(self, topic_partition: TopicPartition, at: ReadPosition) -> int | None:
        position, epoch = self._seen.get(topic_partition, (-1, -1))
        # An epoch seen at another position says nothing about this one.
        epochs = [at.epoch, epoch if position == at.position else None]
        return max((epoch for epoch in epochs if epoch is not None), default=None)


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
        """Report that offsets from `start` up to `end` were deleted before they were read."""
        if (lease.key, end) not in self._reported_lost:
            self._reported_lost.add((lease.key, end))
            self._emit(RecordsLost(lease.pipeline, lease.key, start, end))

    def deleted(self, lease: Lease, position: int | None) -> None:
        """Report that the topic was deleted, and that no unread record is known to be lost."""
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
        """Report that records wait behind an open transaction; for `stood` seconds nothing new could be read."""
        if stood >= REPORT_EVERY and self._is_due(WaitsBehindTransaction, lease):
            since = datetime.fromtimestamp(self._now() - waited, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._emit(WaitsBehindTransaction(lease.pipeline, lease.key, offset, since, round(waited, 1)))

    def _is_due(self, kind: type[Event], lease: Lease) -> bool:
        now = self._now()
        if now < self._reported_at.get((kind, lease.key), -REPORT_EVERY) + REPORT_EVERY:
            return False
        self._reported_at[kind, lease.key] = now
        return True
