"""Columnar files: rows are collected in memory and written many at once, as row groups. Reads and writes Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Literal

from pydantic import Field

from holdfast.config import ByteSize, Options
from holdfast.flow.format import FormatWriter, RawWriter
from holdfast.formats._compression import LeftOpen

READ_ROWS = 8192
GROUP_ROWS = 1 << 20
FAST_LEVELS = {"zstd": 1, "gzip": 1}

Compression = Literal["zstd", "snappy", "gzip", "lz4", "none"]


class ParquetConfig(Options):
    """How Parquet files are written."""

    compression: Compression = Field("zstd", description="Compression of the columns.")
    row_group_bytes: ByteSize = Field(
        "64MiB", validate_default=True, description="Size of a row group before compression."
    )


def open_parquet(
    raw: RawWriter,
    schema: Any,
    compression: Compression,
    row_group_bytes: int,
    *,
    repetitive: Sequence[str] | None = None,
) -> FormatWriter:
    """A writer of record batches. `repetitive`: columns that get dictionaries; by default all columns are tried."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = pq.ParquetWriter(
        pa.PythonFile(LeftOpen(raw), mode="w"),
        schema,
        compression=compression,
        compression_level=FAST_LEVELS.get(compression),
        use_dictionary=True if repetitive is None else list(repetitive),
        # Arrow's copy of its schema would make the bytes depend on how the rows came here.
        store_schema=False,
    )
    return GroupedFile(
        lambda table: writer.write_table(table, row_group_size=table.num_rows), writer.close, row_group_bytes
    )


def read_parquet(data: BinaryIO) -> Iterator[Any]:
    """The rows of a file, in order. Raises `ValueError` if it is not a whole Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.PythonFile(LeftOpen(data), mode="r"))
        yield from (rows for rows in file.iter_batches(READ_ROWS) if rows.num_rows)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise ValueError(f"it cannot be read as Parquet: {error}") from error


class GroupedFile(FormatWriter):
    """Writes the collected rows as a table when they reach `group_bytes`."""

    def __init__(self, write: Callable[[Any], None], close: Callable[[], None], group_bytes: int) -> None:
        self._write = write
        self._close = close
        self._group_bytes = group_bytes
        self._waiting: list[Any] = []
        self._rows = 0
        self._bytes = 0

    @property
    def buffered(self) -> int:
        return self._bytes

    def write(self, rows: Any) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += sum(map(_payload, rows.columns))
        if self._bytes >= self._group_bytes or self._rows >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._write(pa.Table.from_batches(self._waiting))
            self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self.flush()
        self._close()


def _payload(array: Any) -> int:
    """Bytes of the values alone. Depends only on the rows, not on whether Arrow allocated a validity bitmap."""
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
