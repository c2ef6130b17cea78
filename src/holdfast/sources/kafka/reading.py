"""Reads Kafka with Spark's connector: the offset ranges of all batches in one DataFrame.

Spark runs one task per Kafka partition and reads it in offset order, so a batch is never spread over several tasks.
Messages of dead letters are read a second time, by their offsets, and turned back into rows here too.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import SourceUnavailable
from holdfast.flow.batch import Batch
from holdfast.flow.fault import COLUMNS, Fault
from holdfast.flow.kafka_columns import (
    HEADERS,
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    TOPIC,
    VALUE,
    columns_of_source,
    kafka_schema,
    message_source,
)
from holdfast.flow.letter import Letter, SourceRecord
from holdfast.flow.source import BATCH_COLUMN, FAULT_COLUMN, ITEM_COLUMN, SIZE_COLUMN
from holdfast.flow.staging import StagedBatch
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


MESSAGE_PATIENCE = 30.0
"""Seconds that a task waits for a message that it reads a second time."""
SEEK_BEYOND = 1000
"""A gap up to this many offsets is read and discarded; beyond it another request is cheaper."""
_DENIED = {"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "_INVALID_ARG"}
"""Error names that mean that this process cannot read with these properties, however long it waits."""
_SINGLE_MESSAGES: Mapping[str, Any] = {
    "group.id": "holdfast-peek",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_uncommitted",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 4096,
}


class MessageReader:
    """A `RecordReader`: reads messages by their offsets. Only messages of dead letters need it.

    The consumer of the last partition stays open until the task ends: letters of a batch come in many portions.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """`properties`: of librdkafka."""
        self._properties = properties
        self._messages: _Messages | None = None
        self._denied: str | None = None
        """Why this process cannot read messages at all."""

    def __getstate__(self) -> dict[str, Any]:
        return {"_properties": self._properties, "_messages": None, "_denied": None}

    def records(self, batch: StagedBatch, faults: Sequence[tuple[int, Fault]]) -> Iterator[SourceRecord]:
        topic_partition = TopicPartition(*_origin_of(batch.key))
        for offset, _ in faults:
            yield self._record(topic_partition, offset)

    def _record(self, topic_partition: TopicPartition, offset: int) -> SourceRecord:
        from confluent_kafka import KafkaException

        message, missing = None, "the topic does not have the message any more"
        if self._denied is None:
            try:
                message = self._of(topic_partition).at(offset)
            except KafkaException as error:
                # Spark can read here, librdkafka cannot: the letter keeps what Spark has read.
                self._denied = f"executors cannot read messages with librdkafka: {error.args[0].str()}"
        return _source_record(topic_partition, offset, message, self._denied or missing)

    def _of(self, topic_partition: TopicPartition) -> _Messages:
        from confluent_kafka import Consumer

        if self._messages is None or self._messages.topic_partition != topic_partition:
            self._messages = _Messages(Consumer({**self._properties, **_SINGLE_MESSAGES}), topic_partition)
        return self._messages


class _Messages:
    """Messages of one partition, mostly in the order of their offsets."""

    def __init__(self, consumer: Any, topic_partition: TopicPartition) -> None:
        self._consumer = consumer
        self.topic_partition = topic_partition
        self._next: Any = None
        """The message that was read last."""
        self._end: int | None = None
        """The end of the log, once it was seen."""

    def at(self, offset: int) -> Any:
        """The message at this offset; None if it does not exist any more."""
        read_to = None if self._next is None else int(self._next.offset())
        if read_to is None or not -1 < offset - read_to <= SEEK_BEYOND:
            self._seek(offset)
        while (self._next is None or self._next.offset() < offset) and not self._has_ended(offset):
            self._poll()
        found = self._next is not None and self._next.offset() == offset
        return self._next if found else None

    def _has_ended(self, offset: int) -> bool:
        return self._end is not None and offset >= self._end

    def _seek(self, offset: int) -> None:
        from confluent_kafka import TopicPartition as KafkaPartition

        self._consumer.assign([KafkaPartition(*self.topic_partition, offset)])
        self._next = self._end = None

    def _poll(self) -> None:
        """Read the next message or the end of the log. Raises `SourceUnavailable`, and `KafkaException` if denied."""
        from confluent_kafka import KafkaException

        give_up, reason = time.monotonic() + MESSAGE_PATIENCE, "no response"
        while (left := give_up - time.monotonic()) > 0:
            message = self._consumer.poll(left)
            error = None if message is None else message.error()
            if message is not None and error is None:
                self._next = message
                return
            if error is not None and error.name() == "_PARTITION_EOF":
                self._end = int(message.offset())
                return
            if error is not None and error.name() in _DENIED:
                raise KafkaException(error)
            reason = reason if error is None else error.str()
        topic, partition = self.topic_partition
        raise SourceUnavailable(f"cannot read messages of {topic} {partition} for dead letters: {reason}")


def _source_record(topic_partition: TopicPartition, offset: int, message: Any, missing: str) -> SourceRecord:
    """The record of a message; without a message, a record that is missing for this reason."""
    source: dict[str, Any] = {TOPIC: topic_partition.topic, PARTITION: topic_partition.partition, OFFSET: offset}
    if message is None:
        return SourceRecord(source, missing=missing)
    kind, milliseconds = message.timestamp()
    # Spark numbers the types from -1 on, librdkafka from 0 on.
    source |= {TIMESTAMP: milliseconds, TIMESTAMP_TYPE: kind - 1, KEY: message.key(), HEADERS: message.headers()}
    return SourceRecord(message_source(source), message.value())


KEPT = frozenset({TOPIC, PARTITION, OFFSET, VALUE})
"""Columns that a dead letter of an earlier version keeps of a message; the others are null."""


def _origin_of(key: str) -> tuple[str, int]:
    """Topic and partition from the key of a partition. Raises `ValueError`."""
    topic, _, partition = key.rpartition("|")
    return topic, int(partition)


class MessageRebuilder:
    """Turns dead letters back into messages, as they were read if the letter holds the whole message."""

    keeps = KEPT

    def __init__(self, *, headers: bool = True) -> None:
        """`headers`: whether the source reads them."""
        self._headers = headers

    def fields(self) -> StructType:
        return _fields(headers=self._headers)

    def refusal(self, letter: Letter) -> str | None:
        topic, bar, partition = letter.key.rpartition("|")
        if not (topic and bar and partition.isdigit()):
            return f"{letter.key!r} is not a partition of a topic"
        return "it holds columns instead of the message" if letter.form == COLUMNS else None

    def row(self, letter: Letter) -> Any:
        topic, partition = _origin_of(letter.key)
        kept = {TOPIC: topic, PARTITION: partition, OFFSET: letter.item, **columns_of_source(letter.source or {})}
        kept[VALUE] = None if letter.is_null else letter.record()
        schema = kafka_schema()
        arrays = [pa.array([kept.get(field.name)], field.type) for field in schema]
        row = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return row if self._headers else row.drop_columns([HEADERS])
