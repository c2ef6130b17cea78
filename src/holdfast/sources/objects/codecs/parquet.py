"""Parquet: a row group belongs to the range in which its first page begins; an item is the number of a row.

Where the pages begin is decoded from the footer with Thrift: Arrow's own accessor of column metadata ends the process
when a damaged footer makes it throw (it is declared without exceptions), whereas its reader raises.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TException, TType
from thrift.transport.TTransport import TMemoryBuffer

from holdfast.sources.objects.codecs.codec import BlockCodec, Portion, Range
from holdfast.sources.objects.codecs.parquet_pages import Chunk, PageBounds, Struct
from holdfast.sources.objects.codecs.typed import cast_rows
from holdfast.sources.objects.object_ref import Damaged, RandomBytes

PORTION_ROWS = 8192
TAIL_BYTES = 8
FIRST_TAIL, MAX_TAIL = 64 << 10, 16 << 20
MAX_DEPTH = 100
"""How deeply a schema may be nested. Arrow calls itself for each level."""
_REPEATED = 2

Path: TypeAlias = tuple[str, ...]
"""The names of a column and of the groups around it, the outermost first."""


class Parquet(BlockCodec):
    """Columns of the schema, by name; the others are not read."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def read(self, data: RandomBytes, extent: Range) -> Iterator[Portion]:
        try:
            whole = _ArrowFile(data, extent.size)
            footer = _footer(whole)
            leaves = footer.leaves()
            file = pq.ParquetFile(
                pa.PythonFile(whole, mode="r"), coerce_int96_timestamp_unit="us", page_checksum_verification=True
            )
            for number, first, group in _groups(file.metadata, footer, extent):
                yield from self._rows(file, whole, number, first, group.chunks(leaves))
        except (OSError, ValueError, pa.ArrowException) as error:
            # Memory that is too small says nothing about the file.
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            raise Damaged(f"it is not a valid Parquet file: {error}") from error

    def _rows(
        self, file: Any, whole: _ArrowFile, number: int, first: int, group: list[tuple[Path, Chunk]]
    ) -> Iterator[Portion]:
        # A file without any of the columns still has its rows; the cheapest column counts them.
        wanted = [name for name in self.schema.names if name in file.schema_arrow.names]
        columns = wanted or file.schema_arrow.names[:1]
        chosen = set(columns)
        chunks = [chunk for path, chunk in group if any(prefix in chosen for prefix in _prefixes(path))]
        for rows in _batches(file, whole, chunks, row_groups=[number], columns=columns, use_threads=False):
            yield cast_rows(rows, np.arange(first, first + len(rows)), self.schema)
            first += len(rows)


def _prefixes(path: Path) -> Iterator[str]:
    """The names by which Arrow selects a column: every prefix of its path. Dots within names separate names, too."""
    return accumulate(".".join(path).split("."), "{}.{}".format)


def _batches(file: Any, whole: _ArrowFile, chunks: Sequence[Chunk], **options: Any) -> Iterator[Any]:
    """The rows in batches that fit into memory. Arrow fetches the pages of all columns for the first batch."""
    wanted = PORTION_ROWS
    while True:
        bounds = PageBounds(chunks, wanted)
        whole.watch = bounds.fetched
        batches = file.iter_batches(wanted, **options)
        try:
            first = next(batches, None)
        except ValueError:
            if bounds.rows == wanted:
                raise
            wanted = bounds.rows
            continue
        if first is not None:
            yield first
            del first
            yield from batches
        return


def _groups(metadata: Any, footer: _Footer, extent: Range) -> Iterator[tuple[int, int, _RowGroup]]:
    """The row groups of the range, each with its number and the number of its first row."""
    first = 0
    for number, group in enumerate(footer.groups):
        begin = min((page for column in group.columns for page in column.pages()), default=0)
        # Whatever the offsets are, every group belongs to exactly one range of the object.
        if extent.start <= min(max(begin, 0), extent.size - 1) < extent.end:
            yield number, first, group
        first += metadata.row_group(number).num_rows


def _footer(whole: _ArrowFile) -> _Footer:
    # One request for what Arrow requests first; both are served from it.
    whole.seek(-min(FIRST_TAIL, whole.seek(0, io.SEEK_END)), io.SEEK_END)
    whole.read()
    whole.seek(-TAIL_BYTES, io.SEEK_END)
    length = int.from_bytes(whole.read(TAIL_BYTES)[:4], "little")
    if whole.seek(-TAIL_BYTES - length, io.SEEK_END) < 0:
        raise ValueError(f"its footer would have {length} bytes, more than the file")
    protocol = TCompactProtocolAccelerated(
        TMemoryBuffer(whole.read(length)), string_length_limit=length, container_length_limit=length
    )
    footer = _Footer()
    try:
        footer.read(protocol)
    except (TException, EOFError, OverflowError, TypeError) as error:
        raise ValueError(f"its footer cannot be decoded: {error}") from error
    return footer


class _Pages(Struct):
    """The fields of Thrift's `ColumnMetaData` that locate the pages of a column chunk."""

    thrift_spec: Any = (
        None,
        (1, TType.I32, "kind", None, None),
        *(None,) * 2,
        (4, TType.I32, "codec", None, None),
        (5, TType.I64, "count", None, None),
        None,
        (7, TType.I64, "size", None, None),
        None,
        (9, TType.I64, "data", None, None),
        None,
        (11, TType.I64, "dictionary", None, None),
    )
    kind = codec = count = size = data = dictionary = 0

    def chunk(self, repetition: int) -> Chunk:
        is_first = self.dictionary and 0 < self.dictionary < self.data
        start = self.dictionary if is_first else self.data
        return Chunk(start, self.size, self.count, self.kind, self.codec, repetition)


class _Column(Struct):
    """`ColumnChunk`."""

    thrift_spec: Any = (None, None, None, (3, TType.STRUCT, "metadata", [_Pages, _Pages.thrift_spec], None))
    metadata = _Pages()

    def pages(self) -> list[int]:
        return [offset for offset in (self.metadata.dictionary, self.metadata.data) if offset]


class _RowGroup(Struct):
    """`RowGroup`."""

    thrift_spec: Any = (
        None,
        (1, TType.LIST, "columns", (TType.STRUCT, [_Column, _Column.thrift_spec], False), None),
    )
    columns: Sequence[_Column] = ()

    def chunks(self, leaves: Sequence[tuple[Path, int]]) -> list[tuple[Path, Chunk]]:
        """The chunks, each with the path of its column. The path that a chunk itself has is not used by Arrow."""
        if len(self.columns) != len(leaves):
            raise ValueError(f"a row group has {len(self.columns)} columns, and the schema {len(leaves)}")
        pairs = zip(self.columns, leaves, strict=True)
        return [(path, column.metadata.chunk(repetition)) for column, (path, repetition) in pairs]


class _SchemaNode(Struct):
    """`SchemaElement`."""

    thrift_spec: Any = (
        *(None,) * 3,
        (3, TType.I32, "repetition", None, None),
        (4, TType.STRING, "name", "UTF8", None),
        (5, TType.I32, "children", None, None),
    )
    repetition = children = 0
    name = ""


class _Footer(Struct):
    """`FileMetaData`."""

    thrift_spec: Any = (
        *(None,) * 2,
        (2, TType.LIST, "elements", (TType.STRUCT, [_SchemaNode, _SchemaNode.thrift_spec], False), None),
        None,
        (4, TType.LIST, "groups", (TType.STRUCT, [_RowGroup, _RowGroup.thrift_spec], False), None),
    )
    groups: Sequence[_RowGroup] = ()
    elements: Sequence[_SchemaNode] = ()

    def leaves(self) -> list[tuple[Path, int]]:
        """The path of each column of values, and how deeply lists are nested in it."""
        found: list[tuple[Path, int]] = []
        # The groups that are open: how many elements are left in each, its path, and the lists around.
        open_groups: list[tuple[int, Path, int]] = [(self.elements[0].children if self.elements else 0, (), 0)]
        for element in self.elements[1:]:
            while open_groups and open_groups[-1][0] <= 0:
                open_groups.pop()
            if not open_groups:
                break
            left, path, lists = open_groups.pop()
            open_groups.append((left - 1, path, lists))
            if len(path) >= MAX_DEPTH:
                raise ValueError(f"its schema is nested more than {MAX_DEPTH} levels deep")
            path, lists = (*path, element.name), lists + (element.repetition == _REPEATED)
            if element.children:
                open_groups.append((element.children, path, lists))
            else:
                found.append((path, lists))
        return found


class _ArrowFile:
    """An open object with the interface that Arrow needs. Closing it leaves the object open."""

    closed = False

    def __init__(self, data: RandomBytes, size: int) -> None:
        self._data = data
        self._size = size
        self._offset = data.seek(0)
        self._tail = (size, b"")
        self.watch: Callable[[int, bytes], None] = lambda *_: None
        """Is called with all bytes before they are decoded."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        self._offset = base + offset
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, size: int = -1) -> bytes:
        start, missing = self._offset, self._size - self._offset if size < 0 else size
        if self._tail[0] <= start and missing <= self._size - start:
            found = self._tail[1][start - self._tail[0] :][:missing]
        else:
            found = self._fetched(start, missing)
        self._offset = start + len(found)
        self.watch(start, found)
        return found

    def _fetched(self, start: int, missing: int) -> bytes:
        self._data.seek(start)
        parts = []
        # A plain file may return fewer bytes than it has.
        while missing > 0 and (part := self._data.read(missing)):
            parts.append(part)
            missing -= len(part)
        found = parts[0] if len(parts) == 1 else b"".join(parts)
        if start + len(found) == self._size and len(found) <= MAX_TAIL:
            # The footer is decoded twice.
            self._tail = start, found
        return found

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """The caller that opened the object closes it."""
