"""Reads partitions of topics inside a task: the `ShardReader` of the source `kafka`.

librdkafka fetches ahead into one queue for all partitions. What comes out of it is kept by partition here, so that a
busy partition does not keep back the others and a pause does not throw away what was fetched. A topic that was created
again has another id; ids are looked up once per second, in the background.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import is_not
from typing import TYPE_CHECKING, Any, overload

import msgspec

from holdfast.errors import SourceUnavailable
from holdfast.flow.fair_queues import QueuedReader, RecordQueue
from holdfast.flow.shards import Headers, Lag, RecordsMissing, ShardFailed, ShardRecords, StreamRecord
from holdfast.leases.lease import Json
from holdfast.sources.kafka.cluster import DENIED, TRUNCATED, Topic, TopicPartition
from holdfast.sources.kafka.topic_watch import PATIENCE, TopicWatch

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


class KafkaRecord(msgspec.Struct, frozen=True, gc=False):
    """A message with the attributes of a `StreamRecord`, each taken out of the message when it is read.

    Taking out all of them would double the cost of a message, and the handlers of batches may need none.
    """

    shard: str
    offset: int
    message: Message

    @property
    def timestamp(self) -> int:
        return self.message.timestamp()[1]

    @property
    def key(self) -> bytes | None:
        return self.message.key()

    @property
    def headers(self) -> Headers:
        headers = self.message.headers()
        return () if headers is None else tuple(headers)  # type: ignore[arg-type]

    @property
    def body(self) -> bytes | None:
        return self.message.value()


class HeaderlessRecord(KafkaRecord, frozen=True, gc=False):
    """A record of which nobody wants the headers."""

    @property
    def headers(self) -> Headers:
        return ()


class MessageRecords(Sequence[StreamRecord]):
    """The records of messages of one partition, each made when it is read."""

    __slots__ = ("_messages", "_new_record", "_shard")

    def __init__(self, shard: str, messages: Sequence[Message], new_record: Any) -> None:
        self._shard, self._messages, self._new_record = shard, messages, new_record

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[StreamRecord]:
        from confluent_kafka import Message

        messages = self._messages
        # Loops of C, as below.
        return map(self._new_record, repeat(self._shard), map(Message.offset, messages), messages)

    @overload
    def __getitem__(self, index: int) -> StreamRecord: ...

    @overload
    def __getitem__(self, index: slice) -> MessageRecords: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return MessageRecords(self._shard, self._messages[index], self._new_record)
        message = self._messages[index]
        return self._new_record(self._shard, message.offset(), message)


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


class KafkaReader(QueuedReader):
    """Reads partitions of one cluster; they are assigned by hand, without a consumer group."""

    def __init__(self, factory: KafkaReaderFactory, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._factory, self._clock = factory, clock
        self._opened: Consumer | None = None
        self._watch = TopicWatch(factory.properties, clock)
        self._added: dict[str, Json] = {}
        self._added_at = 0.0
        self._readings: dict[TopicPartition, _Reading] = {}
        self._unsettled: set[TopicPartition] = set()
        """Partitions for which librdkafka is paused, or whose offset was refused."""
        self._look_at = 0.0
        self._topics: set[str] = set()
        """Topics of which messages may come."""
        self._new_record: Any = KafkaRecord if factory.headers else HeaderlessRecord

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

    def fetch_by_shard(self, limit: int, timeout: float) -> Sequence[ShardRecords]:
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

    def lag(self, shard: str) -> Lag:
        at = _topic_partition(shard)
        reading = None if at is None else self._readings.get(at)
        if reading is None:
            return Lag(None, None)
        _, high = self._consumer().get_watermark_offsets(_assigned(reading), cached=True)
        waiting = self._queues.waiting(shard)
        return Lag(None if high < 0 else max(0, high - (waiting.first.offset if waiting else reading.next)), None)

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
        """Begin to read partitions that were added, and handle those whose offset or topic has changed."""
        self._look_at = self._clock() + LONG_WAIT
        added = (at.topic for shard in self._added if (at := _topic_partition(shard)) is not None)
        self._watch.look({*added, *(at.topic for at in self._readings)}, self._added_at)
        if self._watch.current_at > self._added_at:
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
        self._topics |= {reading.at.topic for reading in readings}
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
        from confluent_kafka import Message

        first = self._consumer().poll(wait)
        if first is None:
            return
        messages = [first, *self._consumer().consume(max(limit, AT_ONCE) - 1, 0)]
        # Loops of C, here and below: a loop of Python would take longer than everything else that a message costs.
        has_errors = any(map(is_not, map(Message.error, messages), repeat(None)))
        good = [message for message in messages if message.error() is None] if has_errors else messages
        for at, run in groupby(good, Message.partition if len(self._topics) == 1 else _topic_partition_of):
            topic_partition = (*self._topics, at) if len(self._topics) == 1 else at
            reading = self._readings.get(topic_partition)  # type: ignore[call-overload]
            if reading is not None:
                self._keep(reading, [*run])
        for message in messages if has_errors else ():
            reading = self._readings.get(_topic_partition_of(message))  # type: ignore[call-overload]
            if message.error() is not None and reading is not None:
                self._refused(reading, message)

    def _keep(self, reading: _Reading, messages: Sequence[Message]) -> None:
        """Put messages of one partition, which are in order, into the queue of its shard."""
        if _offset(messages[0]) < reading.next:
            messages = [message for message in messages if _offset(message) >= reading.next]
            if not messages:
                return
        reading.next = _offset(messages[-1]) + 1
        self._queues.put(reading.shard, MessageRecords(reading.shard, messages, self._new_record))
        if not reading.held and reading.shard in self._queues.paused and _is_much(self._queues.waiting(reading.shard)):
            self._hold(reading, held=True)

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


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _is_much(records: RecordQueue) -> bool:
    return len(records) >= KEPT or sum(len(record.body or b"") for record in records) >= KEPT_BYTES


def _topic_partition(shard: str) -> TopicPartition | None:
    topic, bar, number = shard.rpartition("|")
    return TopicPartition(topic, int(number)) if bar and number.isdecimal() else None


def _topic_partition_of(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()


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
