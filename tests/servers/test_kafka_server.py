"""The broker that other tests rely on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tests.servers.kafka import KafkaServer, Record
from tests.servers.processes import running


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaServer]:
    with running(KafkaServer) as server:
        yield server


def read(kafka: KafkaServer, topic: str, partition: int = 0) -> list[Message]:
    """Everything that is in the partition now."""
    first, end = kafka.offsets(topic, partition)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "tests", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        found: list[Message] = []
        while first + len(found) < end:
            got = consumer.consume(end - first - len(found), timeout=10)
            assert got, "the broker is silent"
            found += got
        return found
    finally:
        consumer.close()


def values(kafka: KafkaServer, topic: str, partition: int = 0) -> list[bytes | str | None]:
    return [message.value() for message in read(kafka, topic, partition)]


def test_records_come_back_as_they_were_written(kafka: KafkaServer) -> None:
    kafka.create_topic("whole")
    records: list[Record] = [
        b"plain",
        {"value": b"v", "key": b"k", "timestamp": 5},
        {"value": None, "key": b"gone", "headers": [("h", b"1"), ("h", b"2")]},
    ]
    kafka.produce("whole", records)
    kafka.produce("whole", [{"value": b"batched", "key": b"k"}])
    found = read(kafka, "whole")
    assert [(m.value(), m.key(), m.headers()) for m in found] == [
        (b"plain", None, None),
        (b"v", b"k", None),
        (None, b"gone", [("h", b"1"), ("h", b"2")]),
        (b"batched", b"k", None),
    ]
    assert found[1].timestamp()[1] == 5


def test_many_records_keep_their_order(kafka: KafkaServer) -> None:
    kafka.create_topic("many", partitions=2)
    written = [b"%d" % number for number in range(120_000)]
    kafka.produce("many", written, partition=1)
    assert values(kafka, "many", 1) == written
    assert kafka.offsets("many", 0) == (0, 0)


def test_a_message_that_the_broker_refuses_raises(kafka: KafkaServer) -> None:
    kafka.create_topic("small", max_message_bytes="100")
    with pytest.raises((RuntimeError, KafkaException)):
        kafka.produce("small", [os.urandom(5_000)])
    assert kafka.offsets("small") == (0, 0)


def test_topics_grow_age_and_go(kafka: KafkaServer) -> None:
    kafka.create_topic("life")
    kafka.add_partitions("life", 3)
    kafka.produce("life", [b"a", b"b", b"c"], partition=2)
    kafka.delete_records("life", 2, before=2)
    assert kafka.offsets("life", 2) == (2, 3)
    kafka.delete_topic("life")
    assert "life" not in kafka.admin().list_topics(timeout=10).topics


def test_asking_for_a_topic_does_not_make_it(kafka: KafkaServer) -> None:
    with pytest.raises((RuntimeError, KafkaException)):
        kafka.produce("nowhere", [b"lost"], message_timeout_ms=2000)
    assert "nowhere" not in kafka.admin().list_topics(timeout=10).topics


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_records_survive_a_restart_on_the_same_port(kafka: KafkaServer, end: str) -> None:
    topic, port = f"kept-{end}", kafka.port
    kafka.create_topic(topic)
    kafka.produce(topic, [b"before"])
    getattr(kafka, end)()
    kafka.start()
    kafka.produce(topic, [b"after"])
    assert values(kafka, topic) == [b"before", b"after"]
    assert kafka.port == port


def test_a_frozen_broker_is_silent_and_goes_on_when_thawed(kafka: KafkaServer) -> None:
    kafka.create_topic("frozen")
    admin = kafka.admin()
    kafka.freeze()
    try:
        with pytest.raises(KafkaException):
            admin.list_topics("frozen", timeout=1)
    finally:
        kafka.thaw()
    kafka.produce("frozen", [b"late"])
    assert values(kafka, "frozen") == [b"late"]
