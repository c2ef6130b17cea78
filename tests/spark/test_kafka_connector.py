"""The connector's jars fit this Spark: a session that got them reads exactly the given offsets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.kafka import KafkaServer

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = pytest.mark.spark

Offsets = dict[str, dict[str, int]]


def read(spark: SparkSession, kafka: KafkaServer, starts: Offsets, ends: Offsets, **options: Any) -> list[Row]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).options(**options)
    assigned = {topic: [int(partition) for partition in offsets] for topic, offsets in starts.items()}
    reader = reader.option("assign", json.dumps(assigned)).option("includeHeaders", "true")
    frame = reader.option("startingOffsets", json.dumps(starts)).option("endingOffsets", json.dumps(ends)).load()
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_explicit_ranges_of_two_topics_are_read_in_one_frame(spark: SparkSession, kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("left", partitions=2)
    kafka_server.create_topic("right")
    kafka_server.produce("left", [b"l%d" % number for number in range(10)], partition=1)
    kafka_server.produce("left", [b"other"], partition=0)
    kafka_server.produce("right", [{"value": None, "key": b"k", "timestamp": 5, "headers": [("h", b"1")]}, b"r1"])
    rows = read(spark, kafka_server, {"left": {"1": 3}, "right": {"0": 0}}, {"left": {"1": 6}, "right": {"0": 1}})
    assert [(row.topic, row.partition, row.offset, row.key, row.value) for row in rows] == [
        ("left", 1, 3, None, b"l3"),
        ("left", 1, 4, None, b"l4"),
        ("left", 1, 5, None, b"l5"),
        ("right", 0, 0, b"k", None),
    ]
    assert rows[-1].timestamp.timestamp() == 0.005
    assert [(header.key, header.value) for header in rows[-1].headers] == [("h", b"1")]


def test_rows_of_an_aborted_transaction_are_left_out_if_asked(spark: SparkSession, kafka_server: KafkaServer) -> None:
    kafka_server.create_topic("money")
    producer = kafka_server.producer(transactional_id="tests")
    producer.init_transactions()
    for value, end in ((b"good", producer.commit_transaction), (b"bad", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("money", value)
        producer.flush()
        end()
    _, end_offset = kafka_server.offsets("money")
    assert end_offset == 4
    rows = read(
        spark,
        kafka_server,
        {"money": {"0": 0}},
        {"money": {"0": end_offset}},
        **{"kafka.isolation.level": "read_committed"},
    )
    assert [(row.offset, row.value) for row in rows] == [(0, b"good")]
