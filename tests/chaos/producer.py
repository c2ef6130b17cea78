"""Who writes to Kafka all the time, and remembers what the broker has acknowledged.

Every message tells its topic, its partition and its number. What is in the log at the end is the truth: a message whose
acknowledgement was lost by a restart may be there or not, but one that was acknowledged must be.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from tests.servers.kafka import KafkaServer

FIRST_HOUR = 1_767_225_600  # 2026-01-01 00:00 UTC
HOURS = 5
EVERY = 0.25
SILENT_AFTER = 20.0


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def message(topic_partition: TopicPartition, number: int) -> bytes:
    """The message of that number; its hour follows from the number."""
    record = {
        "t": topic_partition.topic,
        "p": topic_partition.partition,
        "n": number,
        "ts": FIRST_HOUR + number % HOURS * 3600,
    }
    return json.dumps(record).encode()


class Writer:
    """Writes `burst` messages to every partition, again and again, in a thread of its own."""

    def __init__(self, kafka: KafkaServer, topics: Mapping[str, int], burst: int) -> None:
        self._kafka = kafka
        self._burst = burst
        self._topic_partitions = [
            TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)
        ]
        self._numbers = dict.fromkeys(self._topic_partitions, 0)
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: dict[TopicPartition, dict[int, int]] = {
            topic_partition: {} for topic_partition in self._topic_partitions
        }
        """Number of each message by its offset."""

    def __enter__(self) -> Self:
        for topic in {topic_partition.topic for topic_partition in self._topic_partitions}:
            self._kafka.create_topic(
                topic, sum(topic_partition.topic == topic for topic_partition in self._topic_partitions)
            )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Write no more; returns when everything that was written is acknowledged or given up."""
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        # A broker that is down is the test's own doing: nothing to log.
        quiet = {"log_level": 0, "delivery.timeout.ms": 120_000}
        producer = Producer({"bootstrap.servers": self._kafka.bootstrap, "enable.idempotence": True, **quiet})
        while not self._enough.wait(EVERY):
            for topic_partition in self._topic_partitions:
                for _ in range(self._burst):
                    self._send(producer, topic_partition)
            producer.poll(0)
        producer.flush(120)

    def _send(self, producer: Any, topic_partition: TopicPartition) -> None:
        number = self._numbers[topic_partition]
        self._numbers[topic_partition] += 1

        def delivered(error: Any, written: Any) -> None:
            if error is None:
                self.acknowledged[topic_partition][written.offset()] = number

        producer.produce(
            topic_partition.topic,
            message(topic_partition, number),
            partition=topic_partition.partition,
            on_delivery=delivered,
        )

    def log(self) -> dict[TopicPartition, dict[int, int]]:
        """What the log has now: number of each message by its offset."""
        return {topic_partition: _read(self._kafka, topic_partition) for topic_partition in self._topic_partitions}


def _read(kafka: KafkaServer, topic_partition: TopicPartition) -> dict[int, int]:
    first, end = kafka.offsets(*topic_partition)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "oracle", "enable.auto.commit": False})
    found: dict[int, int] = {}
    at = first
    try:
        consumer.assign([KafkaPartition(*topic_partition, first)])
        while at < end:
            got = consumer.consume(end - at, timeout=SILENT_AFTER)
            assert got, f"the broker is silent about {topic_partition}"
            for received in got:
                assert received.error() is None, received.error()
                at = (received.offset() or 0) + 1
                found[at - 1] = json.loads(received.value() or b"")["n"]
    finally:
        consumer.close()
    return found
