"""Kafka's messages exactly as they came, in Parquet, so that nothing is lost.

A file has the columns `offset`, `timestamp`, `timestamp_type` (0: creation, 1: arrival), `key`, `value` and `headers`.
A null value differs from an empty one. Topic and partition are in the file's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import HEADERS, KAFKA_COLUMNS, KEY, PARTITION, TIMESTAMP_TYPE, TOPIC
from holdfast.formats._columnar import Compression, ParquetConfig, open_parquet, read_parquet
from holdfast.formats._messages import wants_messages
from holdfast.registry import Plugin

NAME = "raw"
COLUMNS = tuple(name for name in KAFKA_COLUMNS if name not in {TOPIC, PARTITION})
REPETITIVE = (TIMESTAMP_TYPE, KEY, f"{HEADERS}.list.element.key")


class Raw(Format):
    """Writes all columns that Kafka has for a message."""

    extension = "parquet"
    keeps = frozenset(COLUMNS)

    def __init__(self, compression: Compression = "zstd", row_group_bytes: int = 64 << 20) -> None:
        self._compression: Compression = compression
        self._row_group_bytes = row_group_bytes

    def columns(self, fields: Any) -> Mapping[str, Any]:
        wants_messages(fields, NAME, COLUMNS)
        return dict.fromkeys(COLUMNS)

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        return open_parquet(raw, schema, self._compression, self._row_group_bytes, repetitive=REPETITIVE)

    def read(self, data: BinaryIO) -> Iterator[Any]:
        return read_parquet(data)


PLUGIN = Plugin(
    NAME,
    ParquetConfig,
    lambda config: Raw(config.compression, config.row_group_bytes),
    "Kafka's messages as they came, with offset, time, key and headers, in Parquet.",
)
