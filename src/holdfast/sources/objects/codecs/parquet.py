"""Parquet: a row group belongs to the range in which its first page begins; an item is the number of a row.

Where the pages begin is decoded from the footer with Thrift: Arrow's own accessor of column metadata ends the process
when a damaged footer makes it throw (it is declared without exceptions), whereas its reader raises.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from thrift.protocol.TBase import TBase
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TException, TType
from thrift.transport.TTransport import TMemoryBuffer

from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

PORTION_ROWS = 8192
TAIL_BYTES = 8


class Parquet(BlockCodec):
    """Columns of the schema, by name; the others are not read."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            whole = _ArrowFile(data, extent.size)
            file = pq.ParquetFile(
                pa.PythonFile(whole, mode="r"), coerce_int96_timestamp_unit="us", page_checksum_verification=True
            )
            for group, first in _groups(file.metadata, whole, extent):
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


def _groups(metadata: Any, whole: _ArrowFile, extent: Range) -> Iterator[tuple[int, int]]:
    """The row groups of the range, each with the number of its first row."""
    begins = _begins(whole) if (extent.start, extent.end) != (0, extent.size) else [0] * metadata.num_row_groups
    first = 0
    for number, begin in enumerate(begins):
        # Whatever the offsets are, every group belongs to exactly one range of the object.
        if extent.start <= min(max(begin, 0), extent.size - 1) < extent.end:
            yield number, first
        first += metadata.row_group(number).num_rows


def _begins(whole: _ArrowFile) -> list[int]:
    """The offset of the first page of each row group."""
    whole.seek(-TAIL_BYTES, io.SEEK_END)
    length = int.from_bytes(whole.read(TAIL_BYTES)[:4], "little")
    whole.seek(-TAIL_BYTES - length, io.SEEK_END)
    protocol = TCompactProtocolAccelerated(
        TMemoryBuffer(whole.read(length)), string_length_limit=length, container_length_limit=length
    )
    footer = _Footer()
    try:
        footer.read(protocol)
    except (TException, EOFError, OverflowError, TypeError) as error:
        raise ValueError(f"its footer cannot be decoded: {error}") from error
    return [min((page for column in group.columns for page in column.pages()), default=0) for group in footer.groups]


class _Struct(TBase):  # type: ignore[misc]  # Thrift has no types.
    """A struct of the Parquet format, without the fields that are not needed here."""


class _Pages(_Struct):
    """`ColumnMetaData`."""

    thrift_spec: Any = (
        *(None,) * 9,
        (9, TType.I64, "data", None, None),
        None,
        (11, TType.I64, "dictionary", None, None),
    )
    data = dictionary = 0


class _Column(_Struct):
    """`ColumnChunk`."""

    thrift_spec: Any = (None, None, None, (3, TType.STRUCT, "metadata", [_Pages, _Pages.thrift_spec], None))
    metadata = _Pages()

    def pages(self) -> list[int]:
        return [offset for offset in (self.metadata.dictionary, self.metadata.data) if offset]


class _RowGroup(_Struct):
    """`RowGroup`."""

    thrift_spec: Any = (
        None,
        (1, TType.LIST, "columns", (TType.STRUCT, [_Column, _Column.thrift_spec], False), None),
    )
    columns: Sequence[_Column] = ()


class _Footer(_Struct):
    """`FileMetaData`."""

    thrift_spec: Any = (
        *(None,) * 4,
        (4, TType.LIST, "groups", (TType.STRUCT, [_RowGroup, _RowGroup.thrift_spec], False), None),
    )
    groups: Sequence[_RowGroup] = ()


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
