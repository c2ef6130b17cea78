"""Avro's object container files: all data columns, in a schema made from the columns.

Rows are encoded in Arrow and numpy, a column at a time. fastavro reads them, a row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field

from holdfast.config import ByteSize, Options
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.flow.kafka_columns import KAFKA_COLUMNS
from holdfast.formats._faults import YEARS, either, text_faults
from holdfast.registry import Plugin

BLOCK_BYTES = 256 << 10

Compression = Literal["none", "gzip", "zstd", "snappy"]


class AvroConfig(Options):
    """How Avro files are written."""

    compression: Compression = Field("zstd", description="Compression of the blocks; gzip is Avro's deflate.")
    block_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        BLOCK_BYTES, validate_default=True, description="Size of a block before compression."
    )


class Avro(Format):
    """Writes every data column; each may be null. Rows that fastavro could not read are faults."""

    extension = "avro"
    keeps = frozenset(KAFKA_COLUMNS)

    def __init__(self, compression: Compression = "zstd", block_bytes: int = BLOCK_BYTES) -> None:
        self._compression: Compression = compression
        self._block_bytes = block_bytes

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return dict.fromkeys(fields.names)

    def faults(self, rows: Any) -> Any | None:
        return either(YEARS.faults(rows), text_faults(rows))

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        from holdfast.formats.avro.writer import AvroFile

        return AvroFile(raw, schema, self._compression, self._block_bytes)

    def read(self, data: BinaryIO) -> Iterator[Any]:
        from holdfast.formats.avro.reader import read

        return read(data)


PLUGIN = Plugin("avro", AvroConfig, lambda config: Avro(config.compression, config.block_bytes), "Avro files.")
