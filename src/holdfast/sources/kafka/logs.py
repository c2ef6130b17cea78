"""What a node knows about the logs of its partitions: topic ids, first offsets, retention, leader epochs.

A leader never takes records back. While the leader's epoch is the one under which a position was read, nothing has
changed. Only after a change of leader are the brokers asked how far the log of the old epoch reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple

from holdfast.errors import SourceUnavailable
from holdfast.sources.kafka.cluster import Cluster, TopicPartition

CHECK_EVERY = 5.0
"""Seconds for which first offsets are cached; a Spark job that reads deleted offsets fails by itself."""


class Logs:
    """Facts looked up periodically, and at once for new partitions. `now` is seconds since 1970."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._now = now
        self.ids: dict[str, str] = {}
        """Ids of the topics that exist."""
        self.firsts: dict[TopicPartition, int] = {}
        """The first offset that is still there."""
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
        """Look up how long topics keep records. Only warnings depend on it, and not every client may ask."""
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
    """False: the brokers have not responded yet."""


class LeaderEpochs:
    """Leader epochs that this node has seen, in memory; the rows keep what must outlive the node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[TopicPartition, tuple[int, int]] = {}

    def doubts(self, read: Mapping[TopicPartition, ReadPosition]) -> dict[TopicPartition, Doubt]:
        """Return partitions whose log may not continue where reading ended; asks the brokers after a leader change."""
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
