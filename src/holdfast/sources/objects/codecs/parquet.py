"""Parquet: a row group belongs to the range in which its first page begins; an item is the number of a row."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

PORTION_ROWS = 8192


class Parquet(BlockCodec):
    """Columns of the schema, by name; the others are not read."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            file = pq.ParquetFile(
                pa.PythonFile(_ArrowFile(data, extent.size), mode="r"),
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            )
            for group, first in _groups(file.metadata, extent):
                yield from self._rows(file, group, first)
        except (OSError, ValueError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise Damaged(f"it is not a valid Parquet file: {error}") from error

    def _rows(self, file: Any, group: int, first: int) -> Iterator[Portion]:
        # A file without any of the columns still has its rows; the cheapest column counts them.
        wanted = [name for name in self.schema.names if name in file.schema_arrow.names]
        columns = wanted or file.schema_arrow.names[:1]
        for rows in file.iter_batches(PORTION_ROWS, row_groups=[group], columns=columns, use_threads=False):
            yield cast_rows(rows, np.arange(first, first + len(rows)), self.schema)
            first += len(rows)


def _groups(metadata: Any, extent: Range) -> Iterator[tuple[int, int]]:
    """The row groups of the range, each with the number of its first row."""
    first = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        # Whatever the offsets are, every group belongs to exactly one range of the object.
        begin = min(max(_begin(group), 0), extent.size - 1)
        if extent.start <= begin < extent.end:
            yield number, first
        first += group.num_rows


def _begin(group: Any) -> int:
    columns = [group.column(number) for number in range(group.num_columns)]
    pages = [page for c in columns for page in (c.dictionary_page_offset, c.data_page_offset) if page]
    return min(pages, default=0)


class _ArrowFile:
    """An open object with the interface that Arrow needs. Closing it leaves the object open."""

    closed = False

    def __init__(self, data: RandomBytes, size: int) -> None:
        self._data = data
        self._size = size
        self._offset = data.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, size: int = -1) -> bytes:
        self._data.seek(self._offset)
        missing = self._size - self._offset if size < 0 else size
        parts = []
        # A plain file may return fewer bytes than it has.
        while missing > 0 and (part := self._data.read(missing)):
            parts.append(part)
            missing -= len(part)
            self._offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """The caller that opened the object closes it."""
