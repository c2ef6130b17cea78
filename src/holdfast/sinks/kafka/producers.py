"""Producers of the sink `kafka`: transactions that hold the messages of a commit, and messages that are sent at once.

A transaction also holds an offset of a consumer group that belongs to one partition of the pipeline: the number of the
commit, with its id as metadata. The group has no members; its offset says which commit was sent last. A node that
publishes a commit fences all others by the transactional id of the partition, which ends their transactions, and then
reads that offset: the commit is in the topic, or it never will be unless it is sent now.

A consumer of the group reads the offset. An `AdminClient` could read those of all groups, but librdkafka (2.16 and
before) then ends the process with a segmentation fault if the broker is not, or not yet, the coordinator of the group.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from holdfast.errors import Halt, Refused, SinkUnavailable
from holdfast.flow.batch import Name
from holdfast.sinks.kafka.messages import Message

T = TypeVar("T")
PATIENCE = 10.0
"""How long the brokers have to respond, in seconds."""
SEND_PATIENCE = 40.0
"""Seconds that the brokers have for a part of a commit. With an abort it is less than a step of the loop may take."""
TRANSACTION_TIMEOUT_MS = 120_000
"""How long the brokers keep a transaction open whose producer is gone, unless its partition is taken over before."""
MAX_QUEUED_KILOBYTES = 65_536
PRODUCERS = 256
"""Producers that are kept for the next commit of their partition; each has a handful of threads."""
IDLE_AFTER = 60.0
"""Seconds without a commit after which a producer may be forgotten for the sake of another one."""
SHORTEST_MEMORY, USUAL_MEMORY = 60.0, 86_400.0
"""Seconds for which brokers remember offsets: the least that can be set, and the least that was ever the default."""
NOT_SHOWN = ("CLUSTER_AUTHORIZATION_FAILED", "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE")
"""Errors of brokers that do not show their settings, to this user or to anyone."""
CONSUMERS = 16
"""Consumers that connect at the same time."""
MOVING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
"""Errors while the coordinator of a group starts or moves. The consumer finds the new one."""
PAUSE = 0.1


class SentCommit(NamedTuple):
    """The last commit of a partition that is in the topic, or one that is to be sent."""

    sequence: int
    id: str
    made_at: float = math.inf
    """When it was staged, in seconds since 1970, if that is known."""


@dataclass
class _PartitionProducer:
    """A producer that has fenced all others of its partition.

    As long as it can commit, no other producer has sent anything since then.
    """

    client: Any
    group: Any
    """The metadata of the partition's group."""
    last: SentCommit | None
    used_at: float = 0.0


class _Budget:
    """The time that a part of a commit may take. Each part is a sign of life of the step that sends the commit."""

    def __init__(self, progress: Callable[[], None]) -> None:
        self._progress = progress
        self.renew()

    def renew(self) -> None:
        self._progress()
        self._until = time.monotonic() + SEND_PATIENCE

    @property
    def left(self) -> float:
        return max(0.0, self._until - time.monotonic())


class CommitProducer:
    """Sends commits to one topic. Used by one thread."""

    def __init__(self, properties: Mapping[str, Any], topic: str, identity: str) -> None:
        """`identity` distinguishes this sink from others of the same cluster."""
        self._properties = dict(properties)
        self._topic = topic
        self._identity = identity
        self.patience = PATIENCE
        self._producers: OrderedDict[str, _PartitionProducer] = OrderedDict()

    def partitions(self) -> int:
        """The number of the topic's partitions, see `partition_count`."""
        return partition_count(self._properties, self._topic, self.patience)

    def last_commits(self, names: Sequence[Name]) -> list[SentCommit | None]:
        """By partition of the pipeline, the last commit that was sent; None if there is none. Raises `SinkUnavailable`.

        A commit that is being sent does not count, also if its node is gone.
        """
        found: list[SentCommit | None] = []
        for first in range(0, len(names), CONSUMERS):
            with ExitStack() as opened:
                consumers = [
                    opened.enter_context(closing(self._consumer(self._group(name), "read_uncommitted")))
                    for name in names[first : first + CONSUMERS]
                ]
                found += [_last_commit(consumer, self._topic, self.patience) for consumer in consumers]
        return found

    def send(
        self,
        name: Name,
        commit: SentCommit,
        parts: Iterable[Iterable[Message]],
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Send the messages of a commit in one transaction, unless they were sent. May be repeated, by any node.

        Raises `SinkUnavailable`, also if another node sends the same commit, and `Halt` if the topic has another commit
        of that number, or if nobody can tell whether it has this one. What was sent is not visible then, unless the
        brokers have committed it and their response was lost. `progress` is called at least every `SEND_PATIENCE`
        seconds.
        """
        group = self._group(name)
        if group not in self._producers and is_sent(commit, self.last_commits([name])[0]):
            return  # without fencing a node that sends a later one
        progress()
        producer = self._fencing(group)
        try:
            if not is_sent(commit, producer.last):
                self._check_memory(group, commit, producer.last)
                self._transact(producer, commit, parts, _Budget(progress))
        except BaseException:
            self._abort(group)
            raise
        self._keep(group, producer)

    def _transact(
        self, producer: _PartitionProducer, commit: SentCommit, parts: Iterable[Iterable[Message]], budget: _Budget
    ) -> None:
        _responding("begin a transaction", producer.client.begin_transaction)
        refusals: list[str] = []
        for messages in parts:
            budget.renew()
            for message in messages:
                _produce(producer.client, self._topic, message, refusals, budget.left)
        budget.renew()
        offset = TopicPartition(self._topic, 0, commit.sequence, metadata=commit.id)
        _committed(producer.client, offset, producer.group, refusals, budget)
        producer.last = commit

    def _check_memory(self, group: str, commit: SentCommit, last: SentCommit | None) -> None:
        """Raise `Halt` if the brokers may have forgotten the offset that a transaction of this commit has left."""
        age = time.time() - commit.made_at
        if last is None and age > SHORTEST_MEMORY and age > self._remembered():
            raise Halt(
                f"commit {commit.sequence} ({commit.id}) is {age / 3600:.0f} hours old, and the brokers do not "
                f"remember the offset of group {group} that long: nobody can tell whether topic {self._topic} has it"
            )

    def _remembered(self) -> float:
        """Seconds for which brokers remember the offset of a group without members. Raises `SinkUnavailable`."""
        admin = AdminClient(self._properties)
        try:
            brokers = iter(admin.list_topics(timeout=self.patience).brokers)
            resource = ConfigResource(ResourceType.BROKER, str(next(brokers, 0)))  # no broker: the next request fails
            (future,) = admin.describe_configs([resource], request_timeout=self.patience).values()
            found = future.result().get("offsets.retention.minutes")
        except KafkaException as error:
            if error.args[0].name() not in NOT_SHOWN:
                raise SinkUnavailable(f"cannot read how long offsets are kept: {error.args[0].str()}") from error
            return USUAL_MEMORY
        return USUAL_MEMORY if found is None or found.value is None else float(found.value) * 60.0

    def close(self) -> None:
        """Forget all producers. Never raises."""
        for group in list(self._producers):
            self._abort(group)

    def _group(self, name: Name) -> str:
        text = json.dumps([self._identity, name.stream, name.label])
        return f"holdfast-sink-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def _consumer(self, group: str, isolation: str) -> Any:
        properties = {key: value for key, value in self._properties.items() if key != "message.max.bytes"}
        settings = {"group.id": group, "enable.auto.commit": False, "isolation.level": isolation}
        return Consumer({**properties, **settings})

    def _fencing(self, group: str) -> _PartitionProducer:
        if group in self._producers:
            return self._producers[group]
        settings = {
            "queue.buffering.max.kbytes": MAX_QUEUED_KILOBYTES,
            **self._properties,
            "transactional.id": group,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        client = Producer(settings)
        _responding("begin a transaction", lambda: client.init_transactions(self.patience))
        # With this isolation, an offset is not read before the transaction that holds it has ended in all of its logs.
        with closing(self._consumer(group, "read_committed")) as consumer:
            last = _last_commit(consumer, self._topic, self.patience)
            self._producers[group] = _PartitionProducer(client, consumer.consumer_group_metadata(), last)
        return self._producers[group]

    def _keep(self, group: str, producer: _PartitionProducer) -> None:
        """Keep the producer for the next commit. If there are too many and none is idle, this one is closed instead.

        Partitions take turns: if the least recently used one were closed, every commit would begin with a new producer.
        """
        producer.used_at = time.monotonic()
        self._producers.move_to_end(group)
        if len(self._producers) > PRODUCERS:
            oldest, found = next(iter(self._producers.items()))
            self._abort(oldest if producer.used_at - found.used_at > IDLE_AFTER else group)

    def _abort(self, group: str) -> None:
        producer = self._producers.pop(group, None)
        if producer is not None:
            with suppress(KafkaException):  # the next one aborts it, too
                producer.client.purge()
                producer.client.abort_transaction(self.patience)


class DirectProducer:
    """Sends messages outside of transactions. `flush` returns when all have arrived."""

    def __init__(self, properties: Mapping[str, Any], topic: str) -> None:
        self._producer = Producer({"enable.idempotence": True, **properties})
        self._topic = topic
        self._refusals: list[str] = []

    def send(self, message: Message) -> None:
        """Send a message; it may not have arrived when this returns. Raises `SinkUnavailable`."""
        _produce(self._producer, self._topic, message, self._refusals)

    def flush(self) -> None:
        """Wait until all messages have arrived. Raises `SinkUnavailable` if one has not."""
        left = self._producer.flush(SEND_PATIENCE)
        if left or self._refusals:
            reason = self._refusals[0] if self._refusals else f"{left} messages are not acknowledged"
            raise SinkUnavailable(f"topic {self._topic} does not take messages: {reason}")

    def close(self) -> None:
        """Forget what was not sent. Never raises."""
        self._producer.purge()


def partition_count(properties: Mapping[str, Any], topic: str, patience: float = PATIENCE) -> int:
    """Return the number of partitions.

    Raises `Refused` if the topic does not exist, `SinkUnavailable` if no broker responds.
    """
    admin = AdminClient(dict(properties))
    (future,) = admin.describe_topics(TopicCollection([topic]), request_timeout=patience).values()
    try:
        return len(future.result().partitions)
    except KafkaException as error:
        if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
            raise Refused(f"topic {topic} does not exist; create it") from error
        raise SinkUnavailable(f"topic {topic} cannot be described: {error.args[0].str()}") from error


def is_sent(commit: SentCommit, last: SentCommit | None) -> bool:
    """Whether the commit is in the topic, whose last commit is `last`.

    Raises `Halt` if the topic has another commit of that number.
    """
    if last is None or last.sequence < commit.sequence:
        return False
    if last.sequence == commit.sequence and last.id != commit.id:
        raise Halt(f"store and topic disagree: commit {commit.sequence} is {commit.id}, and the topic has {last.id}")
    return True


def _last_commit(consumer: Any, topic: str, patience: float) -> SentCommit | None:
    give_up = time.monotonic() + patience
    while True:
        try:
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=give_up - time.monotonic())
        except KafkaException as error:
            if error.args[0].name() not in MOVING or time.monotonic() + PAUSE > give_up:
                raise SinkUnavailable(f"cannot read the last commit: {error.args[0].str()}") from error
            time.sleep(PAUSE)
            continue
        if found.error is not None:
            raise SinkUnavailable(f"cannot read the last commit: {found.error.str()}")
        return None if found.offset < 0 else SentCommit(found.offset, found.metadata or "")


def _produce(producer: Any, topic: str, message: Message, refusals: list[str], patience: float = SEND_PATIENCE) -> None:
    def delivered(error: Any, _message: Any) -> None:
        if error is not None:
            refusals.append(error.str())

    where = {} if message.partition < 0 else {"partition": message.partition}
    give_up = time.monotonic() + patience
    while True:
        try:
            producer.produce(topic, message.value, message.key, headers=message.headers, on_delivery=delivered, **where)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            raise SinkUnavailable(f"topic {topic} does not accept a message: {error.args[0].str()}") from error
        if time.monotonic() > give_up:
            raise SinkUnavailable(f"the brokers accept no messages for topic {topic}")


def _committed(producer: Any, offset: Any, group: Any, refusals: Sequence[str], budget: _Budget) -> None:
    try:
        _responding("commit", lambda: producer.send_offsets_to_transaction([offset], group, budget.left))
        _responding("commit", lambda: producer.commit_transaction(budget.left))
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
