"""The Kafka cluster as the node sees it: topics and their ids, ends of partitions, offsets of groups.

Every call blocks for up to a few seconds and raises `SourceUnavailable` when the brokers do not respond. Spark reads
the records; only single records are looked at here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from holdfast.errors import SourceUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer

T = TypeVar("T")
PATIENCE = 10.0
PEEK_PATIENCE = 2.0
NOT_SERVED = {
    "UNKNOWN_TOPIC_OR_PART",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
    "_NOENT",
}
"""Error names for a partition that is deleted, or that no broker leads right now."""
DENIED = {"TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION"}
"""Error names for a topic that this client may not read, or whose name is invalid; other topics are unaffected."""
TRUNCATED = "log truncation"
"""Part of librdkafka's message when the log before an offset is not the one that an earlier leader had."""


_GLIMPSE: Mapping[str, Any] = {
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 65536,
    "queued.max.messages.kbytes": 1024,
}
"""Consumer properties for looking at single records, including those of open transactions."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    @property
    def key(self) -> str:
        """The key of the partition's lease."""
        return f"{self.topic}|{self.partition}"


class LogEnd(NamedTuple):
    """Where the log of a partition ends."""

    stable: int
    """The first offset that cannot be read: that of the oldest open transaction, else `high`."""
    high: int
    """The first offset that no record has: the high watermark."""
    epoch: int | None = None
    """Leader epoch of the broker that reported `stable`; None if it did not report one."""


class Glimpse(NamedTuple):
    """Time and size of a record."""

    made_at: float
    """By Kafka's timestamp, in seconds since 1970."""
    size: int
    """Bytes of key and value."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: str
    """A topic that was deleted and created again has another id; empty if the brokers do not report ids."""
    partitions: tuple[int, ...]


class Cluster:
    """One cluster. Connections are opened when first needed."""

    def __init__(self, properties: Mapping[str, str], isolation: str) -> None:
        self._properties = dict(properties)
        self._committed_only = isolation == "read_committed"
        self._admin: Any = None
        self._peek_consumer: Consumer | None = None
        self.denied: dict[str, str] = {}
        """Topics that the brokers refused at the last request, with the reason."""

    def topics(self, wanted: Callable[[str], bool]) -> list[Topic]:
        """Return the topics whose name is wanted, sorted by name."""
        listed = _responding("list topics", lambda: self._client().list_topics(timeout=PATIENCE))
        names = sorted(name for name in listed.topics if wanted(name))
        return self.described(names)

    def described(self, names: Sequence[str]) -> list[Topic]:
        """Return these topics, without those that do not exist or are denied."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if not names:
            return []
        futures = self._client().describe_topics(TopicCollection(list(names)), request_timeout=PATIENCE)
        found = []
        for name, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                if self._is_denied(name, error) or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise SourceUnavailable(f"cannot describe topic {name}: {error.args[0].str()}") from error
            self.denied.pop(name, None)
            partitions = tuple(sorted(partition.id for partition in description.partitions))
            found.append(Topic(name, str(description.topic_id), partitions))
        return found

    def ends(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return where the log of each ends; partitions that are not served are left out."""
        wanted, latest = list(topic_partitions), _admin().OffsetSpec.latest()
        # Both requests are in flight at the same time.
        high_futures = self._list_offsets(wanted, latest, committed_only=False)
        stable_futures = self._list_offsets(wanted, latest, committed_only=True) if self._committed_only else None
        highs = self._results(high_futures)
        stables = highs if stable_futures is None else self._results(stable_futures)
        return {tp: _log_end(stables[tp], highs[tp]) for tp in wanted if tp in stables and tp in highs}

    def starts(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that still exists; partitions that are not served are left out."""
        found = self._results(
            self._list_offsets(topic_partitions, _admin().OffsetSpec.earliest(), committed_only=self._committed_only)
        )
        return {tp: result.offset for tp, result in found.items()}

    def at_time(self, topic_partitions: Sequence[TopicPartition], milliseconds: int) -> dict[TopicPartition, int]:
        """Return the first offset at or after that time, or the end of the log if there is none."""
        spec = _admin().OffsetSpec.for_timestamp(milliseconds)
        found = self._results(self._list_offsets(topic_partitions, spec, committed_only=self._committed_only))
        later = {tp: result.offset for tp, result in found.items() if result.offset >= 0}
        ends = self.ends(tp for tp in topic_partitions if tp not in later)
        return later | {tp: end.stable for tp, end in ends.items()}

    def _list_offsets(
        self, topic_partitions: Iterable[TopicPartition], spec: Any, *, committed_only: bool
    ) -> Mapping[Any, Any]:
        from confluent_kafka import IsolationLevel
        from confluent_kafka import TopicPartition as KafkaPartition

        isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        specs = {KafkaPartition(*tp): spec for tp in topic_partitions}
        if not specs:
            return {}
        futures: Mapping[Any, Any] = self._client().list_offsets(
            specs, isolation_level=isolation, request_timeout=PATIENCE
        )
        return futures

    def _results(self, futures: Mapping[Any, Any]) -> dict[TopicPartition, Any]:
        """Return results of the partitions that are served: one without a leader must not hold up the others."""
        from confluent_kafka import KafkaException

        found = {}
        for where, future in futures.items():
            try:
                found[TopicPartition(where.topic, where.partition)] = future.result()
            except KafkaException as error:
                if not self._is_denied(where.topic, error) and error.args[0].name() not in NOT_SERVED:
                    message = f"cannot look up offsets of {where.topic}: {error.args[0].str()}"
                    raise SourceUnavailable(message) from error
        return found

    def _is_denied(self, topic: str, error: Any) -> bool:
        """Return whether the error concerns that topic alone, and remember it in `denied`."""
        if error.args[0].name() not in DENIED:
            return False
        self.denied[topic] = error.args[0].str()
        return True

    def committed(self, group: str, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that a consumer group has committed."""
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as KafkaPartition

        consumer = Consumer({**self._properties, "group.id": group, "enable.auto.commit": False})
        try:
            wanted = [KafkaPartition(*tp) for tp in topic_partitions]
            committed = _responding("read committed offsets", lambda: consumer.committed(wanted, timeout=PATIENCE))
        finally:
            consumer.close()
        for partition in committed:
            if (error := partition.error) is not None:
                raise SourceUnavailable(f"cannot read offsets of {partition.topic} committed by {group}: {error.str()}")
        return {TopicPartition(at.topic, at.partition): at.offset for at in committed if at.offset >= 0}

    def peek(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Glimpse]:
        """Return the first record at or after each offset, also of open transactions, if it arrives in time."""
        from confluent_kafka import TopicPartition as KafkaPartition

        found: dict[TopicPartition, Glimpse] = {}
        consumer = self._reader()
        with suppress(Exception):  # only the reported lag and an estimated age depend on it
            consumer.assign([KafkaPartition(*tp, offset) for tp, offset in positions.items()])
            give_up = time.monotonic() + PEEK_PATIENCE
            waiting = set(positions)
            while waiting and (left := give_up - time.monotonic()) > 0:
                message = consumer.poll(left)
                error = None if message is None else message.error()
                if message is None or (error and error.name() != "_PARTITION_EOF"):
                    continue
                topic_partition = TopicPartition(str(message.topic()), int(message.partition() or 0))
                waiting.discard(topic_partition)
                if error:
                    continue  # only markers of transactions are left
                size = len(message.key() or b"") + len(message.value() or b"")
                found.setdefault(topic_partition, Glimpse(message.timestamp()[1] / 1000, size))
                # Not paused: a pause would outlive the assignment.
                consumer.incremental_unassign([KafkaPartition(*topic_partition)])
            consumer.unassign()
        return found

    def continued(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, bool]:
        """Return whether the log before each offset is still the one that the leader of that epoch had.

        False means that the log was truncated below the offset. Partitions that do not respond in time are left out.
        """
        from confluent_kafka import Consumer
        from confluent_kafka import TopicPartition as KafkaPartition

        extra = {"group.id": "holdfast-peek", "enable.auto.commit": False, "auto.offset.reset": "error"}
        consumer = Consumer({**self._properties, **extra, **_GLIMPSE})
        found: dict[TopicPartition, bool] = {}
        try:
            consumer.assign(
                [KafkaPartition(*tp, offset, leader_epoch=epoch) for tp, (offset, epoch) in positions.items()]
            )
            give_up = time.monotonic() + PEEK_PATIENCE
            while len(found) < len(positions) and (left := give_up - time.monotonic()) > 0:
                message = consumer.poll(left)
                if message is not None and message.topic() is not None:
                    error = message.error()
                    topic_partition = TopicPartition(str(message.topic()), int(message.partition() or 0))
                    found[topic_partition] = error is None or TRUNCATED not in error.str()
        finally:
            consumer.close()
        return found

    def retention(self, topics: Sequence[str]) -> dict[str, float | None]:
        """Return how many seconds topics keep records; None means for ever, or that access is denied."""
        from confluent_kafka import KafkaException

        resources = [_admin().ConfigResource(_admin().ResourceType.TOPIC, name) for name in topics]
        futures = self._client().describe_configs(resources, request_timeout=PATIENCE)
        retention: dict[str, float | None] = {}
        for resource, future in futures.items():
            try:
                value = int(future.result()["retention.ms"].value)
            except KafkaException as error:
                if error.args[0].name() not in DENIED:
                    raise SourceUnavailable(f"cannot read topic settings: {error.args[0].str()}") from error
                value = -1
            retention[str(resource.name)] = None if value < 0 else value / 1000
        return retention

    def close(self) -> None:
        if self._peek_consumer is not None:
            with suppress(Exception):
                self._peek_consumer.close()
        self._admin = self._peek_consumer = None

    def _client(self) -> Any:
        if self._admin is None:
            self._admin = _admin().AdminClient(self._properties)
        return self._admin

    def _reader(self) -> Consumer:
        from confluent_kafka import Consumer

        if self._peek_consumer is None:
            extra = {"group.id": "holdfast-peek", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
            self._peek_consumer = Consumer({**self._properties, **extra, **_GLIMPSE})
        return self._peek_consumer


def _log_end(stable: Any, high: Any) -> LogEnd:
    """Combine two responses; records may have arrived between them, from another leader."""
    # The epoch belongs to `stable`: an earlier epoch would look like that of a truncated log.
    return LogEnd(stable.offset, max(stable.offset, high.offset), stable.leader_epoch)


def _admin() -> Any:
    # Its type stubs do not export the names.
    from confluent_kafka import admin

    return admin


def _responding(action: str, request: Callable[[], T]) -> T:
    from confluent_kafka import KafkaException

    try:
        return request()
    except KafkaException as error:
        raise SourceUnavailable(f"the brokers do not respond: cannot {action}: {error.args[0].str()}") from error
