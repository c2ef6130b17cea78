"""Parquet, written by Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from holdfast.config import ByteSize, Options
from holdfast.flow.format import Format, FormatWriter, RawWriter
from holdfast.registry import Plugin

GROUP_ROWS = 1 << 20
FAST_ZSTD = 1

Compression = Literal["zstd", "snappy", "none"]


class ParquetConfig(Options):
    """How Parquet files are written."""

    compression: Compression = Field("zstd", description="Compression of the columns.")
    row_group_bytes: ByteSize = Field(
        "64MiB", validate_default=True, description="A row group ends when it holds so many bytes, uncompressed."
    )


class Parquet(Format):
    """Writes every data column as it is."""

    extension = "parquet"

    def __init__(self, compression: Compression = "zstd", row_group_bytes: int = 64 << 20) -> None:
        self._compression = compression
        self._row_group_bytes = row_group_bytes

    def columns(self, fields: Any) -> Mapping[str, Any]:
        return dict.fromkeys(fields.names)

    def open(self, raw: RawWriter, schema: Any) -> FormatWriter:
        import pyarrow as pa
        import pyarrow.parquet as pq

        writer = pq.ParquetWriter(
            pa.PythonFile(_Unclosed(raw), mode="w"),
            schema,
            compression=self._compression,
            compression_level=FAST_ZSTD if self._compression == "zstd" else None,
            # Arrow's own copy of the schema would tie the bytes to how the rows came here.
            store_schema=False,
        )
        return ParquetFile(writer, self._row_group_bytes)


class ParquetFile(FormatWriter):
    """Collects rows until they are worth a row group."""

    def __init__(self, writer: Any, row_group_bytes: int) -> None:
        self._writer = writer
        self._row_group_bytes = row_group_bytes
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    @property
    def buffered(self) -> int:
        return self._bytes

    def write(self, rows: Any) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += sum(map(_payload, rows.columns))
        if self._bytes >= self._row_group_bytes or self._rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._rows)
            self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self.flush()
        self._writer.close()


class _Unclosed:
    """A raw writer as Arrow wants it, left open by Arrow's close."""

    closed = False

    def __init__(self, raw: RawWriter) -> None:
        self._raw = raw

    def write(self, data: Any) -> int:
        return self._raw.write(data)

    def flush(self) -> None:
        """The raw writer decides when."""

    def close(self) -> None:
        """The raw writer is closed by whoever opened it."""


def _payload(array: Any) -> int:
    """Bytes of the values alone. Follows from the rows: a bitmap that happens to be there or not changes nothing."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_struct(kind):
        return sum(_payload(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 * len(array) + _payload(array.flatten())
    if pa.types.is_map(kind):
        return 4 * len(array) + _payload(array.keys) + _payload(array.items)
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return int(len(array) * kind.bit_width // 8)
    return 4 * len(array) + _text_bytes(array)


def _text_bytes(array: Any) -> int:
    import numpy as np
    import pyarrow as pa

    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    borders = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return int(borders[array.offset + len(array)] - borders[array.offset])


PLUGIN = Plugin(
    "parquet", ParquetConfig, lambda config: Parquet(config.compression, config.row_group_bytes), "Parquet files."
)
