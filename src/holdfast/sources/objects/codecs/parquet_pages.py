"""Bounds of the pages of a Parquet row group: a page of a few bytes can become gigabytes of values.

The headers of the pages are decoded as Arrow fetches them, before it decompresses any. They tell how much a batch of
rows can take, so that batches are smaller where values are long.
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

MAX_BATCH = 256 << 20
"""The most bytes that the values of one batch, or the pages of all columns at a time, may take."""
_USUAL_PAGES = 4 << 20
"""What the pages of one column usually take at a time: files of very many columns may have more than `MAX_BATCH`."""
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_BYTE_ARRAY = 6
_DICTIONARY_PAGE = 2
_DELTA_BYTE_ARRAY = 7
_LENGTH = struct.Struct("<I")
_HEADER_SIZES = (4 << 10, 16 << 20)
"""A header has statistics of its page, which are seldom long. Arrow reads no headers that are longer than the last."""


class Struct(TBase):  # type: ignore[misc]  # Thrift has no types.
    """A struct of the Parquet format, without the fields that are not needed here."""


class _Values(Struct):
    """`DataPageHeader` and `DictionaryPageHeader`."""

    thrift_spec: Any = (None, (1, TType.I32, "count", None, None), (2, TType.I32, "encoding", None, None))
    count = encoding = 0


class _Values2(Struct):
    """`DataPageHeaderV2`."""

    thrift_spec: Any = (
        None,
        (1, TType.I32, "count", None, None),
        *(None,) * 2,
        (4, TType.I32, "encoding", None, None),
    )
    count = encoding = 0


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


class PageBounds:
    """How many rows of a row group fit into one batch, as far as its chunks have been fetched."""

    def __init__(self, chunks: Sequence[Chunk], rows: int) -> None:
        """`rows` are wanted in one batch."""
        self.rows = rows
        self._wanted = rows
        self._left = list(chunks)
        self._pages = 0
        self._most = max(MAX_BATCH, _USUAL_PAGES * len(chunks))
        self._longest = 0
        self._windows: list[list[tuple[int, int]]] = []

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
        if self.rows < self._wanted:
            raise ValueError(f"a batch of {self._wanted} rows takes more than {MAX_BATCH} bytes")

    def _taken(self, rows: int) -> int:
        return rows * self._longest + sum(_largest_window(pages, rows) for pages in self._windows)

    def _measure(self, chunk: Chunk, data: memoryview) -> None:
        entries, largest, longest = 0, 0, 0
        pages: list[tuple[int, int]] = []
        index, left = 0, chunk.values
        while index < len(data) and left > 0:
            header, begin = _header(data, index)
            if header.size > MAX_BLOCK:
                raise ValueError(f"a page becomes {header.size} bytes; at most {MAX_BLOCK} are read")
            index = begin + max(header.packed, 0)
            if header.kind == _DICTIONARY_PAGE:
                entries = max(entries, header.size)
                longest = max(longest, self._longest_entry(chunk, header, data[begin:index]))
                continue
            largest = max(largest, header.size)
            values = header.values or header.values2 or _Values()
            left -= max(values.count, 0)
            pages.append((values.count, header.size))
            if values.encoding == _DELTA_BYTE_ARRAY:
                longest = max(longest, header.size)
        self._pages += entries + largest
        self._longest += longest
        self._windows.append(pages)

    def _longest_entry(self, chunk: Chunk, header: _PageHeader, packed: memoryview) -> int:
        """The length of the longest value of a dictionary, or more where that is short enough."""
        count = header.entries.count if header.entries else 0
        if chunk.kind != _BYTE_ARRAY:
            return int(header.size // max(count, 1)) if chunk.kind > _BYTE_ARRAY else 0
        bound = int(header.size) - _LENGTH.size * count
        if bound * self._wanted <= MAX_BATCH // 64 or (chunk.codec and chunk.codec not in _CODECS):
            return max(bound, 0)
        data = packed
        if chunk.codec:
            data = pa.Codec(_CODECS[chunk.codec]).decompress(packed, header.size, asbytes=True)
        return _longest(data)


def _longest(data: Any) -> int:
    """The length of the longest of values that each follow their length."""
    index, longest, end, unpack = 0, 0, len(data) - _LENGTH.size, _LENGTH.unpack_from
    while index <= end:
        (length,) = unpack(data, index)
        index += 4 + length
        if length > longest:  # noqa: PLR1730 - faster than max
            longest = length
    return longest


def _largest_window(pages: list[tuple[int, int]], rows: int) -> int:
    """The most bytes of the pages in which so many consecutive rows lie."""
    largest = bytes_ = held = first = 0
    for page in pages:
        count, size = page
        bytes_ += size
        held += count
        # The rows may begin with the last of the first page, and end with the first of this one.
        while pages[first] is not page and held - pages[first][0] - count > rows - 2:
            held -= pages[first][0]
            bytes_ -= pages[first][1]
            first += 1
        largest = max(largest, bytes_)
    return largest


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
