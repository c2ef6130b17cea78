"""The Kafka cluster as the node sees it: topics and their ids, ends of partitions, offsets of groups.

Every call blocks up to a few seconds and raises `SourceUnavailable` when the brokers do not answer. Reading records is
Spark's task; only single records are looked at here.
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
"""What is said of a partition that is deleted, or that no broker leads right now."""
DENIED = {"TOPIC_AUTHORIZATION_FAILED", "TOPIC_EXCEPTION"}
"""What is said of a topic that we may not read, or whose name no topic can have; other topics are not concerned."""
TRUNCATED = "log truncation"
"""In what librdkafka says of an offset whose log does not reach back to the leader that it was read from."""


_GLIMPSE: Mapping[str, Any] = {
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 65536,
    "queued.max.messages.kbytes": 1024,
}
"""For a look at single records, also such that cannot be read yet."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class LogEnd(NamedTuple):
    """Where the log of a partition ends."""

    stable: int
    """The first offset that cannot be read: that of the oldest open transaction, else `high`."""
    high: int
    """The first offset that no record has: the high watermark."""
    epoch: int | None = None
    """Of the leader that told `stable`; None if the brokers do not tell."""


class Glimpse(NamedTuple):
    """What is seen of a record without reading it."""

    made_at: float
    """By Kafka's timestamp, in seconds since 1970."""
    size: int
    """Bytes of key and value."""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: str
    """Differs for a topic that was deleted and created anew; empty if the brokers do not tell."""
    partitions: tuple[int, ...]


class Cluster:
    """One cluster, over connections that are opened when first needed."""

    def __init__(self, properties: Mapping[str, str], isolation: str) -> None:
        self._properties = dict(properties)
        self._committed_only = isolation == "read_committed"
        self._admin: Any = None
        self._peeking: Consumer | None = None
        self.denied: dict[str, str] = {}
        """Topics that the brokers refused when they were last asked, and why."""

    def topics(self, wanted: Callable[[str], bool]) -> list[Topic]:
        """Topics whose name is wanted, sorted by name."""
        listed = _answered("list topics", lambda: self._client().list_topics(timeout=PATIENCE))
        names = sorted(name for name in listed.topics if wanted(name))
        return self.described(names)

    def described(self, names: Sequence[str]) -> list[Topic]:
        """These topics; one that does not exist is left out, and so is one that is denied."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if not names:
            return []
        asked = self._client().describe_topics(TopicCollection(list(names)), request_timeout=PATIENCE)
        found = []
        for name, future in asked.items():
            try:
                told = future.result()
            except KafkaException as error:
                if self._is_denied(name, error) or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise SourceUnavailable(f"cannot describe topic {name}: {error.args[0].str()}") from error
            self.denied.pop(name, None)
            partitions = tuple(sorted(one.id for one in told.partitions))
            found.append(Topic(name, str(told.topic_id), partitions))
        return found

    def ends(self, places: Iterable[Place]) -> dict[Place, LogEnd]:
        """Where the log of each ends, of those that are served."""
        where, latest = list(places), _admin().OffsetSpec.latest()
        # Both are under way at the same time.
        asked = self._ask(where, latest, committed_only=False)
        asked_stable = self._ask(where, latest, committed_only=True) if self._committed_only else None
        highs = self._found(asked)
        stables = highs if asked_stable is None else self._found(asked_stable)
        return {place: _log_end(stables[place], highs[place]) for place in where if place in stables and place in highs}

    def starts(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset that is still there, of those that are served."""
        found = self._found(self._ask(places, _admin().OffsetSpec.earliest(), committed_only=self._committed_only))
        return {place: told.offset for place, told in found.items()}

    def at_time(self, places: Sequence[Place], milliseconds: int) -> dict[Place, int]:
        """The first offset at or after that time; the end where there is none."""
        spec = _admin().OffsetSpec.for_timestamp(milliseconds)
        found = self._found(self._ask(places, spec, committed_only=self._committed_only))
        later = {place: told.offset for place, told in found.items() if told.offset >= 0}
        ends = self.ends(place for place in places if place not in later)
        return later | {place: end.stable for place, end in ends.items()}

    def _ask(self, places: Iterable[Place], spec: Any, *, committed_only: bool) -> Mapping[Any, Any]:
        from confluent_kafka import IsolationLevel, TopicPartition

        isolation = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        told: Mapping[Any, Any] = self._client().list_offsets(
            asked, isolation_level=isolation, request_timeout=PATIENCE
        )
        return told

    def _found(self, futures: Mapping[Any, Any]) -> dict[Place, Any]:
        """Of each that is served: one that is gone or without a leader must not hold up the others."""
        from confluent_kafka import KafkaException

        found = {}
        for where, future in futures.items():
            try:
                found[Place(where.topic, where.partition)] = future.result()
            except KafkaException as error:
                if not self._is_denied(where.topic, error) and error.args[0].name() not in NOT_SERVED:
                    told = f"cannot look up offsets of {where.topic}: {error.args[0].str()}"
                    raise SourceUnavailable(told) from error
        return found

    def _is_denied(self, topic: str, error: Any) -> bool:
        """Whether the error is of that topic alone; then it is kept for those who ask."""
        if error.args[0].name() not in DENIED:
            return False
        self.denied[topic] = error.args[0].str()
        return True

    def committed(self, group: str, places: Sequence[Place]) -> dict[Place, int]:
        """Offsets that a consumer group has committed."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**self._properties, "group.id": group, "enable.auto.commit": False})
        try:
            asked = [TopicPartition(*place) for place in places]
            told = _answered("read committed offsets", lambda: consumer.committed(asked, timeout=PATIENCE))
        finally:
            consumer.close()
        for one in told:
            if one.error is not None:
                raise SourceUnavailable(f"cannot read offsets of {one.topic} committed by {group}: {one.error.str()}")
        return {Place(one.topic, one.partition): one.offset for one in told if one.offset >= 0}

    def peek(self, positions: Mapping[Place, int]) -> dict[Place, Glimpse]:
        """The first record at or after each offset, of open transactions too, of those that answer in time."""
        from confluent_kafka import TopicPartition

        found: dict[Place, Glimpse] = {}
        consumer = self._reader()
        with suppress(Exception):  # only a figure for people and an estimate of age
            consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])
            give_up = time.monotonic() + PEEK_PATIENCE
            waiting = set(positions)
            while waiting and (left := give_up - time.monotonic()) > 0:
                message = consumer.poll(left)
                error = None if message is None else message.error()
                if message is None or (error and error.name() != "_PARTITION_EOF"):
                    continue
                place = Place(str(message.topic()), int(message.partition() or 0))
                waiting.discard(place)
                if error:
                    continue  # only markers of transactions are left
                size = len(message.key() or b"") + len(message.value() or b"")
                found.setdefault(place, Glimpse(message.timestamp()[1] / 1000, size))
                # Not paused: a pause would outlive the assignment.
                consumer.incremental_unassign([TopicPartition(*place)])
            consumer.unassign()
        return found

    def continued(self, positions: Mapping[Place, tuple[int, int]]) -> dict[Place, bool]:
        """Whether all before an offset is what a leader of that epoch had there; of those that answer in time.

        False: the log was truncated below the offset, and what is there now came later.
        """
        from confluent_kafka import Consumer, TopicPartition

        own = {"group.id": "holdfast-peek", "enable.auto.commit": False, "auto.offset.reset": "error"}
        consumer = Consumer({**self._properties, **own, **_GLIMPSE})
        found: dict[Place, bool] = {}
        try:
            consumer.assign(
                [TopicPartition(*place, offset, leader_epoch=epoch) for place, (offset, epoch) in positions.items()]
            )
            give_up = time.monotonic() + PEEK_PATIENCE
            while len(found) < len(positions) and (left := give_up - time.monotonic()) > 0:
                message = consumer.poll(left)
                if message is not None and message.topic() is not None:
                    error = message.error()
                    place = Place(str(message.topic()), int(message.partition() or 0))
                    found[place] = error is None or TRUNCATED not in error.str()
        finally:
            consumer.close()
        return found

    def retention(self, topics: Sequence[str]) -> dict[str, float | None]:
        """Seconds that topics keep their records by time; None for ever, or if we may not ask."""
        from confluent_kafka import KafkaException

        resources = [_admin().ConfigResource(_admin().ResourceType.TOPIC, name) for name in topics]
        futures = self._client().describe_configs(resources, request_timeout=PATIENCE)
        told = {}
        for resource, future in futures.items():
            try:
                value = int(future.result()["retention.ms"].value)
            except KafkaException as error:
                if error.args[0].name() not in DENIED:
                    raise SourceUnavailable(f"cannot read topic settings: {error.args[0].str()}") from error
                value = -1
            told[str(resource.name)] = None if value < 0 else value / 1000
        return told

    def close(self) -> None:
        if self._peeking is not None:
            with suppress(Exception):
                self._peeking.close()
        self._admin = self._peeking = None

    def _client(self) -> Any:
        if self._admin is None:
            self._admin = _admin().AdminClient(self._properties)
        return self._admin

    def _reader(self) -> Consumer:
        from confluent_kafka import Consumer

        if self._peeking is None:
            own = {"group.id": "holdfast-peek", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
            self._peeking = Consumer({**self._properties, **own, **_GLIMPSE})
        return self._peeking


def _log_end(stable: Any, high: Any) -> LogEnd:
    """Of two answers; more may have come between them, from another leader."""
    # The epoch goes with what may be read: an earlier one would be taken for that of a log that was truncated.
    return LogEnd(stable.offset, max(stable.offset, high.offset), stable.leader_epoch)


def _admin() -> Any:
    # Its types do not say what it exports.
    from confluent_kafka import admin

    return admin


def _answered(what: str, ask: Callable[[], T]) -> T:
    from confluent_kafka import KafkaException

    try:
        return ask()
    except KafkaException as error:
        raise SourceUnavailable(f"the brokers do not answer: cannot {what}: {error.args[0].str()}") from error
