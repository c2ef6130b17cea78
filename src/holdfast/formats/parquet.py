"""Parquet, written by Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import KAFKA_COLUMNS
from holdfast.formats._columnar import Compression, ParquetConfig, open_parquet, read_parquet
from holdfast.registry import Plugin


class Parquet(Format):
    """Writes every data column unchanged."""

    extension = "parquet"
    keeps = frozenset(KAFKA_COLUMNS)

    def __init__(self, compression: Compression = "zstd", row_group_bytes: int = 64 << 20) -> None:
        self._compression: Compression = compression
        self._row_group_bytes = row_group_bytes

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return dict.fromkeys(fields.names)

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        return open_parquet(raw, schema, self._compression, self._row_group_bytes)

    def read(self, data: BinaryIO) -> Iterator[Any]:
        return read_parquet(data)


PLUGIN = Plugin(
    "parquet", ParquetConfig, lambda config: Parquet(config.compression, config.row_group_bytes), "Parquet files."
)
