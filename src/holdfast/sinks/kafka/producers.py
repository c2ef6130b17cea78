"""Producers of the sink `kafka`: transactions that hold the messages of a commit, and messages that are sent at once.

A transaction also holds an offset of a consumer group that belongs to one partition of the pipeline: the number of the
commit, with its id as metadata. The group has no members; its offset says which commit was sent last. Whoever publishes
a commit fences all others by the transactional id of the partition, which ends their transactions, and then reads that
offset: the commit is in the topic, or it never will be unless it is sent now.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from holdfast.errors import Halt, Refused, SinkUnavailable
from holdfast.flow.batch import Name
from holdfast.sinks.kafka.messages import Message

T = TypeVar("T")
PATIENCE = 10.0
SEND_PATIENCE = 60.0
TRANSACTION_TIMEOUT_MS = 120_000
"""How long the brokers keep a transaction open whose producer is gone, unless its partition is taken over before."""
MAX_QUEUED_KILOBYTES = 65_536
PRODUCERS = 32
"""Producers that are kept for the next commit of their partition."""


class SentCommit(NamedTuple):
    """The last commit of a partition that is in the topic."""

    sequence: int
    id: str


class CommitProducer:
    """Sends commits to one topic. Used by one thread."""

    def __init__(self, properties: Mapping[str, Any], topic: str, identity: str) -> None:
        """`identity` distinguishes this sink from others of the same cluster."""
        self._properties = dict(properties)
        self._topic = topic
        self._identity = identity
        self._producers: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
        self._admin: Any = None

    def check(self) -> str:
        """Raise `Refused` if the topic does not exist, `SinkUnavailable` if no broker responds."""
        (future,) = self._client().describe_topics(TopicCollection([self._topic]), request_timeout=PATIENCE).values()
        try:
            partitions = len(future.result().partitions)
        except KafkaException as error:
            if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                raise Refused(f"topic {self._topic} does not exist; create it") from error
            raise SinkUnavailable(f"topic {self._topic} cannot be described: {error.args[0].str()}") from error
        return f"topic {self._topic} has {partitions} partitions"

    def last_commits(self, names: Sequence[Name]) -> list[SentCommit | None]:
        """By partition of the pipeline, the last commit that was sent; None if there is none. Raises as `check`."""
        return [self._last_commit(name) for name in names]

    def _last_commit(self, name: Name) -> SentCommit | None:
        group = ConsumerGroupTopicPartitions(self._group(name), [TopicPartition(self._topic, 0)])
        futures = self._client().list_consumer_group_offsets([group], require_stable=True, request_timeout=PATIENCE)
        (future,) = futures.values()
        (partition,) = _responding("read the last commit", lambda: future.result(2 * PATIENCE)).topic_partitions
        if partition.error is not None:
            raise SinkUnavailable(f"cannot read the last commit: {partition.error.str()}")
        return None if partition.offset < 0 else SentCommit(partition.offset, partition.metadata or "")

    def send(self, name: Name, commit: SentCommit, messages: Iterable[Message]) -> None:
        """Send the messages of a commit in one transaction, unless they were sent. May be repeated, by any node.

        Raises `SinkUnavailable`, also if another node sends the same commit, and `Halt` if the topic has another commit
        of that number. What was sent is not visible then, unless the brokers have committed it without saying so.
        """
        producer, group = self._fencing(name)
        try:
            if is_sent(commit, self.last_commits([name])[0]):
                return
            _responding("begin a transaction", producer.begin_transaction)
            refusals: list[str] = []
            for message in messages:
                _produce(producer, self._topic, message, refusals)
            offset = TopicPartition(self._topic, 0, commit.sequence, metadata=commit.id)
            _committed(producer, offset, group, refusals)
        except BaseException:
            self._drop(name)
            raise

    def close(self) -> None:
        """Forget all producers. Never raises."""
        for name in list(self._producers):
            self._abort(name)

    def _client(self) -> Any:
        self._admin = self._admin or AdminClient(self._properties)
        return self._admin

    def _group(self, name: Name) -> str:
        text = json.dumps([self._identity, name.stream, name.label])
        return f"holdfast-sink-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _fencing(self, name: Name) -> tuple[Any, Any]:
        """A producer that has fenced all others of the partition, and the metadata of the partition's group."""
        group = self._group(name)
        if group in self._producers:
            self._producers.move_to_end(group)
            return self._producers[group]
        settings = {
            "queue.buffering.max.kbytes": MAX_QUEUED_KILOBYTES,
            **self._properties,
            "transactional.id": group,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        producer = Producer(settings)
        _responding("begin a transaction", lambda: producer.init_transactions(PATIENCE))
        connection = {key: value for key, value in self._properties.items() if key != "message.max.bytes"}
        consumer = Consumer({**connection, "group.id": group})
        self._producers[group] = producer, consumer.consumer_group_metadata()
        consumer.close()
        if len(self._producers) > PRODUCERS:
            self._abort(next(iter(self._producers)))
        return self._producers[group]

    def _drop(self, name: Name) -> None:
        self._abort(self._group(name))

    def _abort(self, group: str) -> None:
        producer, _ = self._producers.pop(group, (None, None))
        if producer is not None:
            with suppress(KafkaException):  # the next one aborts it, too
                producer.purge()
                producer.abort_transaction(PATIENCE)


class DirectProducer:
    """Sends messages outside of transactions. `flush` returns when all have arrived."""

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        self._producer = Producer({"enable.idempotence": True, **properties})
        self._topic = topic
        self._refusals: list[str] = []

    def send(self, message: Message) -> None:
        """May return before the message has arrived. Raises `SinkUnavailable`."""
        _produce(self._producer, self._topic, message, self._refusals)

    def flush(self) -> None:
        """Raises `SinkUnavailable` if a message has not arrived."""
        left = self._producer.flush(SEND_PATIENCE)
        if left or self._refusals:
            reason = self._refusals[0] if self._refusals else f"{left} messages are not acknowledged"
            raise SinkUnavailable(f"topic {self._topic} does not take messages: {reason}")

    def close(self) -> None:
        """Forget what was not sent. Never raises."""
        self._producer.purge()


def is_sent(commit: SentCommit, last: SentCommit | None) -> bool:
    """Whether the commit is in the topic, of which `last` is the last one.

    Raises `Halt` if the topic has another commit of that number.
    """
    if last is None or last.sequence < commit.sequence:
        return False
    if last.sequence == commit.sequence and last.id != commit.id:
        raise Halt(f"store and topic disagree: commit {commit.sequence} is {commit.id}, and the topic has {last.id}")
    return True


def _produce(producer: Any, topic: str, message: Message, refusals: list[str]) -> None:
    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            refusals.append(error.str())

    where = {} if message.partition < 0 else {"partition": message.partition}
    give_up = time.monotonic() + SEND_PATIENCE
    while True:
        try:
            producer.produce(topic, message.value, message.key, headers=message.headers, on_delivery=delivered, **where)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            raise SinkUnavailable(f"topic {topic} does not take a message: {error.args[0].str()}") from error
        if time.monotonic() > give_up:
            raise SinkUnavailable(f"the brokers take no messages: topic {topic}")


def _committed(producer: Any, offset: Any, group: Any, refusals: Sequence[str]) -> None:
    try:
        _responding("commit", lambda: producer.send_offsets_to_transaction([offset], group, SEND_PATIENCE))
        _responding("commit", lambda: producer.commit_transaction(SEND_PATIENCE))
    except SinkUnavailable as error:
        if not refusals:
            raise
        # The transaction only counts the messages that were refused; this is why.
        raise SinkUnavailable(f"topic {offset.topic} refuses messages: {refusals[0]}") from error


def _responding(action: str, request: Callable[[], T]) -> T:
    try:
        return request()
    except KafkaException as error:
        raise SinkUnavailable(f"cannot {action}: {error.args[0].str()}") from error
    except TimeoutError as error:
        raise SinkUnavailable(f"cannot {action}: the brokers do not respond") from error
