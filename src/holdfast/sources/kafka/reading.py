"""Reads Kafka with Spark's connector: the offset ranges of all batches in one DataFrame.

Spark runs one task per Kafka partition and reads it in offset order, so a batch is never spread over several tasks.
Dead letters are turned back into messages here too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.flow.batch import Batch
from holdfast.flow.fault import COLUMNS
from holdfast.flow.kafka_columns import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP_TYPE,
    TOPIC,
    VALUE,
    kafka_schema,
)
from holdfast.flow.letter import Letter
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, SIZE_COLUMN
from holdfast.sources.kafka.cluster import TopicPartition
from holdfast.sources.kafka.config import KafkaConfig, spark_options
from holdfast.sources.kafka.planning import range_of, topic_partition_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_KAFKA_NAMES = {TIMESTAMP_TYPE: "timestampType"}
POLL_TIMEOUT_MS = 30_000
"""How long a task waits for records that were planned before the attempt fails."""


def data_columns(config: KafkaConfig) -> StructType:
    """Return the data columns of every record."""
    return _fields(headers=config.headers)


def _fields(*, headers: bool) -> StructType:
    # Not from a DDL string: that needs an active session.
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    fields = from_arrow_schema(kafka_schema())
    return fields if headers else StructType([field for field in fields if field.name != HEADERS])


def frame(
    spark: SparkSession, config: KafkaConfig, batches: Sequence[Batch], columns: frozenset[str] | None = None
) -> DataFrame:
    """Return the records of all batches; `_batch` is a batch's index. `columns`: only these data columns."""
    from pyspark.sql import functions as sql

    headers = config.headers and (columns is None or HEADERS in columns)
    rows = _loaded(spark, config, batches, headers=headers)
    length = sql.coalesce(sql.octet_length(KEY), sql.lit(0)) + sql.coalesce(sql.octet_length(VALUE), sql.lit(0))
    system = [
        _batch_index(batches).alias(BATCH_COLUMN),
        sql.col(OFFSET).alias(ITEM_COLUMN),
        length.cast("long").alias(SIZE_COLUMN),
    ]
    if columns is None:
        system.append(sql.lit(None).cast("string").alias(FAULT_COLUMN))
    names = [name for name in data_columns(config).names if columns is None or name in columns]
    return rows.select(*system, *(sql.col(_KAFKA_NAMES.get(name, name)).alias(name) for name in names))


def _loaded(spark: SparkSession, config: KafkaConfig, batches: Sequence[Batch], *, headers: bool) -> DataFrame:
    ranges = {topic_partition_of(batch.lease): found for batch in batches if (found := range_of(batch)) is not None}
    if not ranges:
        return spark.createDataFrame([], _fields(headers=headers)).withColumnsRenamed(_KAFKA_NAMES)
    reader = spark.read.format("kafka").options(**spark_options(config))
    reader = reader.option("assign", _offsets_json({tp: tp.partition for tp in ranges}, listed=True))
    reader = reader.option("startingOffsets", _offsets_json({tp: first for tp, (first, _) in ranges.items()}))
    reader = reader.option("endingOffsets", _offsets_json({tp: end for tp, (_, end) in ranges.items()}))
    reader = reader.option("failOnDataLoss", "true").option("includeHeaders", str(headers).lower())
    return reader.option("kafkaConsumer.pollTimeoutMs", str(POLL_TIMEOUT_MS)).load()


def _batch_index(batches: Sequence[Batch]) -> Column:
    """Return the index of a row's batch, looked up by partition in an array: that costs almost nothing per row."""
    from pyspark.sql import functions as sql

    by_topic: dict[str, dict[int, int]] = defaultdict(dict)
    for number, batch in enumerate(batches):
        topic_partition = topic_partition_of(batch.lease)
        by_topic[topic_partition.topic][topic_partition.partition] = number
    chosen = sql.lit(None)
    for topic, numbers in by_topic.items():
        table = sql.lit([numbers.get(partition, -1) for partition in range(max(numbers) + 1)])
        found = table[sql.col(PARTITION)]
        chosen = sql.when(sql.col(TOPIC) == topic, found).otherwise(chosen) if len(by_topic) > 1 else found
    return chosen.cast("int")


def _offsets_json(values: dict[TopicPartition, int], *, listed: bool = False) -> str:
    by_topic: dict[str, dict[str, int]] = defaultdict(dict)
    for topic_partition, value in values.items():
        by_topic[topic_partition.topic][str(topic_partition.partition)] = value
    return json.dumps(
        {topic: list(partitions.values()) for topic, partitions in by_topic.items()} if listed else by_topic
    )


KEPT = frozenset({TOPIC, PARTITION, OFFSET, VALUE})
"""Columns that a dead letter keeps of a message; the others are null."""


class MessageRebuilder:
    """Turns dead letters back into messages: the value, and topic, partition and offset from the origin."""

    keeps = KEPT

    def fields(self) -> StructType:
        return _fields(headers=True)

    def refusal(self, letter: Letter) -> str | None:
        topic, bar, partition = letter.key.rpartition("|")
        if not (topic and bar and partition.isdigit()):
            return f"{letter.key!r} is not a partition of a topic"
        return "it holds columns instead of the message" if letter.form == COLUMNS else None

    def row(self, letter: Letter) -> Any:
        topic, _, partition = letter.key.rpartition("|")
        kept = {TOPIC: topic, PARTITION: int(partition), OFFSET: letter.item, VALUE: letter.record()}
        schema = kafka_schema()
        arrays = [pa.array([kept.get(field.name)], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
