"""The source `kafka` on a real broker, without Spark: where partitions begin, what is planned, what halts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from holdfast.errors import Halt, SourceUnavailable
from holdfast.events import LagMeasured, RecordsLost, TopicDenied, WaitsBehindTransaction
from holdfast.flow.batch import Cut, Limits, Plan, Wait
from holdfast.leases.lease import Lease, Progress, new_lease
from holdfast.sources.kafka.cluster import Cluster, TopicPartition
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.consumer_group import GroupOffsets
from holdfast.sources.kafka.source import KafkaSource
from tests.servers.kafka import KafkaServer
from tests.servers.processes import free_port

AN_HOUR_AGO = int(time.time() - 3600) * 1000
LIMITS = Limits()


class Reader:
    """A source with a clock that can be turned, and the leases of what it finds."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        self.ahead = 0.0
        chosen = {"bootstrap_servers": bootstrap, "commit_offsets": False, "upload": {"max_age": "1s"}, **settings}
        self.source = KafkaSource(KafkaConfig.model_validate(chosen), now=lambda: time.time() + self.ahead)
        self.state: dict[str, Any] = {}

    def found(self) -> dict[str, Lease]:
        return {found.key: new_lease("archive", found, "w", now=0.0) for found in self.source.discover(self.state)}

    def plan(self, lease: Lease) -> Plan:
        """What is due for that partition when everything that waits is old."""
        self.source.plan([lease], LIMITS)
        self.ahead += 10
        (plan,) = self.source.plan([lease], LIMITS)
        return plan

    def range(self, lease: Lease) -> tuple[int, int]:
        plan = self.plan(lease)
        assert isinstance(plan, Cut), plan
        return plan.start["offset"], plan.end["offset"]


@contextmanager
def reader(kafka: KafkaServer, **settings: Any) -> Iterator[Reader]:
    made = Reader(kafka.bootstrap, **settings)
    try:
        made.source.open()
        yield made
    finally:
        made.source.close()


def at(lease: Lease, offset: int) -> Lease:
    return replace(lease, progress=Progress(position={"offset": offset}))


def committed(kafka: KafkaServer, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:
        (committed,) = consumer.committed([KafkaPartition(topic, 0)], timeout=10)
        return int(committed.offset)
    finally:
        consumer.close()


def commit(kafka: KafkaServer, group: str, topic: str, offset: int) -> None:
    """As another tool would; the first of all commits waits until the broker keeps offsets."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False})
    give_up_at = time.monotonic() + 30
    while not _commits(consumer, KafkaPartition(topic, 0, offset)):
        assert time.monotonic() < give_up_at
    consumer.close()


def _commits(consumer: Consumer, offset: KafkaPartition) -> bool:
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return False
    return True


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, 3),
        ({"start": "latest"}, 10),
        ({"start": "offset", "start_offset": 6}, 6),
        ({"start": "time", "start_time": (AN_HOUR_AGO + 5_000) / 1000}, 5),
        ({"start": "group", "start_group": "other-tool"}, 8),
    ],
    ids=lambda value: value.get("start", "earliest") if isinstance(value, dict) else "",
)
def test_a_partition_that_was_never_read_begins_where_the_setting_says(
    kafka_server: KafkaServer, settings: dict[str, Any], first: int
) -> None:
    topic = f"begins-{settings.get('start', 'earliest')}"
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, [{"value": b"%d" % n, "timestamp": AN_HOUR_AGO + n * 1000} for n in range(10)])
    kafka_server.delete_records(topic, 0, 3)
    commit(kafka_server, "other-tool", topic, 8)
    with reader(kafka_server, topics=[topic], **settings) as reading:
        lease = reading.found()[f"{topic}|0"]
        # What comes later moves nothing: the beginning is pinned when the partition is found.
        kafka_server.produce(topic, [b"10", b"11"])
        assert reading.range(lease) == (first, 12)


def test_partitions_and_topics_that_are_found_later_begin_at_their_first_record(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("later-a")
    kafka_server.produce("later-a", [b"old"] * 5)
    with reader(kafka_server, topics_pattern="later-.*", start="latest") as reading:
        assert reading.found().keys() == {"later-a|0"}
        kafka_server.add_partitions("later-a", 2)
        kafka_server.produce("later-a", [b"new"] * 4, partition=1)
        kafka_server.create_topic("later-b")
        kafka_server.produce("later-b", [b"new"] * 3)
        found = reading.found()
        assert found.keys() == {"later-a|0", "later-a|1", "later-b|0"}
        assert reading.range(found["later-a|1"]) == (0, 4)
        assert reading.range(found["later-b|0"]) == (0, 3)


def test_topics_of_kafka_itself_match_no_pattern(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("own")
    commit(kafka_server, "makes-the-offsets-topic", "own", 0)
    with reader(kafka_server, topics_pattern=".*") as reading:
        assert "own|0" in reading.found()
        assert not any(key.startswith("__") for key in reading.found())


def test_what_a_transaction_has_not_committed_is_not_planned(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("deals")
    kafka_server.produce("deals", [b"plain"] * 2)
    producer = kafka_server.producer(transactional_id="deals")
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("deals", b"undecided", partition=0)
    producer.flush(30)
    with reader(kafka_server, topics=["deals"]) as reading:
        lease = reading.found()["deals|0"]
        assert reading.range(lease) == (0, 2)
        assert isinstance(reading.plan(at(lease, 2)), Wait)
        assert reading.source.extents([at(lease, 2)]) == [(2, 3)]
        reading.source.noticed()
        reading.ahead += 60
        reading.plan(at(lease, 2))
        events = {type(event): event for event in reading.source.noticed()}
        lag, waits = events[LagMeasured], events[WaitsBehindTransaction]
        assert isinstance(lag, LagMeasured)
        assert isinstance(waits, WaitsBehindTransaction)
        assert lag.records == 1
        assert lag.seconds is not None
        assert lag.seconds >= 60
        assert waits.offset == 2
        producer.abort_transaction(30)
        kafka_server.produce("deals", [b"later"])
        # The aborted record and its marker are inside the range; whoever reads it leaves them out.
        assert reading.range(at(lease, 2)) == (2, 5)


@pytest.mark.parametrize("on_loss", ["halt", "record"])
def test_records_that_were_deleted_before_they_were_read_are_reported(kafka_server: KafkaServer, on_loss: str) -> None:
    topic = f"lossy-{on_loss}"
    kafka_server.create_topic(topic)
    kafka_server.produce(topic, [b"x"] * 20)
    with reader(kafka_server, topics=[topic], on_loss=on_loss) as reading:
        lease = at(reading.found()[f"{topic}|0"], 5)
        kafka_server.delete_records(topic, 0, 12)
        plan = reading.plan(lease)
        lost = [event for event in reading.source.noticed() if isinstance(event, RecordsLost)]
        assert [(event.start, event.end) for event in lost] == [(5, 12)]
        if on_loss == "halt":
            assert isinstance(plan, Halt)
        else:
            assert isinstance(plan, Cut)
            assert (plan.start, plan.end, plan.gaps) == ({"offset": 5}, {"offset": 20}, ((5, 12),))


def test_what_was_deleted_behind_another_tools_last_offset_is_a_loss_and_not_skipped(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("taken-over")
    kafka_server.produce("taken-over", [b"x"] * 20)
    commit(kafka_server, "other-tool", "taken-over", 5)
    settings = {"topics": ["taken-over"], "start": "group", "start_group": "other-tool"}
    with reader(kafka_server, **settings) as reading:
        lease = reading.found()["taken-over|0"]
        kafka_server.delete_records("taken-over", 0, 12)
        assert isinstance(reading.plan(lease), Halt)
        lost = [event for event in reading.source.noticed() if isinstance(event, RecordsLost)]
        assert [(event.start, event.end) for event in lost] == [(5, 12)]


def test_a_topic_that_was_created_anew_halts_what_was_read_of_the_old_one(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("reborn")
    kafka_server.produce("reborn", [b"old"] * 5)
    with reader(kafka_server, topics=["reborn"]) as reading:
        lease = at(reading.found()["reborn|0"], 3)
        kafka_server.delete_topic("reborn")
        assert isinstance(reading.plan(lease), Wait)
        kafka_server.create_topic("reborn")
        kafka_server.produce("reborn", [b"new"] * 9)
        plan = reading.plan(lease)
        assert isinstance(plan, Halt), plan
        assert "created again" in str(plan)


def test_unread_records_of_a_topic_that_was_deleted_are_lost(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("dropped")
    kafka_server.produce("dropped", [b"x"] * 5)
    with reader(kafka_server, topics=["dropped"]) as reading:
        lease = at(reading.found()["dropped|0"], 3)
        reading.plan(lease)
        kafka_server.delete_topic("dropped")
        assert isinstance(reading.plan(lease), Wait)
        reading.ahead += 61
        plan = reading.plan(lease)
        assert isinstance(plan, Halt), plan
        assert plan.lost == (3, 5)
        lost = [event for event in reading.source.noticed() if isinstance(event, RecordsLost)]
        assert [(event.start, event.end) for event in lost] == [(3, 5)]


def test_a_topic_that_we_may_not_read_holds_up_no_other(kafka_server: KafkaServer) -> None:
    for topic in ("closed", "public"):
        kafka_server.create_topic(topic)
        kafka_server.produce(topic, [b"x"] * 5)
    with reader(kafka_server, topics=["closed", "public"]) as reading:
        leases = reading.found()
        with kafka_server.denied("closed"):
            assert reading.found().keys() == {"public|0"}
            reading.source.plan(list(leases.values()), LIMITS)
            reading.ahead += 10
            closed, public = reading.source.plan([leases["closed|0"], leases["public|0"]], LIMITS)
            assert isinstance(closed, Wait)
            assert isinstance(public, Cut)
            (denied,) = [event for event in reading.source.noticed() if isinstance(event, TopicDenied)]
            assert denied.key == "closed|0"
            assert "authorization" in denied.error
        assert reading.range(leases["closed|0"]) == (0, 5)
        reading.source.open()


def test_a_log_that_was_truncated_and_filled_again_is_noticed_and_a_mere_restart_is_not(
    kafka_server: KafkaServer,
) -> None:
    topics = ("refilled", "filled-more", "kept")
    for topic in topics:
        kafka_server.create_topic(topic)
        kafka_server.produce(topic, [b"old"] * 5)
    with reader(kafka_server, topics=topics) as reading:
        plans = {key: (lease, reading.plan(lease)) for key, lease in reading.found().items()}
    read = {
        key: replace(lease, progress=Progress({"offset": 5}, state=plan.state))
        for key, (lease, plan) in plans.items()
        if isinstance(plan, Cut)
    }
    kafka_server.lose_logs("refilled", "filled-more")
    for topic, records in zip(topics, (5, 8, 2), strict=True):
        kafka_server.produce(topic, [b"new"] * records)
    with reader(kafka_server, topics=topics) as another:
        assert another.range(read["kept|0"]) == (5, 7)
        for key in ("refilled|0", "filled-more|0"):
            assert "truncated below offset 5" in str(another.plan(read[key]))


def test_offsets_of_the_group_go_forwards_only_whoever_writes_them(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("lagged")
    kafka_server.produce("lagged", [b"x"] * 20)
    commit(kafka_server, "makes-the-offsets-topic", "lagged", 0)
    topic_partition, properties = TopicPartition("lagged", 0), {"bootstrap.servers": kafka_server.bootstrap}
    for offsets, expected in (((12, 7), 12), ((9,), 12), ((15,), 15)):
        group = GroupOffsets(properties, "archive")  # another node each time
        for offset in offsets:
            group.advance({topic_partition: offset})
        group.close()
        assert group.trouble() is None
        assert committed(kafka_server, "archive", "lagged") == expected


def test_brokers_that_are_away_are_said_to_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sources.kafka.cluster.PATIENCE", 1.0)
    nobody = Reader(f"127.0.0.1:{free_port()}", topics=["orders"])
    with pytest.raises(SourceUnavailable):
        nobody.source.open()
    with pytest.raises(SourceUnavailable):
        nobody.found()
    with pytest.raises(SourceUnavailable):
        Cluster({"bootstrap.servers": f"127.0.0.1:{free_port()}"}, "read_committed").ends([TopicPartition("orders", 0)])


def test_a_partition_can_be_peeked_at_again_and_again(kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("peeked")
    records = [{"value": b"x" * number, "key": b"k", "timestamp": AN_HOUR_AGO + number} for number in range(3)]
    kafka_server.produce("peeked", records, partition=0)
    cluster = Cluster({"bootstrap.servers": kafka_server.bootstrap}, "read_committed")
    try:
        seen = [cluster.peek({TopicPartition("peeked", 0): offset})[TopicPartition("peeked", 0)] for offset in range(3)]
    finally:
        cluster.close()
    assert seen == [((AN_HOUR_AGO + number) / 1000, number + 1) for number in range(3)]
