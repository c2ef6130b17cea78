"""Reading Kafka with Spark's own connector: explicit offset ranges of all batches in one frame.

Spark makes one task per Kafka partition and reads it in offset order, so a batch is never spread over tasks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from holdfast.flow.batch import Batch
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, SIZE_COLUMN
from holdfast.sources.kafka.cluster import Place
from holdfast.sources.kafka.config import KafkaConfig
from holdfast.sources.kafka.planning import place_of, range_of
from holdfast.sources.kafka.properties import spark_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_HEADERS = "headers array<struct<key:string,value:binary>>"
_DATA = "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, key binary, value binary"
_KAFKA_NAMES = {"timestamp_type": "timestampType"}
POLL_TIMEOUT_MS = 30_000
"""How long a task waits for records that the plan promised, before its batch is tried again."""


def data_columns(config: KafkaConfig) -> StructType:
    """The data columns of every record."""
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(f"{_DATA}, {_HEADERS}" if config.headers else _DATA))


def frame(
    spark: SparkSession, config: KafkaConfig, batches: Sequence[Batch], columns: frozenset[str] | None = None
) -> DataFrame:
    """The records of all batches; `_batch` is the number of a batch among them. `columns`: only these data columns."""
    from pyspark.sql import functions as sql

    headers = config.headers and (columns is None or "headers" in columns)
    rows = _loaded(spark, config, batches, headers=headers)
    length = sql.coalesce(sql.octet_length("key"), sql.lit(0)) + sql.coalesce(sql.octet_length("value"), sql.lit(0))
    system = [
        _number(batches).alias(BATCH_COLUMN),
        sql.col("offset").alias(ITEM_COLUMN),
        length.cast("long").alias(SIZE_COLUMN),
    ]
    if columns is None:
        system.append(sql.lit(None).cast("string").alias(FAULT_COLUMN))
    names = [name for name in data_columns(config).names if columns is None or name in columns]
    return rows.select(*system, *(sql.col(_KAFKA_NAMES.get(name, name)).alias(name) for name in names))


def _loaded(spark: SparkSession, config: KafkaConfig, batches: Sequence[Batch], *, headers: bool) -> DataFrame:
    ranges = {place_of(batch.lease): found for batch in batches if (found := range_of(batch)) is not None}
    if not ranges:
        schema = f"{_DATA}, {_HEADERS}" if headers else _DATA
        return spark.createDataFrame([], schema).withColumnsRenamed(_KAFKA_NAMES)
    reader = spark.read.format("kafka").options(**spark_options(config))
    reader = reader.option("assign", _told({place: place.partition for place in ranges}, listed=True))
    reader = reader.option("startingOffsets", _told({place: first for place, (first, _) in ranges.items()}))
    reader = reader.option("endingOffsets", _told({place: end for place, (_, end) in ranges.items()}))
    reader = reader.option("failOnDataLoss", "true").option("includeHeaders", str(headers).lower())
    return reader.option("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS)).load()


def _number(batches: Sequence[Batch]) -> Column:
    """The number of a row's batch: looked up by partition in an array, which costs next to nothing per row."""
    from pyspark.sql import functions as sql

    by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for number, batch in enumerate(batches):
        place = place_of(batch.lease)
        by_topic[place.topic][place.partition] = number
    chosen = sql.lit(None)
    for topic, numbers in by_topic.items():
        table = sql.lit([numbers.get(partition, -1) for partition in range(max(numbers) + 1)])
        found = table[sql.col("partition")]
        chosen = sql.when(sql.col("topic") == topic, found).otherwise(chosen) if len(by_topic) > 1 else found
    return chosen.cast("int")


def _told(values: dict[Place, int], *, listed: bool = False) -> str:
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for place, value in values.items():
        by_topic[place.topic][str(place.partition)] = value
    return json.dumps({topic: list(told.values()) for topic, told in by_topic.items()} if listed else by_topic)
