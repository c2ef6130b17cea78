"""Reads partitions of topics inside a task: the `ShardReader` of the source `kafka`.

librdkafka fetches ahead into one queue for all partitions. What comes out of it is kept by partition here, so that a
busy partition does not keep back the others and a pause does not throw away what was fetched. A topic that was created
again has another id; ids are looked up once per second, in the background.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.errors import SourceUnavailable
from holdfast.flow.fair_queues import FairQueues
from holdfast.flow.shards import Lag, RecordsMissing, ShardFailed, ShardReader, ShardReport, StreamRecord
from holdfast.leases.lease import Json
from holdfast.sources.kafka.cluster import DENIED, TRUNCATED, Topic, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

TOPIC_ID = "topic_id"
"""Key of positions that a node gives to a task; positions that a task reports lack it."""
AT_ONCE = 200
"""Messages that are taken out of the queue of librdkafka at once."""
KEPT, KEPT_BYTES = 1000, 8 << 20
"""Messages of a paused partition that are kept; then librdkafka is paused, which throws away what it has fetched."""
SHORT_WAIT, LONG_WAIT = 0.005, 0.25
"""Longest wait for a message: while a partition waits for the description of its topic, and otherwise."""
LOOK_EVERY = 1.0
PATIENCE = 2.0

_PROPERTIES: Mapping[str, Any] = {
    "group.id": "holdfast-function",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    # The defaults wait for longer than a record may take: 500 ms and 1 s.
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 1,
    "fetch.error.backoff.ms": 100,
    # By default a broker that is back is found up to 10 s later.
    "reconnect.backoff.max.ms": 1000,
    "queued.max.messages.kbytes": 16384,
}


@dataclass(frozen=True)
class KafkaReaderFactory:
    """Opens readers of the topics of one cluster. A `ReaderFactory`."""

    properties: Mapping[str, str] = field(repr=False)
    isolation: str = "read_committed"
    on_loss: str = "halt"
    headers: bool = True

    def open(self) -> KafkaReader:
        return KafkaReader(self)


class TopicWatch:
    """Looks topics up in the background, again and again. Used by one thread; nothing blocks."""

    def __init__(self, properties: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._properties, self._clock = properties, clock
        self._admin: Any = None
        self._futures: dict[str, Any] = {}
        self._due = self._requested_at = 0.0
        self.known_at = 0.0
        """When the last request was sent to which the brokers responded."""
        self.topics: dict[str, Topic | None] = {}
        """What was found last; None for a topic that does not exist."""
        self.away: str | None = None
        """Why the brokers did not respond to the last request; None if they did."""

    def look(self, names: set[str], since: float) -> None:
        """Process a response, and request these topics again if it is time or what is known is older than `since`."""
        if self._futures:
            if not all(future.done() for future in self._futures.values()):
                return
            self._learn()
        now = self._clock()
        if now >= self._due or (self.known_at <= since and self.away is None):
            self._due, self._requested_at = now + LOOK_EVERY, now
            self._request(names)

    def _request(self, names: set[str]) -> None:
        from confluent_kafka import TopicCollection
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient(dict(self._properties))
        if names:
            self._futures = dict(self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=PATIENCE))
        elif not self.known_at:
            self._futures = {"": self._admin.describe_cluster(request_timeout=PATIENCE)}

    def _learn(self) -> None:
        from confluent_kafka import KafkaException

        self.away = None
        for name, future in self._futures.items():
            try:
                found = future.result()
            except KafkaException as error:
                if error.args[0].name() in {"UNKNOWN_TOPIC_OR_PART", *DENIED}:
                    self.topics[name] = None
                else:
                    self.away = f"the brokers do not respond: {error.args[0].str()}"
            else:
                if name:
                    numbers = tuple(partition.id for partition in found.partitions)
                    self.topics[name] = Topic(name, str(found.topic_id), numbers)
        self._futures = {}
        if self.away is None:
            self.known_at = self._requested_at


@dataclass
class _Reading:
    """One partition that is being read."""

    shard: str
    at: TopicPartition
    next: int
    """Offset of the next message that librdkafka returns, or of a later one if there is none with it."""
    topic_id: str
    held: bool = False
    """Whether librdkafka is paused for it."""
    in_doubt: bool = False
    """Whether the brokers have refused its offset, and it is not known yet why."""


class KafkaReader(ShardReader):
    """Reads partitions of one cluster; they are assigned by hand, without a consumer group."""

    def __init__(self, factory: KafkaReaderFactory, clock: Callable[[], float] = time.monotonic) -> None:
        self._factory, self._clock = factory, clock
        self._opened: Consumer | None = None
        self._watch = TopicWatch(factory.properties, clock)
        self._added: dict[str, Json] = {}
        self._added_at = 0.0
        self._readings: dict[TopicPartition, _Reading] = {}
        self._unsettled: set[TopicPartition] = set()
        """Partitions for which librdkafka is paused, or whose offset was refused."""
        self._look_at = 0.0
        self._queues = FairQueues()
        self._reports: list[ShardReport] = []

    def add(self, shard: str, position: Json) -> None:
        self.remove(shard)
        self._added[shard], self._added_at = position, self._clock()

    def remove(self, shard: str) -> None:
        self._added.pop(shard, None)
        self._queues.drop(shard)
        at = _topic_partition(shard)
        if at is not None and (reading := self._readings.pop(at, None)) is not None:
            self._unsettled.discard(at)
            self._unassign(reading)

    def pause(self, shard: str) -> None:
        self._queues.paused.add(shard)

    def resume(self, shard: str) -> None:
        self._queues.paused.discard(shard)

    def fetch(self, limit: int, timeout: float) -> Sequence[StreamRecord]:
        deadline = self._clock() + timeout
        while True:
            if self._added or self._unsettled or self._clock() >= self._look_at:
                self._prepare()
            ready, wait = self._queues.ready, SHORT_WAIT if self._added else LONG_WAIT
            if ready < limit:
                self._receive(limit, 0.0 if ready else max(0.0, min(deadline - self._clock(), wait)))
            records = self._queues.take(limit)
            if records or self._reports:
                return records
            if self._clock() >= deadline:
                if self._watch.away is not None:
                    raise SourceUnavailable(self._watch.away)
                return records

    def reports(self) -> list[ShardReport]:
        reports, self._reports = self._reports, []
        return reports

    def lag(self, shard: str) -> Lag:
        at = _topic_partition(shard)
        reading = None if at is None else self._readings.get(at)
        if reading is None:
            return Lag(None, None)
        _, high = self._consumer().get_watermark_offsets(_assigned(reading), cached=True)
        waiting = self._queues.waiting(shard)
        return Lag(None if high < 0 else max(0, high - (waiting[0].offset if waiting else reading.next)), None)

    def position_at(self, offset: int) -> Json:
        return {"offset": offset}

    def position_after(self, offset: int) -> Json:
        return {"offset": offset + 1}

    def close(self) -> None:
        if self._opened is not None:
            with suppress(Exception):
                self._opened.close()
        self._opened = None
        self._readings.clear()

    # --- partitions ------------------------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        if self._opened is None:
            from confluent_kafka import Consumer

            isolation = {"isolation.level": self._factory.isolation}
            self._opened = Consumer({**_PROPERTIES, **isolation, **self._factory.properties})
        return self._opened

    def _prepare(self) -> None:
        """Begin what was added, and look after partitions whose offset or topic is not what it was."""
        self._look_at = self._clock() + LONG_WAIT
        added = (at.topic for shard in self._added if (at := _topic_partition(shard)) is not None)
        self._watch.look({*added, *(at.topic for at in self._readings)}, self._added_at)
        if self._watch.known_at > self._added_at:
            self._begin()
        for reading in list(self._readings.values()):
            topic = self._watch.topics.get(reading.at.topic)
            if topic is not None and topic.id != reading.topic_id:
                self._fail(reading.shard, f"topic {topic.name} was deleted and created again", halt=True)
            elif reading.in_doubt:
                self._resolve(reading)
            elif reading.held and not self._queues.waiting(reading.shard):
                self._hold(reading, held=False)

    def _begin(self) -> None:
        added, self._added, begun = self._added, {}, []
        for shard, position in added.items():
            at = _topic_partition(shard)
            topic = None if at is None else self._watch.topics.get(at.topic)
            if at is None or topic is None or at.partition not in topic.partitions:
                self._fail(shard, f"{shard!r} is not a partition of a topic that exists")
            elif (wrong := _refusal(position, topic)) is not None:
                self._reports.append(wrong(shard))
            else:
                self._readings[at] = _Reading(shard, at, position["offset"], topic.id)
                begun.append(self._readings[at])
        self._assign(begun)

    def _assign(self, readings: Sequence[_Reading]) -> None:
        if not readings:
            return
        from confluent_kafka import KafkaException

        # A consumer that does not know the topic yet would begin half a second later.
        for topic in {reading.at.topic for reading in readings}:
            with suppress(KafkaException):
                self._consumer().list_topics(topic, timeout=PATIENCE)
        self._consumer().incremental_assign([_assigned(reading) for reading in readings])

    def _unassign(self, reading: _Reading) -> None:
        if reading.held:
            # A pause would outlive the assignment.
            self._hold(reading, held=False)
        self._consumer().incremental_unassign([_assigned(reading)])

    def _hold(self, reading: _Reading, *, held: bool) -> None:
        reading.held = held
        (self._unsettled.add if held else self._unsettled.discard)(reading.at)
        (self._consumer().pause if held else self._consumer().resume)([_assigned(reading)])

    def _fail(self, shard: str, error: str, *, halt: bool = False) -> None:
        self.remove(shard)
        self._reports.append(ShardFailed(shard, error, halt))

    def _resolve(self, reading: _Reading) -> None:
        """Find out why the brokers have refused an offset. Raises `SourceUnavailable`."""
        from confluent_kafka import KafkaException

        try:
            low, high = self._consumer().get_watermark_offsets(_assigned(reading), timeout=PATIENCE)
        except KafkaException as error:
            raise SourceUnavailable(f"the brokers do not respond: {error.args[0].str()}") from error
        start, reading.in_doubt = reading.next, False
        self._unsettled.discard(reading.at)
        if start > high:
            self._fail(reading.shard, f"the log of {reading.shard} ends at {high}, before offset {start}", halt=True)
            return
        self._consumer().incremental_unassign([_assigned(reading)])
        if start < low:
            halted = self._factory.on_loss == "halt"
            self._reports.append(RecordsMissing(reading.shard, start, low, halted))
            if halted:
                del self._readings[reading.at]
                return
            reading.next = low
        self._consumer().incremental_assign([_assigned(reading)])

    # --- messages --------------------------------------------------------------------------------------------------

    def _receive(self, limit: int, wait: float) -> None:
        """Move messages from the queue of librdkafka into those of the shards."""
        first = self._consumer().poll(wait)
        if first is None:
            return
        found: dict[str, list[StreamRecord]] = {}
        for message in (first, *self._consumer().consume(max(limit, AT_ONCE) - 1, 0)):
            reading = self._readings.get((message.topic(), message.partition()))  # type: ignore[call-overload]
            if reading is None:
                continue
            if message.error() is not None:
                self._refused(reading, message)
            elif (offset := message.offset() or 0) >= reading.next:
                reading.next = offset + 1
                found.setdefault(reading.shard, []).append(self._record(reading.shard, offset, message))
        for shard, records in found.items():
            self._queues.put(shard, records)
            if shard in self._queues.paused and _is_much(self._queues.waiting(shard)):
                reading = self._readings[_topic_partition(shard)]  # type: ignore[index]
                if not reading.held:
                    self._hold(reading, held=True)

    def _record(self, shard: str, offset: int, message: Message) -> StreamRecord:
        headers = message.headers() if self._factory.headers else None
        return StreamRecord(
            shard,
            offset,
            message.timestamp()[1],
            message.key(),
            () if headers is None else tuple(headers),  # type: ignore[arg-type]
            message.value(),
        )

    def _refused(self, reading: _Reading, message: Message) -> None:
        error = message.error()
        assert error is not None
        if TRUNCATED in error.str():
            self._fail(reading.shard, f"the brokers lost records of {reading.shard}: {error.str()}", halt=True)
        elif error.name() in {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}:
            reading.in_doubt = True
            self._unsettled.add(reading.at)
        elif error.name() in DENIED:
            self._fail(reading.shard, f"{reading.shard} may not be read: {error.str()}")
        # Other errors are temporary: librdkafka tries again.


def _is_much(records: Sequence[StreamRecord]) -> bool:
    return len(records) >= KEPT or sum(len(record.body or b"") for record in records) >= KEPT_BYTES


def _topic_partition(shard: str) -> TopicPartition | None:
    topic, bar, number = shard.rpartition("|")
    return TopicPartition(topic, int(number)) if bar and number.isdecimal() else None


def _assigned(reading: _Reading) -> Any:
    from confluent_kafka import TopicPartition as KafkaPartition

    return KafkaPartition(*reading.at, reading.next)


def _refusal(position: Json, topic: Topic) -> Callable[[str], ShardFailed] | None:
    """Why a position cannot be read."""
    offset = position.get("offset") if isinstance(position, dict) else None
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        return lambda shard: ShardFailed(shard, f"the position {position!r} is not an offset")
    if position.get(TOPIC_ID, topic.id) not in ("", topic.id):
        return lambda shard: ShardFailed(shard, f"topic {topic.name} was deleted and created again", halt=True)
    return None
