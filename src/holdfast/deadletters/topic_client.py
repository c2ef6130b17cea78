"""Kafka as dead letters need it: a topic to which transactions are written, and whose end is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin

from holdfast.deadletters.letter_topic import COMMIT, LETTER, PROGRESS_EVERY, Message
from holdfast.errors import HoldfastError, Refused, SinkUnavailable

T = TypeVar("T")
PATIENCE = 10.0
READ_PATIENCE = 30.0
"""Seconds without anything new after which reading the end of the topic is given up."""
COMMIT_PATIENCE = 30.0
TRANSACTION_TIMEOUT_MS = 120_000
"""How long the brokers keep a transaction open whose producer is gone, unless its partition is taken over before."""
MAX_QUEUED_KILOBYTES = 32_768


class TopicClient:
    """Connects to the brokers for each attempt: letters are rare, and a producer that was fenced stays fenced."""

    def __init__(self, properties: Mapping[str, str], topic: str, max_message_bytes: int) -> None:
        self._properties: dict[str, Any] = dict(properties)
        self._topic = topic
        self._max_message_bytes = max_message_bytes

    def check(self) -> str:
        """Raise `Refused` if the topic does not exist or is compacted, `SinkUnavailable` if no broker responds."""
        admin = kafka_admin.AdminClient(self._properties)
        _described(admin, self._topic, missing=Refused)
        resource = kafka_admin.ConfigResource(kafka_admin.ResourceType.TOPIC, self._topic)
        (future,) = admin.describe_configs([resource], request_timeout=PATIENCE).values()
        try:
            policy = future.result()["cleanup.policy"].value
        except KafkaException:
            return f"copies go to topic {self._topic}, whose settings this client may not read"
        if "compact" in policy:
            raise Refused(f"topic {self._topic} is compacted, which would delete dead letters that have the same key")
        return f"copies go to topic {self._topic}"

    @contextmanager
    def attempt(self, transactional_id: str) -> Iterator[KafkaAttempt]:
        """An attempt that has fenced all earlier ones of this id. Raises `SinkUnavailable`."""
        settings = {
            **self._properties,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "message.max.bytes": self._max_message_bytes,
            "queue.buffering.max.kbytes": MAX_QUEUED_KILOBYTES,
        }
        producer = Producer(settings)
        _responding("begin a transaction", lambda: producer.init_transactions(PATIENCE))
        attempt = KafkaAttempt(producer, self._properties, self._topic)
        try:
            yield attempt
        finally:
            attempt.end()


class KafkaAttempt:
    """A `TopicAttempt`."""

    def __init__(self, producer: Any, properties: Mapping[str, str], topic: str) -> None:
        self._producer = producer
        self._properties = properties
        self._topic = topic
        self._is_open = False
        self._refusal: str | None = None

    def ends(self) -> dict[str, Any]:
        admin = kafka_admin.AdminClient(dict(self._properties))
        described = _described(admin, self._topic)
        latest = kafka_admin.OffsetSpec.latest()
        wanted = {TopicPartition(self._topic, partition.id): latest for partition in described.partitions}
        futures = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=PATIENCE)
        found = {
            where.partition: _responding("find the end of the topic", done.result) for where, done in futures.items()
        }
        return {
            "topic_id": str(described.topic_id),
            "offsets": {str(partition): end.offset for partition, end in found.items()},
        }

    def letters_since(
        self, offsets: Mapping[str, int], ends: Mapping[str, int], commit: str, progress: Callable[[], None]
    ) -> set[str]:
        left = {int(number): end for number, end in ends.items() if offsets.get(number, 0) < end}
        if not left:
            return set()
        settings = {
            **self._properties,
            "group.id": "holdfast-peek",
            "enable.auto.commit": False,
            # What retention has deleted is not read.
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        with closing(Consumer(settings)) as consumer:
            starts = [TopicPartition(self._topic, number, offsets.get(str(number), 0)) for number in left]
            consumer.assign(starts)
            return set(_read_to(consumer, left, commit, progress))

    def send(self, message: Message) -> None:
        if not self._is_open:
            _responding("begin a transaction", self._producer.begin_transaction)
            self._is_open = True
        give_up = time.monotonic() + COMMIT_PATIENCE
        while True:
            try:
                _responding("send letters", lambda: self._produce(message))
                return
            except BufferError:
                self._producer.poll(0.1)
            if time.monotonic() > give_up:
                raise SinkUnavailable(f"the brokers accept no dead letters for topic {self._topic}")

    def _produce(self, message: Message) -> None:
        self._producer.produce(
            self._topic,
            key=message.key,
            value=message.value,
            headers=list(message.headers),
            on_delivery=self._delivered,
        )
        self._producer.poll(0)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None and self._refusal is None:
            self._refusal = error.str()

    def commit(self) -> None:
        try:
            _responding("commit letters", lambda: self._producer.commit_transaction(COMMIT_PATIENCE))
        except SinkUnavailable as error:
            if self._refusal is None:
                raise
            # The transaction only counts the letters that were refused; this is why.
            raise SinkUnavailable(f"topic {self._topic} refuses dead letters: {self._refusal}") from error
        self._is_open = False

    def end(self) -> None:
        """Abort what was not committed. Never raises: the next attempt aborts it, too."""
        if self._is_open:
            with suppress(KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(PATIENCE)


def _read_to(consumer: Any, left: dict[int, int], commit: str, progress: Callable[[], None]) -> Iterator[str]:
    """Read each partition to its end; yields letters of the commit.

    Waits for messages behind an open transaction, which may be another producer's.
    """
    give_up, reason, messages = time.monotonic() + READ_PATIENCE, "a transaction is open, or no broker responds", 0
    while left:
        message = consumer.poll(1.0)
        if time.monotonic() > give_up:
            raise SinkUnavailable(f"cannot read the end of the topic of dead letters: {reason}")
        if message is None:
            continue
        error = message.error()
        if error is not None and error.name() != "_PARTITION_EOF":
            reason = error.str()
            continue
        partition, offset = int(message.partition()), int(message.offset())
        if error is None:
            offset, messages = offset + 1, messages + 1
            if messages % PROGRESS_EVERY == 0:
                progress()
            give_up = time.monotonic() + READ_PATIENCE
            headers = dict(message.headers() or ())
            if headers.get(COMMIT) == commit.encode():
                yield (headers.get(LETTER) or b"").decode("utf-8", "replace")
        if offset >= left.get(partition, offset + 1):
            del left[partition]


def _described(admin: Any, topic: str, missing: type[HoldfastError] = SinkUnavailable) -> Any:
    """The topic. Raises `missing` if it does not exist."""
    (future,) = admin.describe_topics(TopicCollection([topic]), request_timeout=PATIENCE).values()
    try:
        return future.result()
    except KafkaException as error:
        if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
            raise missing(f"topic {topic} of dead letters does not exist; create it") from error
        raise SinkUnavailable(f"topic {topic} of dead letters cannot be described: {error.args[0].str()}") from error


def _responding(action: str, request: Callable[[], T]) -> T:
    try:
        return request()
    except KafkaException as error:
        raise SinkUnavailable(f"cannot {action}: {error.args[0].str()}") from error
