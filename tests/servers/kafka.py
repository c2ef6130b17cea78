"""A real Kafka broker for tests and benchmarks: one node (KRaft) on loopback, and what tests do to its topics.

    with running(KafkaServer) as kafka:
        kafka.create_topic("orders", partitions=2)
        kafka.produce("orders", [b"one", {"value": b"two", "key": b"k", "timestamp": 5}], partition=0)

It can be stopped, killed (`crash`), frozen and thawed, and started again on the same port with its data. Nothing ages
out of a topic unless the test says so, and no topic appears because somebody asked for it.
"""

from __future__ import annotations

import base64
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from holdfast.spark.java import find_java
from tests.servers.java import server_options
from tests.servers.processes import HOW_TO_INSTALL, Server, cache_folder, free_port, run

VERSION = "4.3.1"
ANSWER_WITHIN = 30.0
CHUNK = 50_000  # messages; half of what a producer holds back by default

_LOGGING = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = INFO
"""
_STARTED = b"Kafka Server started"

AUTHORIZING = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Settings of a broker that can `deny` topics, and denies none at first."""

Record = bytes | Mapping[str, Any]
"""A value alone, or any of `value`, `key`, `timestamp` (milliseconds) and `headers` (pairs of name and bytes)."""


class KafkaServer(Server):
    """Settings are the broker's own names, such as `auto.create.topics.enable`, and win over ours."""

    refuses_root = False

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._controller_port = free_port()
        self._log_seen = 0

    @property
    def bootstrap(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def initialise(self) -> None:
        (self.folder / "logging.properties").write_text(_LOGGING)
        lines = [f"{name}={value}\n" for name, value in {**self._defaults(), **self.settings}.items()]
        (self.folder / "server.properties").write_text("".join(lines))
        # Joined by "=": one id in 64 begins with a dash and would be taken for an option.
        storage = ("kafka.tools.StorageTool", "format", f"--cluster-id={_cluster_id(uuid.uuid4())}")
        run(*self._java("-XX:TieredStopAtLevel=1"), *storage, "-c", str(self.folder / "server.properties"))

    def command(self) -> Sequence[str]:
        return (*self._java("-Xms128m", "-Xmx512m"), "kafka.Kafka", str(self.folder / "server.properties"))

    def start(self) -> None:
        log = self.folder / "log"
        self._log_seen = log.stat().st_size if log.exists() else 0
        super().start()

    def _answers(self) -> bool:
        # It takes connections a little before it can serve them, so that its own word is waited for.
        with (self.folder / "log").open("rb") as log:
            log.seek(self._log_seen)
            return _STARTED in log.read()

    def _java(self, *options: str) -> Sequence[str]:
        jars = kafka_jars()
        if not jars.is_dir():
            raise RuntimeError(f"there is no Kafka in {jars}; {HOW_TO_INSTALL}")
        logging = f"-Dlog4j2.configurationFile={self.folder / 'logging.properties'}"
        return (str(find_java().program), *options, *server_options(jars), logging, "-cp", f"{jars}/*")

    def _defaults(self) -> Mapping[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": "8388608",
            # A killed broker is let in again only when its old self has timed out.
            "broker.heartbeat.interval.ms": "1000",
            "broker.session.timeout.ms": "4000",
        }

    # --- topics ------------------------------------------------------------------------------------------------

    def admin(self) -> AdminClient:
        """A client for one's own use. Keep it until its futures are done: without it they never are."""
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Make the topic; `settings` are Kafka's, with `_` for `.`. Returns when every partition can be used."""
        config = {"retention.ms": "-1", **{name.replace("_", "."): value for name, value in settings.items()}}
        admin = self.admin()
        _wait(admin.create_topics([NewTopic(topic, partitions, 1, config=config)]))
        _until(lambda: self._ready_partitions(admin, topic) == partitions)

    def add_partitions(self, topic: str, total: int) -> None:
        """Let the topic have that many partitions, which is more than it had."""
        admin = self.admin()
        _wait(admin.create_partitions([NewPartitions(topic, total)]))
        _until(lambda: self._ready_partitions(admin, topic) == total)

    def forget_group(self, group: str) -> None:
        """Delete the offsets of a consumer group, as the broker does after `offsets.retention.minutes`."""
        admin = self.admin()
        _wait(admin.delete_consumer_groups([group]))

    def delete_topic(self, topic: str) -> None:
        admin = self.admin()
        _wait(admin.delete_topics([topic]))
        _until(lambda: topic not in admin.list_topics(timeout=ANSWER_WITHIN).topics)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let everything below that offset age out."""
        admin = self.admin()
        _wait(admin.delete_records([TopicPartition(topic, partition, before)]))

    @contextmanager
    def denied(self, topic: str) -> Iterator[None]:
        """While it lasts, nobody may look at the topic. The broker must have `AUTHORIZING`."""
        rule = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", AclOperation.ALL)
        admin = self.admin()
        _wait(admin.create_acls([AclBinding(*rule, AclPermissionType.DENY)]))
        _until(lambda: topic not in admin.list_topics(timeout=ANSWER_WITHIN).topics)
        try:
            yield
        finally:
            _wait(admin.delete_acls([AclBindingFilter(*rule, AclPermissionType.DENY)]))
            _until(lambda: topic in admin.list_topics(timeout=ANSWER_WITHIN).topics)

    def lose_logs(self, *topics: str) -> None:
        """Start again without the records of these topics' first partitions, as after a failed disk."""
        self.stop()
        for topic in topics:
            shutil.rmtree(self.folder / "data" / f"{topic}-0")
        self.start()

    def offsets(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The first offset that is there and the one that comes next."""
        admin, topic_partition = self.admin(), TopicPartition(topic, partition)
        (first,) = _wait(admin.list_offsets({topic_partition: OffsetSpec.earliest()}))
        (end,) = _wait(admin.list_offsets({topic_partition: OffsetSpec.latest()}))
        return first.offset, end.offset

    def _ready_partitions(self, admin: AdminClient, topic: str) -> int:
        found = admin.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic]
        led = [number for number, partition in found.partitions.items() if partition.leader >= 0]
        # The broker shows a topic before it has the logs, and refuses messages until then: their ends tell.
        return len(_ends(admin, topic, led))

    # --- messages ----------------------------------------------------------------------------------------------

    def producer(self, **settings: Any) -> Producer:
        """A producer of one's own, for transactions and the like; settings with `_` for `.`."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5, **given})

    def produce(self, topic: str, records: Iterable[Record], partition: int = 0, **settings: Any) -> None:
        """Write the records in that order; returns when the broker has all of them, else raises.

        Records with headers or timestamps go one by one, the others in batches. `settings` as for `producer`.
        """
        producer, failures = self.producer(**settings), list[Any]()

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        left = iter(records)
        while chunk := [_as_dict(record) for record in islice(left, CHUNK)]:
            if any("headers" in record or "timestamp" in record for record in chunk):
                for record in chunk:
                    producer.produce(topic, partition=partition, on_delivery=delivered, **record)
            else:
                producer.produce_batch(topic, chunk, partition, on_delivery=delivered)
            unsent = producer.flush(ANSWER_WITHIN)
            failures += [record["_error"] for record in chunk if "_error" in record]
            if failures or unsent:
                raise RuntimeError(f"{unsent} messages not sent, {len(failures)} refused: {failures[:3]}")

    def committed_messages(self, topic: str) -> list[Any]:
        """All messages that a reader of committed messages gets, partition by partition. No transaction may be open."""
        admin = self.admin()
        partitions = range(len(admin.list_topics(topic, timeout=ANSWER_WITHIN).topics[topic].partitions))
        # A producer's commit returns before each partition shows it.
        _until(lambda: _ends(admin, topic, partitions, "READ_UNCOMMITTED") == _ends(admin, topic, partitions))
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "test", "enable.partition.eof": True}
        found: dict[int, list[Any]] = {number: [] for number in partitions}
        with closing(Consumer({**settings, "isolation.level": "read_committed"})) as consumer:
            consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
            ended: set[int] = set()
            while len(ended) < len(found):
                message: Any = consumer.poll(ANSWER_WITHIN)
                assert message is not None
                if message.error() is None:
                    found[message.partition()].append(message)
                else:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    ended.add(message.partition())
        return [message for messages in found.values() for message in messages]


def kafka_jars() -> Path:
    """Where scripts/install_servers.sh puts the broker."""
    return cache_folder() / f"kafka-{VERSION}"


def _ends(admin: AdminClient, topic: str, partitions: Iterable[int], isolation: str = "READ_COMMITTED") -> list[int]:
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
    return [end.offset for end in _wait(admin.list_offsets(wanted, isolation_level=IsolationLevel[isolation]))]


def _as_dict(record: Record) -> dict[str, Any]:
    return {"value": record} if isinstance(record, bytes) else dict(record)


def _wait(futures: Mapping[Any, Any]) -> list[Any]:
    return [future.result(ANSWER_WITHIN) for future in futures.values()]


def _until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + ANSWER_WITHIN
    while not _quietly(holds):
        if time.monotonic() > give_up_at:
            raise TimeoutError("the broker has accepted the change, but does not show it")
        time.sleep(0.02)


def _quietly(holds: Callable[[], bool]) -> bool:
    """Whether it holds; a broker that has not heard of a change yet may answer with an error."""
    try:
        return holds()
    except (KafkaException, KeyError):
        return False


def _cluster_id(identity: uuid.UUID) -> str:
    """In Kafka's way of writing one."""
    return base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=")
