"""The source `kafka` on the node: finds partitions, and plans and reads their batches.

Kafka is the buffer: nothing is kept on local disk, and the position in the lease is the only one that counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from holdfast.config.kafka_client import client_properties
from holdfast.errors import SourceUnavailable
from holdfast.events import Event, Notice
from holdfast.flow.batch import Batch, Limits, Name, Plan
from holdfast.flow.pipeline import ReportsEvents
from holdfast.flow.shards import Lag, Seek, Shard, ShardedStream, lags_of
from holdfast.flow.source import (
    FixedColumns,
    MayChange,
    OffsetPositions,
    PublishingListener,
    ReadsByConnector,
    Rebuilds,
    ReportsExtents,
    RereadsRecords,
    Source,
    StagingListener,
    UsesStoreClock,
)
from holdfast.leases.lease import Json, Lease, Partition
from holdfast.sources.kafka.cluster import Cluster, Topic, TopicPartition
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.consumer_group import GroupOffsets
from holdfast.sources.kafka.planning import EARLIEST, Planner, range_of, topic_partition_of
from holdfast.sources.kafka.shard_reader import KafkaReaderFactory

if TYPE_CHECKING:
    from holdfast.sources.kafka.reading import MessageReader, MessageRebuilder

NEAR_RETENTION = 0.5
"""Fraction of a topic's retention above which `max_age` causes a warning."""

_TIMED_OUT = re.compile(
    r"java\.util\.concurrent\.TimeoutException: Cannot fetch record"
    r"|org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable|NotLeaderOrFollower)Exception"
)
"""Errors of Spark's consumer when the brokers do not respond."""


class KafkaSource(
    Source,
    ShardedStream,
    FixedColumns,
    OffsetPositions,
    StagingListener,
    PublishingListener,
    ReportsExtents,
    Rebuilds,
    RereadsRecords,
    MayChange,
    ReadsByConnector,
    UsesStoreClock,
    ReportsEvents,
):
    """Topics of one cluster. Each partition of a topic is a lease that lives as long as the topic."""

    lives_long = True
    connectors = ("kafka",)

    def __init__(
        self, config: KafkaConfig, cluster: Cluster | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._config = config
        self._cluster = cluster or Cluster(client_properties(config), config.isolation)
        self._now = now
        self._events: list[Event] = []
        self._planner = Planner(config, self._cluster, self._time, self._emit)
        self._groups: dict[str, GroupOffsets] = {}
        self._reported_recreated: set[str] = set()
        self.rediscover_after = config.discovery_interval

    def use_clock(self, now: Callable[[], float]) -> None:
        self._now = now

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _time(self) -> float:
        return self._now()

    def open(self) -> None:
        """Implements `Source.open`; also warns if Kafka may delete records before `max_age`."""
        found = self._cluster.topics(self._config.is_wanted)
        for name in self._missing(found):
            denied = self._cluster.denied.get(name)
            problem = "does not exist yet; it is read once it does" if denied is None else f"may not be read: {denied}"
            self._emit(Notice(f"topic {name} {problem}"))
        self._planner.logs.learn_retention({topic.name for topic in found})
        for name, kept in self._planner.logs.kept.items():
            age = self._config.policy_of(name).max_age
            if kept is not None and age > kept * NEAR_RETENTION:
                self._emit(
                    Notice(
                        f"topic {name} keeps records for {kept:g} s, and max_age is {age:g} s: "
                        "raise the retention or lower max_age"
                    )
                )

    def _missing(self, found: Sequence[Topic]) -> list[str]:
        """Return topics that the settings name and that were not found; updates `denied` of the cluster."""
        missing = sorted(set(self._config.topics) - {topic.name for topic in found})
        self._cluster.described(missing)  # the list of all topics leaves out denied ones
        return missing

    # --- discovery ---------------------------------------------------------------------------------------------

    def discover(self, state: dict[str, Any]) -> Iterator[Partition]:
        """Yield all partitions of all wanted topics. `start` applies to those of the first complete discovery.

        It also applies to a topic that was denied at that time, once it is found. A topic that was deleted and created
        again is left out.
        """
        topics = self._cluster.topics(self._config.is_wanted)
        denied = [name for name in self._missing(topics) if name in self._cluster.denied]
        late = set(state.get("denied", ())) if state.get("started") else {topic.name for topic in topics}
        topics = [topic for topic in topics if self._is_first_incarnation(topic, state.setdefault("ids", {}))]
        topic_partitions = [
            TopicPartition(topic.name, number) for topic in topics for number in topic.partitions if topic.name in late
        ]
        begins = starts_of(self._config, self._cluster, topic_partitions) if topic_partitions else {}
        for topic in topics:
            for number in topic.partitions:
                topic_partition = TopicPartition(topic.name, number)
                yield self._partition(topic, topic_partition, begins.get(topic_partition, EARLIEST))
        kept = set(state.get("denied", ())) - {topic.name for topic in topics}
        state["denied"] = sorted(kept | (set() if state.get("started") else set(denied)))
        state["started"] = True

    def _is_first_incarnation(self, topic: Topic, ids: dict[str, str]) -> bool:
        """Return whether no other topic of that name was read before: their partitions must not be mixed."""
        if not topic.id or ids.setdefault(topic.name, topic.id) == topic.id:
            return True
        if topic.id not in self._reported_recreated:
            self._reported_recreated.add(topic.id)
            self._emit(Notice(f"topic {topic.name} was deleted and created again; its partitions are not read"))
        return False

    def _partition(self, topic: Topic, topic_partition: TopicPartition, begin: int | str) -> Partition:
        return Partition(
            key=topic_partition.key,
            group=topic_partition.topic,
            spec={"topic": topic_partition.topic, "partition": topic_partition.partition, "start": begin},
            index=topic_partition.partition,
            incarnation=topic.id,
        )

    def name(self, lease: Lease) -> Name:
        return Name(lease.spec["topic"], str(lease.spec["partition"]))

    # --- shards ------------------------------------------------------------------------------------------------

    def reads(self, stream: str) -> bool:
        return self._config.is_wanted(stream)

    def shards(self) -> list[Shard]:
        return [
            Shard(TopicPartition(topic.name, number).key, number)
            for topic in self._cluster.topics(self._config.is_wanted)
            for number in topic.partitions
        ]

    def seek(self, shards: Sequence[str], to: Seek) -> dict[str, Json]:
        wanted = set(shards)
        found = [
            topic_partition
            for topic in self._cluster.topics(self._config.is_wanted)
            for number in topic.partitions
            if (topic_partition := TopicPartition(topic.name, number)).key in wanted
        ]
        return {tp.key: self.position(offset) for tp, offset in self._sought(found, to).items()}

    def _sought(self, topic_partitions: Sequence[TopicPartition], to: Seek) -> dict[TopicPartition, int]:
        if to == "earliest":
            return self._cluster.starts(topic_partitions)
        if to == "latest":
            return {tp: end.stable for tp, end in self._cluster.ends(topic_partitions).items()}
        return self._cluster.at_time(topic_partitions, to)

    def begin(self, leases: Sequence[Lease]) -> list[Plan]:
        return self._planner.begin(leases)

    def reader_factory(self) -> KafkaReaderFactory:
        config = self._config
        return KafkaReaderFactory(client_properties(config), config.isolation, config.on_loss, config.headers)

    # --- plan --------------------------------------------------------------------------------------------------

    def plan(self, leases: Sequence[Lease], limits: Limits) -> list[Plan]:
        return self._planner.plan(leases, limits)

    # --- afterwards --------------------------------------------------------------------------------------------

    def doubts(self, batches: Sequence[Batch]) -> dict[str, str]:
        """Return batches whose topic was deleted, or created again, between planning and reading."""
        read = [batch for batch in batches if range_of(batch) is not None]
        planned = {batch.id: (topic_partition_of(batch.lease).topic, batch.lease.commit.incarnation) for batch in read}
        now = {
            topic.name: topic.id for topic in self._cluster.described(sorted({name for name, _ in planned.values()}))
        }
        return {
            batch_id: f"topic {name} was deleted or created again after the batch was planned"
            for batch_id, (name, topic_id) in planned.items()
            if topic_id and now.get(name) != topic_id
        }

    def is_away(self, error: str) -> bool:
        return _TIMED_OUT.search(error) is not None

    def staged(self, batch: Batch, end: Json, rows: int, size: int) -> None:
        self._planner.tracking.learn(topic_partition_of(batch.lease), end["offset"], rows, size)

    def published(self, leases: Sequence[Lease]) -> None:
        if not self._config.commit_offsets:
            return
        for lease in leases:
            if lease.run or lease.progress.position is None:
                continue
            group = self._config.group or f"holdfast-{lease.pipeline}"
            if group not in self._groups:
                self._groups[group] = GroupOffsets(client_properties(self._config), group)
            self._groups[group].advance({topic_partition_of(lease): lease.progress.position["offset"]})

    def extents(self, leases: Sequence[Lease]) -> list[tuple[int, int] | None]:
        topic_partitions = [topic_partition_of(lease) for lease in leases]
        ends, starts = self._cluster.ends(topic_partitions), self._cluster.starts(topic_partitions)
        return [
            (_next_offset(lease, starts[tp]), ends[tp].high) if tp in ends and tp in starts else None
            for tp, lease in zip(topic_partitions, leases, strict=True)
        ]

    def lags(self, leases: Sequence[Lease]) -> list[Lag]:
        return lags_of(self.extents(leases))

    def noticed(self) -> list[Event]:
        for group in self._groups.values():
            if (trouble := group.trouble()) is not None:
                self._emit(Notice(trouble))
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._cluster.close()

    # --- for Spark ---------------------------------------------------------------------------------------------

    def rebuilder(self) -> MessageRebuilder:
        from holdfast.sources.kafka.reading import MessageRebuilder

        return MessageRebuilder(headers=self._config.headers)

    def record_reader(self, rows: Any) -> MessageReader:  # noqa: ARG002 - offsets are enough
        from holdfast.sources.kafka.reading import MessageReader

        return MessageReader(client_properties(self._config))

    def columns(self) -> Any:
        from holdfast.sources.kafka.reading import data_columns

        return data_columns(self._config)

    def read(self, spark: Any, batches: Sequence[Batch], columns: frozenset[str] | None = None) -> Any:
        from holdfast.sources.kafka.reading import frame

        return frame(spark, self._config, batches, columns)


def _next_offset(lease: Lease, first: int) -> int:
    """Return the offset to read next, if the log begins at `first`."""
    position, begin = lease.progress.position, lease.spec["start"]
    if position is not None:
        return int(position["offset"])
    return first if begin == EARLIEST else int(begin)


def starts_of(
    config: KafkaConfig, cluster: Cluster, topic_partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return first offsets by the start setting; a partition that is missing begins at its earliest record.

    They are stored in the row when it is created: looked up later, `latest` would skip records. Raises
    `SourceUnavailable` while a partition's offsets cannot be looked up.
    """
    if config.start == "latest":
        return _complete(topic_partitions, {tp: end.stable for tp, end in cluster.ends(topic_partitions).items()})
    if config.start == "offset" and config.start_offset is not None:
        return dict.fromkeys(topic_partitions, config.start_offset)
    if config.start == "time" and config.start_time is not None:
        moment = config.start_time if config.start_time.tzinfo else config.start_time.replace(tzinfo=UTC)
        return _complete(topic_partitions, cluster.at_time(topic_partitions, int(moment.timestamp() * 1000)))
    if config.start == "group" and config.start_group is not None:
        return cluster.committed(config.start_group, topic_partitions)
    return {}


def _complete(
    topic_partitions: Sequence[TopicPartition], found: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return `found` if it covers all partitions: one that is not served right now must not begin elsewhere."""
    if missing := [tp for tp in topic_partitions if tp not in found]:
        raise SourceUnavailable(f"partition {missing[0].partition} of {missing[0].topic} is not served right now")
    return found
