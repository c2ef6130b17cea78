"""Parquet, as the formats `parquet` and `raw` write and read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Literal

from pydantic import Field

from holdfast.config import ByteSize, Options
from holdfast.flow.format import FormatWriter, RawWriter
from holdfast.formats._compression import LeftOpen
from holdfast.formats._row_groups import GroupedFile

READ_ROWS = 8192
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
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"it cannot be read as Parquet: {error}") from error
