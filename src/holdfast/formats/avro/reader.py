"""Reads object container files: the header, the blocks, and the rows of files that `AvroFile` wrote."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from holdfast.errors import UsageError
from holdfast.formats._decompression import decompressed, joined_within, too_large, unsnappy
from holdfast.formats._forward import ENDS_TOO_EARLY, ForwardReader
from holdfast.formats.avro.schemas import arrow_schema, without_times
from holdfast.formats.avro.writer import CHECKSUM_BYTES, MAGIC, MARK_BYTES, RAW_DEFLATE

MAX_SCHEMA = 4 << 20
_ENTRIES = frozenset({"avro.schema", "avro.codec"})


class Header(NamedTuple):
    """The beginning of a file."""

    schema: Any
    """The schema of the rows, as parsed JSON."""
    codec: str
    mark: bytes
    """The sync marker, which follows every block."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a file, still compressed."""

    offset: int
    """Where it begins in the file."""
    count: int
    """The number of rows."""
    data: bytes


def read(data: BinaryIO) -> Iterator[Any]:
    """Record batches, one for each block. Raises `ValueError` for a file that `AvroFile` did not write."""
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("reading Avro files needs fastavro: pip install 'holdfast[archive]'") from error
    forward = ForwardReader(data)
    header = decode_header(forward.take)
    # Times stay numbers: Python has no dates beyond the year 9999, and files of earlier versions may have them.
    parsed: Any = fastavro.parse_schema(without_times(header.schema))
    schema = arrow_schema(header.schema)
    for block in blocks(forward, header.mark):
        rows = BytesIO(unpacked_block(header.codec, block.data))
        values = [fastavro.schemaless_reader(rows, parsed, None) for _ in range(block.count)]
        yield pa.RecordBatch.from_pylist(values, schema)


def decode_header(take: Callable[[int], bytes]) -> Header:
    """The header of any file; `take(n)` returns the next n bytes. Raises `ValueError`."""
    if take(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin like an Avro file")
    entries: dict[str, bytes] = {"avro.codec": b"null"}
    while count := _number(take):
        if count < 0:
            _number(take)  # the size of the entries in bytes, for readers that skip them
        for _ in range(abs(count)):
            name = take(_number(take)).decode()
            value = take(_number(take))
            if name in _ENTRIES:
                entries[name] = value
    return Header(_schema(entries.get("avro.schema")), entries["avro.codec"].decode(), take(MARK_BYTES))


def _schema(text: bytes | None) -> Any:
    if text is None:
        raise ValueError("it has no schema")
    if len(text) > MAX_SCHEMA:
        raise ValueError(f"its schema has {len(text)} bytes; at most {MAX_SCHEMA} are read")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("its schema is nested too deeply") from error


def blocks(forward: ForwardReader, mark: bytes, end: int = sys.maxsize) -> Iterator[Block]:
    """The blocks from here on that begin before `end`. Raises `ValueError` at the first one that is damaged."""
    while (offset := forward.offset) < end and not forward.at_end():
        count, data = _number(forward.take), forward.take(_number(forward.take))
        if forward.take(MARK_BYTES) != mark:
            raise ValueError(f"the block at {offset} does not end with the file's mark")
        if count < 0:
            raise ValueError(f"the block at {offset} declares {count} rows")
        yield Block(offset, count, data)


def unpacked_block(codec: str, data: bytes, limit: int = sys.maxsize) -> bytes:
    """The rows of a block. Raises `ValueError` if it is damaged or too large, or its codec is not supported."""
    if codec == "null":
        return data
    if codec == "zstandard":
        return joined_within(decompressed(BytesIO(data), "zstd"), limit)
    if codec == "deflate":
        return _inflated(data, limit)
    if codec != "snappy":
        raise ValueError(f"the codec {codec} is not supported")
    rows = unsnappy(data[:-CHECKSUM_BYTES], limit)
    if zlib.crc32(rows) != int.from_bytes(data[-CHECKSUM_BYTES:], "big"):
        raise ValueError("a block's checksum is wrong")
    return rows


def _inflated(data: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj(RAW_DEFLATE)
    try:
        rows = inflater.decompress(data, min(limit, sys.maxsize - 1) + 1)
    except zlib.error as error:
        raise ValueError(f"a block cannot be decompressed: {error}") from error
    if len(rows) > limit:
        raise too_large(limit)
    if not inflater.eof:
        raise ValueError(f"a block cannot be decompressed: {ENDS_TOO_EARLY}")
    return rows


def _number(take: Callable[[int], bytes]) -> int:
    """A number in zigzag, seven bits to a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = take(1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError(ENDS_TOO_EARLY)
