"""Bounds of the pages of a Parquet row group: a page of a few bytes can become gigabytes of values.

The headers of the pages are decoded as Arrow fetches them, before it decompresses any. They tell how much a batch of
rows can take, so that batches are smaller where values are long. A row of a list has any number of values: where the
lists of a row group are large, the repetition levels of their pages tell in which pages rows begin. A value that is
encoded by its difference from the one before it may repeat all of that one: then the lengths of the repeated parts
count, too.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from thrift.protocol.TBase import TBase
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TException, TType
from thrift.transport.TTransport import TMemoryBuffer

from holdfast.formats._forward import MAX_BLOCK
from holdfast.sources.objects.codecs.parquet_lengths import Lengths, RowSizes, decoded_lengths, row_starts

MAX_BATCH = 256 << 20
"""The most bytes that the values of one batch, or the pages of all columns at a time, may take."""
_USUAL_PAGES = 4 << 20
"""What the pages of one column usually take at a time: files of very many columns may have more than `MAX_BATCH`."""
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_BYTE_ARRAY = 6
_DICTIONARY_PAGE, _PAGE_2 = 2, 3
_DELTA_BYTE_ARRAY = 7
_RLE = 3
_PER_VALUE = 16
"""What a value of a list takes besides its bytes: levels, and offsets or its width."""
_COPIES = 3
"""How often Arrow has the values of lists in memory while it puts them together."""
_SIZE, _VALUES, _REPEATED = 1, 2, 3
"""Fields of `_Page`."""
_LENGTH = struct.Struct("<I")
_HEADER_SIZES = (4 << 10, 16 << 20)
"""A header has statistics of its page, which are seldom long. Arrow reads no headers that are longer than the last."""


class Struct(TBase):  # type: ignore[misc]  # Thrift has no types.
    """A struct of the Parquet format, without the fields that are not needed here."""


class _Values(Struct):
    """`DataPageHeader` and `DictionaryPageHeader`."""

    thrift_spec: Any = (
        None,
        (1, TType.I32, "count", None, None),
        (2, TType.I32, "encoding", None, None),
        (3, TType.I32, "definitions_encoding", None, None),
        (4, TType.I32, "levels_encoding", None, None),
    )
    count = encoding = 0
    definitions_encoding = levels_encoding = _RLE


class _Values2(Struct):
    """`DataPageHeaderV2`."""

    thrift_spec: Any = (
        None,
        (1, TType.I32, "count", None, None),
        *(None,) * 2,
        (4, TType.I32, "encoding", None, None),
        (5, TType.I32, "definitions_size", None, None),
        (6, TType.I32, "levels_size", None, None),
        (7, TType.BOOL, "is_packed", None, None),
    )
    count = encoding = definitions_size = levels_size = 0
    is_packed = True


class _PageHeader(Struct):
    """`PageHeader`."""

    thrift_spec: Any = (
        None,
        (1, TType.I32, "kind", None, None),
        (2, TType.I32, "size", None, None),
        (3, TType.I32, "packed", None, None),
        None,
        (5, TType.STRUCT, "values", [_Values, _Values.thrift_spec], None),
        None,
        (7, TType.STRUCT, "entries", [_Values, _Values.thrift_spec], None),
        (8, TType.STRUCT, "values2", [_Values2, _Values2.thrift_spec], None),
    )
    kind = size = packed = 0
    values: Any = None
    entries: Any = None
    values2: Any = None


class Chunk(NamedTuple):
    """The pages of one column in a row group."""

    start: int
    size: int
    values: int
    """The number of values. What follows the pages that have them is not read."""
    kind: int
    codec: int
    repetition: int = 0
    """How many lists are inside each other; 0 if every row has one value."""


class _Page(NamedTuple):
    """What is known about a page of values."""

    rows: int
    """How many rows begin in it."""
    size: int
    values: int
    repeated: int = 0
    """Bytes of its values that are not in the page, but repeated from the values before them."""


class _Column(NamedTuple):
    """The pages of one column, and the longest values that a dictionary or the encoding by differences may have."""

    pages: list[_Page]
    entry: int = 0
    difference: int = 0
    longest_row: int = 0
    """The most values of one row; 0 if the column has no lists, so that every row has one."""
    longest_repeated: int = 0
    """The most bytes that a value of a list repeats, if the pages say it."""

    def taken(self, rows: int) -> int:
        """The maximum number of bytes that `rows` consecutive rows take."""
        return self._taken(rows, max(self.entry, self.difference))

    def taken_at_least(self) -> int:
        """The bytes of one row, as far as certain: a value encoded by differences is no longer than its page."""
        return self._taken(1, self.entry)

    def _taken(self, rows: int, longest: int) -> int:
        if not self.longest_row:
            return rows * longest + _largest_window(self.pages, _SIZE, rows - 2)
        # A list may go on in the page behind the one in which its row begins.
        values = min(_largest_window(self.pages, _VALUES, rows - 1), rows * self.longest_row)
        repeated = min(_largest_window(self.pages, _REPEATED, rows - 1), values * self.longest_repeated)
        in_pages = _largest_window(self.pages, _SIZE, rows - 1)
        return _COPIES * (in_pages + repeated + values * (longest + _PER_VALUE))


class PageBounds:
    """How many rows of a row group fit into one batch, as far as its chunks have been fetched."""

    def __init__(self, chunks: Sequence[Chunk], rows: int) -> None:
        """`rows`: how many rows are wanted in one batch."""
        self.rows = rows
        self._wanted = rows
        self._left = list(chunks)
        self._pages = 0
        self._most = max(MAX_BATCH, _USUAL_PAGES * len(chunks))
        self._columns: list[_Column] = []
        # Lists that are smaller than this, all together, are within the bound whatever rows they belong to.
        self._small_list = MAX_BATCH // (2 * max(sum(chunk.repetition > 0 for chunk in chunks), 1))

    def fetched(self, offset: int, data: bytes) -> None:
        """Bytes of the file that Arrow is about to decode. Raises `ValueError` if they exceed a bound."""
        end = offset + len(data)
        seen = [chunk for chunk in self._left if offset <= chunk.start < chunk.start + chunk.size <= end]
        if not seen:
            return
        self._left = [chunk for chunk in self._left if chunk not in seen]
        for chunk in seen:
            self._measure(chunk, memoryview(data)[chunk.start - offset : chunk.start - offset + chunk.size])
        if self._pages > self._most:
            raise ValueError(f"the pages of a row group take more than {self._most} bytes at a time")
        while self.rows > 1 and self._taken(self.rows) > MAX_BATCH:
            self.rows //= 2
        if self.rows == 1 and sum(column.taken_at_least() for column in self._columns) > self._most:
            raise ValueError(f"a row takes more than {self._most} bytes")
        if self.rows < self._wanted:
            raise ValueError(f"a batch of {self._wanted} rows takes more than {MAX_BATCH} bytes")

    def _taken(self, rows: int) -> int:
        return sum(column.taken(rows) for column in self._columns)

    def _measure(self, chunk: Chunk, data: memoryview) -> None:
        entries, largest, entry, difference = 0, 0, 0, 0
        pages: list[tuple[_PageHeader, memoryview]] = []
        index, left = 0, chunk.values
        while index < len(data) and left > 0:
            header, begin = _header(data, index)
            if header.size > MAX_BLOCK:
                raise ValueError(f"a page becomes {header.size} bytes; at most {MAX_BLOCK} are read")
            index = begin + max(header.packed, 0)
            if header.kind == _DICTIONARY_PAGE:
                entries = max(entries, header.size)
                entry = max(entry, self._longest_entry(chunk, header, data[begin:index]))
                continue
            largest = max(largest, header.size)
            values = _values(header)
            left -= max(values.count, 0)
            pages.append((header, data[begin:index]))
            if values.encoding == _DELTA_BYTE_ARRAY:
                difference = max(difference, header.size)
        self._pages += entries + largest
        found = [_Page(_values(header).count, header.size, _values(header).count) for header, _ in pages]
        column = _Column(found, entry, difference)
        self._columns.append(self._with_lists(chunk, column, pages) if chunk.repetition else column)

    def _with_lists(self, chunk: Chunk, column: _Column, pages: list[tuple[_PageHeader, memoryview]]) -> _Column:
        whole = [_Page(0, page.size, max(page.values, 0)) for page in column.pages]
        alone = column._replace(pages=whole, longest_row=max(sum(page.values for page in whole), 1))
        if alone.taken(1) <= self._small_list:
            return alone
        rows, longest, found = RowSizes(), 0, list[_Page]()
        for page, (header, data) in zip(whole, pages, strict=True):
            values, contents = _values(header), _contents(chunk, header, data)
            levels = b"" if contents is None else contents.levels
            count = rows.begin(row_starts(levels, chunk.repetition, values.count), values.count)
            lengths = Lengths()
            if values.encoding == _DELTA_BYTE_ARRAY:
                unknown = Lengths(page.values * page.size, page.size)
                lengths = unknown if contents is None else decoded_lengths(contents.values)
            longest = max(longest, lengths.longest)
            found.append(page._replace(rows=count, repeated=lengths.total))
        lists = {"longest_row": max(rows.longest, 1), "longest_repeated": longest}
        return column._replace(pages=found, difference=0, **lists)

    def _longest_entry(self, chunk: Chunk, header: _PageHeader, packed: memoryview) -> int:
        """The length of the longest value of a dictionary, or an upper bound where that is small enough."""
        count = header.entries.count if header.entries else 0
        if chunk.kind != _BYTE_ARRAY:
            return int(header.size // max(count, 1)) if chunk.kind > _BYTE_ARRAY else 0
        bound = int(header.size) - _LENGTH.size * count
        is_short = not chunk.repetition and bound * self._wanted <= MAX_BATCH // 64
        if is_short or (chunk.codec and chunk.codec not in _CODECS):
            return max(bound, 0)
        data = packed
        if chunk.codec:
            data = pa.Codec(_CODECS[chunk.codec]).decompress(packed, header.size, asbytes=True)
        return _longest(data)


def _longest(data: Any) -> int:
    """The length of the longest value, where each value is preceded by its length."""
    index, longest, end, unpack = 0, 0, len(data) - _LENGTH.size, _LENGTH.unpack_from
    while index <= end:
        (length,) = unpack(data, index)
        index += 4 + length
        if length > longest:  # noqa: PLR1730 - faster than max
            longest = length
    return longest


def _largest_window(pages: list[_Page], field: int, rows_between: int) -> int:
    """The largest sum of a field of consecutive pages, with at most that many rows between the first and the last."""
    largest = summed = held = first = 0
    for page in pages:
        summed += page[field]
        held += page.rows
        while pages[first] is not page and held - pages[first].rows - page.rows > rows_between:
            held -= pages[first].rows
            summed -= pages[first][field]
            first += 1
        largest = max(largest, summed)
    return largest


def _values(header: _PageHeader) -> Any:
    """The header that Arrow uses for a page of this kind."""
    return (header.values2 if header.kind == _PAGE_2 else header.values) or _Values()


class _Contents(NamedTuple):
    """The parts of a page of lists."""

    levels: bytes
    """Repetition levels."""
    values: Any


def _contents(chunk: Chunk, header: _PageHeader, data: memoryview) -> _Contents | None:
    """The page, decompressed; None if its compression or encoding is not supported."""
    values = _values(header)
    if chunk.codec and chunk.codec not in _CODECS:
        return None
    if isinstance(values, _Values2):
        levels, skipped = max(values.levels_size, 0), max(values.definitions_size, 0)
        packed, size = data[levels + skipped :], header.size - levels - skipped
        is_packed = chunk.codec and values.is_packed and size > 0
        return _Contents(bytes(data[:levels]), _unpacked(chunk, packed, size) if is_packed else packed)
    if values.levels_encoding != _RLE or values.definitions_encoding != _RLE:
        return None
    page = _unpacked(chunk, data, header.size) if chunk.codec else data
    found = bytes(_after_length(page))
    return _Contents(found, _behind(page, 2))


def _unpacked(chunk: Chunk, data: memoryview, size: int) -> Any:
    return memoryview(pa.Codec(_CODECS[chunk.codec]).decompress(data, size, asbytes=True))


def _after_length(page: Any) -> Any:
    """The bytes at the beginning of the page, without the length before them."""
    if len(page) < _LENGTH.size:
        return b""
    (length,) = _LENGTH.unpack_from(page)
    return page[_LENGTH.size : _LENGTH.size + length]


def _behind(page: Any, parts: int) -> Any:
    """The rest of the page after that many parts, each preceded by its length."""
    for _ in range(parts):
        page = page[_LENGTH.size + len(_after_length(page)) :]
    return page


def _header(data: memoryview, index: int) -> tuple[_PageHeader, int]:
    """A header of a page, and where the page begins after it."""
    reason: Exception | None = None
    for size in _HEADER_SIZES:
        transport, header = TMemoryBuffer(bytes(data[index : index + size])), _PageHeader()
        try:
            header.read(TCompactProtocolAccelerated(transport))
        except (TException, EOFError, OverflowError, TypeError) as error:
            reason = error
        else:
            return header, index + transport.cstringio_buf.tell()
    raise ValueError(f"the header of a page cannot be decoded: {reason!r}") from reason
